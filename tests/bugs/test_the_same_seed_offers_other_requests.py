"""The same seed gave other prompts, or other arrivals with another number of workers: here nothing but the seed decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from engine.sequence import Request
from tests.bugs.scripted_target import Answer, ScriptedTarget, drive
from workload.experiment import load_study
from workload.offering import Vocabulary, offer

STUDY = """\
version: 1
model: random:tiny-llama
seed: SEED
experiments:
  - name: one
    arrivals: {process: gamma, cv: 2, rate: 40}
    prompt: {dist: lognormal, mean: 20, cv: 0.7, max: 100}
    output: {dist: geometric, mean: 9, max: 40}
    priority: {values: [0, 1], shares: [0.3, 0.7]}
    warmup: {seconds: 0}
    measure: {seconds: 5}
    cooldown: {seconds: 0}
"""


def offered(folder: Path, name: str, answer_s: float, seed: int = 1) -> list[tuple[float, Request]]:
    """What a target that takes ``answer_s`` for every answer is sent, in order."""
    (folder / name).mkdir()
    path = folder / name / "study.yaml"
    path.write_text(STUDY.replace("SEED", str(seed)))
    (run,) = load_study(path).runs

    def answer(request: Request) -> Answer:
        return [(answer_s, (1,), "length")]

    target = ScriptedTarget(answer)
    loop = offer(run, None, Vocabulary(512, (0,)), 1024).loop
    drive(target, loop, folder / name)
    return target.sent


def test_the_requests_are_equal_whatever_the_target_does_with_them(tmp_path: Path) -> None:
    fast, slow = offered(tmp_path, "fast", 0.0), offered(tmp_path, "slow", 3.0)
    assert len(fast) > 100
    assert fast == slow  # moments, ids, tokens, lengths, sampling seeds, priorities


def test_another_seed_changes_all_of_them(tmp_path: Path) -> None:
    one, two = offered(tmp_path, "one", 0.0), offered(tmp_path, "two", 0.0, seed=2)
    assert not np.array_equal([when for when, _ in one][:50], [when for when, _ in two][:50])
    assert all(a.prompt_token_ids != b.prompt_token_ids for (_, a), (_, b) in zip(one[:50], two[:50], strict=True))
