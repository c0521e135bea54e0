"""What several tests share: one small study on the real model, run once."""

from __future__ import annotations

from pathlib import Path

import pytest

from workload.run import main


@pytest.fixture(scope="session")
def smoke_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results folder of tests/smoke.yaml, run through the command itself."""
    out = tmp_path_factory.mktemp("smoke")
    assert main([str(Path(__file__).with_name("smoke.yaml")), "--out", str(out)]) == 0
    return out / "smoke"
