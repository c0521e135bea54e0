"""Token ids for executors that compute nothing: known answers, else unique ones, so that no two requests share a generated
prefix by accident."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import compress, count, islice

from engine.executors.base import ScheduledBatch
from engine.sequence import Sequence

FIRST_PLACEHOLDER = 1 << 24  # above every vocabulary


class PlaceholderTokens:
    """Gives each sequence unique placeholders, and the end token as output number ``output_tokens[request_id]``.

    Requests that are not listed run to their ``max_tokens``. ``answers`` are the token ids of requests whose output is
    known: the next turn of a session may hold them in its prompt. Raises ValueError for a listed number below 1.
    """

    def __init__(
        self,
        output_tokens: Mapping[str, int] | None = None,
        eos_token_id: int = 0,
        answers: Mapping[str, list[int]] | None = None,
    ) -> None:
        self._output_tokens = output_tokens or {}
        too_short = {name: length for name, length in self._output_tokens.items() if length < 1}
        if too_short:
            raise ValueError(f"output_tokens has {too_short}; a request generates at least 1 token")
        self._eos_token_id = eos_token_id
        self._answers = answers or {}
        self._ids = count(FIRST_PLACEHOLDER)

    def next_tokens(self, batch: ScheduledBatch) -> list[int]:
        """One token id for every sequence of the batch that closes its gap, in batch order."""
        if not self._output_tokens and not self._answers:
            return list(islice(self._ids, sum(batch.needs_token)))
        return [self._next_token(seq) for seq in compress(batch.seqs, batch.needs_token)]

    def _next_token(self, seq: Sequence) -> int:
        given = seq.num_output_tokens
        if self._output_tokens.get(seq.request_id) == given + 1:
            return self._eos_token_id
        answer = self._answers.get(seq.request_id, ())
        return answer[given] if given < len(answer) else next(self._ids)
