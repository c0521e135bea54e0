"""A request's output as text: decoded token by token, ended by stop strings."""

from __future__ import annotations

from collections.abc import Sequence

from engine.tokenizer import IncrementalDetokenizer, Tokenizer


class TextStream:
    """The text of one request as it grows.

    ``text`` never holds a stop string or what follows it. ``take`` gives each character once and holds back an ending that
    may turn out to be the beginning of a stop string.

    Args:
        tokenizer: ``None`` where the model has none; the text stays empty.
        stop: strings that end the output.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: Sequence[str] = ()) -> None:
        self.text = ""
        self.stopped = False
        self._detokenizer = IncrementalDetokenizer(tokenizer) if tokenizer is not None else None
        self._stop = tuple(stop)
        self._hold_back = max((len(string) for string in self._stop), default=1) - 1
        self._taken = 0

    def append(self, token_id: int, may_stop: bool = True) -> bool:
        """Add a token's text; True when it completed a stop string (only looked for where ``may_stop``)."""
        if self._detokenizer is None or self.stopped:
            return self.stopped
        self._add(self._detokenizer.append(token_id), may_stop)
        return self.stopped

    def finish(self) -> None:
        """No more tokens: the bytes of an unfinished character become U+FFFD."""
        if self._detokenizer is not None and not self.stopped:
            self._add(self._detokenizer.flush(), may_stop=False)
        self._hold_back = 0

    def take(self) -> str:
        """What has been added since the last call and can no longer be taken back."""
        end = max(self._taken, len(self.text) - (0 if self.stopped else self._hold_back))
        piece = self.text[self._taken : end]
        self._taken = end
        return piece

    def _add(self, piece: str, may_stop: bool) -> None:
        searched_from = max(0, len(self.text) - self._hold_back)
        self.text += piece
        if not may_stop:
            return
        found = [at for string in self._stop if (at := self.text.find(string, searched_from)) >= 0]
        if found:
            self.text = self.text[: min(found)]
            self.stopped = True
