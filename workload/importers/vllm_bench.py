"""Result files of ``vllm bench serve --save-result --save-detailed`` (one JSON object).

Lists over requests: ``start_times`` (s, of sending), ``ttfts`` (s from sending; 0.0 where none came), ``itls`` (gaps between
messages, s), ``input_lens``, ``output_lens``, ``errors``. The time a request waited for the client's own concurrency cap is
in none of them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from workload.importers.imported import (
    ENDED,
    ForeignRequest,
    ForeignRun,
    ImportMistake,
    number,
    read_json,
    token_stamps,
    unstamped_note,
    whole,
)

LISTS = ("start_times", "ttfts", "itls", "input_lens", "output_lens", "errors")
FACTS = (
    "date",
    "backend",
    "endpoint_type",
    "label",
    "model_id",
    "num_prompts",
    "request_rate",
    "burstiness",
    "max_concurrency",
)
CAP_HIDDEN = "waiting for the client's own concurrency cap is in no latency of this file"


def read_vllm_bench(path: Path) -> list[ForeignRun]:
    """The one run of the file.

    Raises:
        ImportMistake: it is no such file, or was saved without details.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise ImportMistake(f"{path}: found {type(data).__name__}; one JSON object of vllm bench serve is allowed")
    missing = [name for name in LISTS if not isinstance(data.get(name), list)]
    if missing:
        raise ImportMistake(
            f"{path}: no list under {', '.join(missing)}; a file of vllm bench serve --save-result --save-detailed is "
            "needed (without start_times requests can't be put on a time line)"
        )
    lengths = {name: len(data[name]) for name in LISTS}
    if len(set(lengths.values())) > 1:
        raise ImportMistake(f"{path}: lists of unequal length: {lengths}")
    requests = [_request(data, i, str(path)) for i in range(lengths["start_times"])]
    facts = {name: data[name] for name in FACTS if name in data}
    capped = (CAP_HIDDEN,) if data.get("max_concurrency") else ()
    return [ForeignRun("run", requests, False, facts, (*capped, *unstamped_note(requests)))]


def _request(data: dict[str, Any], i: int, path: str) -> ForeignRequest:
    def at(name: str) -> str:
        return f"{path}: {name}[{i}]"

    start_s = number(data["start_times"][i], at("start_times"))
    if math.isnan(start_s):
        raise ImportMistake(f"{at('start_times')}: found nothing; the moment of sending is needed")
    error = data["errors"][i] or None
    ttft_s = number(data["ttfts"][i], at("ttfts"))
    output_tokens = whole(data["output_lens"][i], at("output_lens"))
    gaps_s = [number(gap, at("itls")) for gap in data["itls"][i] or []]
    # 0.0 is what the tool writes where no token came; a first token can't come in no time
    first_s = start_s + ttft_s if ttft_s > 0 else math.nan
    last_s = first_s + math.fsum(gaps_s)
    return ForeignRequest(
        request_id=str(i),
        intended_s=start_s,
        sent_s=start_s,
        first_token_s=first_s,
        last_token_s=last_s,
        finished_s=math.nan if error else last_s,
        finish_reason="failed" if error or math.isnan(last_s) else ENDED,
        prompt_tokens=whole(data["input_lens"][i], at("input_lens")),
        output_tokens=output_tokens,
        token_s=token_stamps(first_s, gaps_s, output_tokens),
        error=str(error) if error else "no token came" if math.isnan(last_s) else None,
    )
