"""Stand-ins for files that studies name and that are no part of the repository."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Made-up traces under the public ones' names, in the folder that the environment names."""
    folder = tmp_path / "traces"
    folder.mkdir()
    rng = np.random.default_rng(1)
    at = np.cumsum(rng.exponential(0.2, 4000))
    stamps = (pd.Timestamp("2023-11-16 18:15:46") + pd.to_timedelta(at, unit="s")).strftime("%Y-%m-%d %H:%M:%S.%f")
    azure = {
        "TIMESTAMP": stamps,
        "ContextTokens": rng.integers(1, 2000, 4000),
        "GeneratedTokens": rng.integers(1, 400, 4000),
    }
    pd.DataFrame(azure).to_csv(folder / "AzureLLMInferenceTrace_conv.csv", index=False)
    rows = [
        {"timestamp": 3000 * (i // 4), "input_length": 1200, "output_length": 300, "hash_ids": [0, i % 9, 100 + i]}
        for i in range(800)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "mooncake_fast25_conversation_trace.jsonl").write_text(lines)
    (folder / "servegen_deepseek-r1_client_windows.csv").write_text(
        "client,window_start_s,rate_rps,cv,pattern,shape,scale\n0,0,0.8,2,Gamma,0.25,5\n1,0,0.4,1.5,Weibull,0.69,1.95\n"
    )
    monkeypatch.setenv("LATENCY_LAB_TRACES", str(folder))
    return folder
