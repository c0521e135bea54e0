"""One random stream per purpose, never the same seed twice.

A generator that shares a seed with the server it tests correlates arrivals with service times, and every check of the
arrivals alone still passes. So each purpose owns a fixed key of a numpy ``SeedSequence`` and no stream is ever used for two.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass

import numpy as np

# The key of each purpose. They are part of every recorded result: add new ones, never renumber.
PURPOSES: dict[str, int] = {
    "arrivals": 1,  # the unit-rate sequence; thinning and jitter of traces
    "lengths": 2,  # prompt and output lengths
    "prompts": 3,  # which tokens a prompt holds
    "engine": 4,  # sampling of output tokens
    "clients": 5,  # think times and turns of closed loops and sessions
    "prediction": 6,  # error of the predicted output length
    "priority": 7,  # which requests are the important ones
    "service": 8,  # service times of a known queue
}


@dataclass(frozen=True)
class Seeds:
    """The seeds of one run, one a purpose (each below 2^63)."""

    arrivals: int
    lengths: int
    prompts: int
    engine: int
    clients: int
    prediction: int
    priority: int
    service: int

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


def run_seeds(seed: int, group: str, replication: int) -> Seeds:
    """The seeds of replication ``replication`` of the experiments in ``group``.

    ``SeedSequence(entropy=seed, spawn_key=(key of the purpose, first 64 bits of SHA-256(group), replication))``. They depend
    on names and numbers alone: adding, removing or reordering experiments leaves the others' seeds as they were.
    """
    group_key = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8], "little")
    values = {
        purpose: int(
            np.random.SeedSequence(seed, spawn_key=(key, group_key, replication)).generate_state(1, np.uint64)[0]
        )
        >> 1
        for purpose, key in PURPOSES.items()
    }
    return Seeds(**values)


def streams(seed: int, purpose: str, count: int) -> list[np.random.Generator]:
    """``count`` independent generators for ``purpose``; the same ``seed`` under another purpose gives unrelated ones."""
    if seed < 0:
        raise ValueError(f"seed is {seed}; it must be a whole number of at least 0")
    parent = np.random.SeedSequence(seed, spawn_key=(PURPOSES[purpose],))
    return [np.random.default_rng(child) for child in parent.spawn(count)]
