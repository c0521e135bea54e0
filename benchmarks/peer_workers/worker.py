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

Generate = Callable[[list[list[int]], list[int]], list[list[int]]]
FIRST = 8  # greedy tokens of a request that are sent back to be compared


def serve(start: Callable[[dict[str, Any]], tuple[Generate, dict[str, str]]]) -> None:
    """Start an engine and answer orders until standard input ends.

    Args:
        start: from the options (a JSON object, the first argument) to ``generate`` and the versions to print.
            ``generate(prompts, new_tokens)`` completes prompts of token ids greedily, exactly ``new_tokens[i]`` tokens each,
            and returns the new token ids of each.

    An order is ``{"prompts": [[id]], "new_tokens": [n]}``, the answer ``{"seconds": s, "first": [[id]]}``. Whatever the
    engine prints goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    generate, versions = start(json.loads(sys.argv[1]))
    _answer(answers, {"versions": versions})
    for line in sys.stdin:
        order = json.loads(line)
        begin = time.perf_counter()
        tokens = generate(order["prompts"], order["new_tokens"])
        seconds = time.perf_counter() - begin
        produced = [len(each) for each in tokens]
        if produced != order["new_tokens"]:
            raise SystemExit(f"asked for {order['new_tokens']} tokens, got {produced}")
        _answer(answers, {"seconds": seconds, "first": [each[:FIRST] for each in tokens]})


def _answer(answers: Any, value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()
