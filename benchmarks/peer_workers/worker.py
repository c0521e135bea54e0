"""The far end of ``benchmarks/peers.py``: one engine, kept resident, that answers one JSON line with another.

Every worker script calls ``serve``. It runs in an environment of its own, so this file needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Stepped = Callable[[list[int]], None]  # called after every step with the number of tokens each request has
Generate = Callable[[list[list[int]], list[int], Stepped], list[list[int]]]
FIRST = 8  # greedy tokens of a request that are sent back to be compared


def serve(start: Callable[[dict[str, Any]], tuple[Generate, dict[str, str]]]) -> None:
    """Start an engine and answer orders until standard input ends.

    Args:
        start: from the options (a JSON object, the first argument) to ``generate`` and the versions to print.
            ``generate(prompts, new_tokens, stepped)`` completes prompts of token ids greedily, exactly ``new_tokens[i]``
            tokens each, and returns the new token ids of each.

    An order is ``{"prompts": [[id]], "new_tokens": [n]}``, the answer ``{"seconds": s, "decode": r, "first": [[id]]}``,
    r being ``decode_rate``. Whatever the engine prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate, versions = start(json.loads(sys.argv[1]))
    _answer(answers, {"versions": versions})
    for line in sys.stdin:
        order = json.loads(line)
        steps = Steps()
        begin = time.perf_counter()
        tokens = generate(order["prompts"], order["new_tokens"], steps.note)
        seconds = time.perf_counter() - begin
        produced = [len(each) for each in tokens]
        if produced != order["new_tokens"]:
            raise SystemExit(f"asked for {order['new_tokens']} tokens, got {produced}")
        first = [each[:FIRST] for each in tokens]
        _answer(answers, {"seconds": seconds, "decode": decode_rate(steps.seen, order["new_tokens"]), "first": first})


class Steps:
    """When each step ended, and how many tokens each request then had."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int]]] = []

    def note(self, counts: list[int]) -> None:
        """A step has ended."""
        self.seen.append((time.perf_counter(), counts))


def decode_rate(steps: list[tuple[float, list[int]]], new_tokens: list[int]) -> float | None:
    """Tokens a second while all requests decode: from when each has its first token to when one has its last.

    Args:
        steps: after every step the time in seconds and how many tokens each request has.
        new_tokens: how many each will have.

    Returns:
        ``None`` where no step lies in between.
    """
    begin = next(i for i, (_, counts) in enumerate(steps) if min(counts) > 0)
    end = next(i for i, (_, counts) in enumerate(steps) if any(a >= b for a, b in zip(counts, new_tokens, strict=True)))
    if end <= begin:
        return None
    return (sum(steps[end][1]) - sum(steps[begin][1])) / (steps[end][0] - steps[begin][0])


def _answer(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
