"""What a run offers: the loop of its requests and the phases of its time, from its spec and the engine's facts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from workload.durations import ThinkTimes
from workload.experiment import RunSpec
from workload.lengths import Lengths
from workload.loops import ClosedLoop, Loop, OpenLoop, RequestList
from workload.phases import Phases
from workload.plan import plan_requests, run_lengths
from workload.processes.responsive import Closed, Sessions
from workload.prompts import RandomTokens, TokenSource, draw_prompts
from workload.sessions import SessionLoop, plan_sessions

LIST_LENGTH = (
    2_000  # requests drawn for loops whose number of requests is not known beforehand; then the list begins anew
)
SEED_SPAN = 2**31  # sampling seeds stay below this


@dataclass(frozen=True)
class Vocabulary:
    """Of the engine's model: its size and the ids that prompts don't use."""

    size: int
    special_ids: tuple[int, ...]

    def source(self, seed: int) -> TokenSource:
        """Seeded streams of ordinary tokens."""
        return TokenSource(self.size, self.special_ids, seed)


@dataclass(frozen=True)
class Offering:
    """A run's requests: ``loop`` gives them, ``phases`` tells which count; ``notes`` says what was decided on the way."""

    loop: Loop
    phases: Phases
    notes: tuple[str, ...] = ()


def offer(run: RunSpec, rate: float | None, vocabulary: Vocabulary, max_model_len: int) -> Offering:
    """The loop that ``run`` asks for.

    Args:
        rate: requests per second; for runs given by their load.
        max_model_len: of the engine; longer requests are cut to it, which is noted.

    Raises:
        ValueError: the run's spans or lengths don't fit its arrival process.
    """
    if isinstance(run.arrivals, Closed):
        closed = run.arrivals if rate is None else run.arrivals.at_rate(rate)
        requests = request_list(run, vocabulary, *run_lengths(run, LIST_LENGTH))
        think = ThinkTimes(closed.think, run.seeds.clients)
        loop: Loop = ClosedLoop(closed.clients, requests, think=think, stagger_s=closed.stagger)
        notes = () if rate is None else (f"think times of mean {closed.think.mean_s:.3g} s, for {rate:.3g} requests/s",)
        return Offering(loop, _phases_in_seconds(run), notes)
    if isinstance(run.arrivals, Sessions):
        loop = SessionLoop(
            plan_sessions(run, rate),
            vocabulary.source(run.seeds.prompts),
            max_model_len=max_model_len,
            seed=run.seeds.engine % SEED_SPAN,
            natural=run.natural,
        )
        return Offering(loop, _phases_in_seconds(run))
    plan = plan_requests(run, rate).fitted(max_model_len)
    requests = request_list(
        run, vocabulary, plan.prompt_tokens, plan.output_tokens, plan.predicted_output_tokens, plan.hash_ids
    )
    phases = Phases(plan.measure_start_s, plan.measure_end_s)
    return Offering(OpenLoop(plan.intended_s, requests), phases, plan.notes)


def request_list(
    run: RunSpec,
    vocabulary: Vocabulary,
    prompt_tokens: Lengths,
    output_tokens: Lengths,
    predicted: Lengths | None = None,
    hash_ids: NDArray[Any] | None = None,
) -> RequestList:
    """Requests of the given lengths with ``run``'s prompts and seeds."""
    prompts = draw_prompts(
        run.prompts, prompt_tokens, vocabulary.size, run.seeds.prompts, vocabulary.special_ids, hash_ids
    )
    seed = run.seeds.engine % SEED_SPAN
    priorities = None if run.priority is None else run.priority.draw(len(prompts), run.seeds.priority)
    return RequestList(
        prompts, output_tokens, natural=run.natural, seed=seed, predicted=predicted, priorities=priorities
    )


def keeps_prompts(run: RunSpec) -> bool:
    """Whether the prompts' content belongs into the record: as asked for, or because they share prefixes or hold history."""
    if run.record.prompts != "auto":
        return run.record.prompts
    return isinstance(run.arrivals, Sessions) or not isinstance(run.prompts, RandomTokens)


def _phases_in_seconds(run: RunSpec) -> Phases:
    if run.warmup.seconds is None or run.measure.seconds is None:
        raise ValueError(
            f"{run.run_dir}: {run.arrivals.process} arrivals depend on the answers: give warmup and measure in seconds"
        )
    return Phases(run.warmup.seconds, run.warmup.seconds + run.measure.seconds)


def vocabulary_of(info: dict[str, Any]) -> Vocabulary:
    """The vocabulary in a target's facts."""
    special: Sequence[int] = info["special_token_ids"]
    return Vocabulary(int(info["vocab_size"]), tuple(special))
