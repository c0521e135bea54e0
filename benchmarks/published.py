"""Tables of a benchmark in a document, between two comments that name the command which made them."""

from __future__ import annotations

from pathlib import Path


def publish(document: Path, name: str, command: str, table: str) -> None:
    """Put ``table`` into ``document`` in place of what stood between the comments of ``name``.

    Raises:
        ValueError: the document has no such comments.
    """
    text = document.read_text(encoding="utf-8")
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    if begin not in text or end not in text.split(begin, 1)[1]:
        raise ValueError(f"{document} has no place for the table: give it the lines {begin} and {end}")
    before, rest = text.split(begin, 1)
    after = rest.split(end, 1)[1]
    made = f"Made by `{command}`.\n\n{table.strip()}\n"
    document.write_text(f"{before}{begin}\n{made}{end}{after}", encoding="utf-8")


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A table as Markdown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
