"""What a simulation must know of the engine it stands for, read from what that engine recorded of itself.

The number of KV blocks is always read, never computed: the memory left for them is the machine's business.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analysis.runs import Run
from engine.build import EngineInfo
from engine.config import EngineConfig
from engine.scheduler import Scheduler

FROM_ENGINE = ("block_size", "num_kv_blocks", "max_model_len")
FROM_CONFIG = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "enable_prefix_caching",
    "watermark",
    "policy",
    "ageing",
    "max_queue",
)


@dataclass(frozen=True)
class EngineFacts:
    """Scheduling options (by the names of ``FROM_ENGINE`` and ``FROM_CONFIG``) and the execution fingerprint, if known."""

    scheduling: dict[str, Any]
    execution: dict[str, Any] | None = None

    @classmethod
    def of(
        cls, engine: Run | EngineInfo | EngineConfig | Mapping[str, Any], changes: Mapping[str, Any] | None = None
    ) -> EngineFacts:
        """The facts that ``engine`` states, with some scheduling options changed (what if).

        Args:
            engine: a measured run; the engine's own info (as an object, or as run.json's ``engine`` with its
                ``fingerprints``); or a config that leaves nothing for the engine to decide.
            changes: new values of scheduling options.

        Raises:
            ValueError: an option is not known from ``engine``, or ``changes`` has an unknown name.
        """
        stated, execution = _stated(engine)
        unknown = sorted(set(changes or {}) - {*FROM_ENGINE, *FROM_CONFIG})
        if unknown:
            raise ValueError(
                f"{unknown[0]!r} is no scheduling option; a simulation can change {', '.join(FROM_ENGINE + FROM_CONFIG)}"
            )
        scheduling = {**stated, **(changes or {})}
        missing = [name for name in (*FROM_ENGINE, *FROM_CONFIG) if name not in scheduling]
        if missing:
            raise ValueError(
                f"the engine's {', '.join(missing)} is not known; take it from a run of that engine (run.json: "
                "fingerprints.scheduling) or give it"
            )
        return cls({name: scheduling[name] for name in (*FROM_ENGINE, *FROM_CONFIG)}, execution)

    @property
    def block_size(self) -> int:
        return int(self.scheduling["block_size"])

    @property
    def num_kv_blocks(self) -> int:
        return int(self.scheduling["num_kv_blocks"])

    @property
    def max_model_len(self) -> int:
        return int(self.scheduling["max_model_len"])

    @property
    def max_queue(self) -> int | None:
        limit: int | None = self.scheduling["max_queue"]
        return limit

    def scheduler(self) -> Scheduler:
        """The engine's own scheduler with these options, empty."""
        config = EngineConfig(**{name: self.scheduling[name] for name in FROM_CONFIG})
        return Scheduler(config, self.num_kv_blocks, self.block_size, self.max_model_len)


def _stated(
    engine: Run | EngineInfo | EngineConfig | Mapping[str, Any],
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    if isinstance(engine, EngineConfig):
        options = {name: getattr(engine, name) for name in (*FROM_ENGINE, *FROM_CONFIG)}
        return {
            name: value for name, value in options.items() if name not in FROM_ENGINE or isinstance(value, int)
        }, None
    if isinstance(engine, Run):
        stated, execution = _stated(
            {"fingerprints": engine.meta.get("fingerprints"), **(engine.meta.get("engine") or {})}
        )
        _check_blocks(engine, stated)
        return stated, execution
    info = asdict(engine) if isinstance(engine, EngineInfo) else engine
    prints = info.get("fingerprints") or {}
    stated = {name: value for name, value in (prints.get("scheduling") or {}).items() if name != "digest"}
    for name in {*FROM_ENGINE, "max_num_seqs", "max_num_batched_tokens"} & set(info):
        if name in stated and stated[name] != info[name]:
            warnings.warn(
                f"{name} is {info[name]} in the engine's info but {stated[name]} in its scheduling fingerprint: one of "
                f"them was changed after the run; {info[name]} is used",
                stacklevel=4,
            )
        stated[name] = info[name]
    return stated, prints.get("execution")


def _check_blocks(run: Run, stated: Mapping[str, Any]) -> None:
    """The steps bear witness to the block count: as many as were ever free at least, all of them while nobody runs."""
    free = run.steps["free_blocks"].dropna()
    blocks = stated.get("num_kv_blocks")
    if blocks is not None and len(free) and int(free.max()) > blocks:
        warnings.warn(
            f"the run states {blocks} KV blocks but had {int(free.max())} free in a step: the count was changed after "
            "the run",
            stacklevel=5,
        )
