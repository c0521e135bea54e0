"""Seen in all four generators tried: more was offered than could be served, and neither headline nor exit code said so."""

from __future__ import annotations

from pathlib import Path

import pytest

from workload.run import main


def test_overload_is_named_and_fails_a_strict_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.yaml").write_text(
        "version: 1\nexperiments:\n"
        "  - name: queue\n    target: {kind: stub, service: {dist: exponential, mean: 0.01}}\n"
        "    arrivals: {process: poisson, load: 1.5}\n    warmup: {seconds: 0}\n    measure: {seconds: 10}\n"
    )
    assert main([str(tmp_path / "study.yaml"), "--simulate", "--quiet", "--strict", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert "queue/load=1.5: UNSTABLE (backlog grew by" in said.out
    assert "failed verdicts: queue/load=1.5/0: unstable (backlog grew by" in said.err
