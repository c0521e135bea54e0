"""The step-time model against steps whose prices are known."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from analysis.fit.misfit import SHAPE_TERMS
from analysis.fit.step_noise import StepNoise, filled_gaps
from analysis.fit.step_time import StepTimeModel, fit_step_time
from analysis.runs import Run
from engine.executors.base import BatchShape
from engine.executors.step_time import LinearStepTime

TRUTH = LinearStepTime(
    base_s=5e-3, decode_seqs=5e-4, prefill_tokens=5e-5, kv_tokens=2e-7, prefill_attention=3e-8, logit_rows=1e-4
)


def some_shapes(n: int, seed: int, seats: int = 16) -> list[BatchShape]:
    """Shapes as an engine with chunked prefill has them: some chunks end a prompt, some do not."""
    rng = np.random.default_rng(seed)
    shapes = []
    for _ in range(n):
        decodes = int(rng.integers(0, seats + 1))
        prefills = int(rng.choice([0, 0, 1, 2])) if decodes else int(rng.integers(1, 3))
        tokens = [int(token) for token in rng.integers(1, 120, size=prefills)]
        contexts = [int(context) for context in rng.choice([0, 0, 256], size=prefills)]
        attention = sum(q * (context + q / 2) for q, context in zip(tokens, contexts, strict=True))
        kv = int(rng.integers(20, 400, size=decodes).sum())
        shapes.append(
            BatchShape(
                prefills, decodes, sum(tokens), decodes, kv, attention, decodes + int(rng.integers(0, prefills + 1))
            )
        )
    return shapes


def steps_table(shapes: list[BatchShape], durations: np.ndarray, gap_s: float = 2e-4) -> pd.DataFrame:
    start = np.concatenate([[0.0], np.cumsum(durations + gap_s)[:-1]])
    table = pd.DataFrame(shapes, columns=list(BatchShape._fields))
    return table.assign(step=np.arange(len(shapes)), start_s=start, end_s=start + durations, idle_s=0.0)


def test_exact_steps_give_back_the_prices() -> None:
    shapes = some_shapes(2000, seed=1)
    model = fit_step_time(steps_table(shapes, np.array([TRUTH(shape) for shape in shapes])))
    fewest = model.row_knots[0]
    assert model.base_s == pytest.approx(TRUTH.base_s + fewest * TRUTH.prefill_tokens, rel=1e-6)
    slopes = np.diff(model.row_s) / np.diff(model.row_knots)
    np.testing.assert_allclose(slopes, TRUTH.prefill_tokens, rtol=1e-5)  # what any row costs
    own = {
        "decode_seqs": TRUTH.decode_seqs - TRUTH.prefill_tokens,
        "prefill_tokens": 0.0,
    }  # what a kind costs beside it
    for term in SHAPE_TERMS:
        expected = own.get(term, getattr(TRUTH, term, 0.0))
        assert model.prices[term] == pytest.approx(expected, rel=1e-5, abs=1e-12)
    assert model.gap_s == pytest.approx(2e-4, rel=1e-6)
    assert model.misfit.rms < 1e-8
    assert model.misfit.set_aside == 0


@pytest.mark.parametrize(("decode", "prefill"), [(5e-4, 5e-5), (5e-5, 5e-4)])
def test_whichever_row_is_dearer_its_time_is_found(decode: float, prefill: float) -> None:
    truth = LinearStepTime(base_s=5e-3, decode_seqs=decode, prefill_tokens=prefill)
    shapes = some_shapes(500, seed=21)
    model = fit_step_time(steps_table(shapes, np.array([truth(shape) for shape in shapes])))
    held_out = some_shapes(200, seed=22)
    np.testing.assert_allclose([model(shape) for shape in held_out], [truth(shape) for shape in held_out], rtol=1e-6)


def test_a_step_time_with_kinks_in_the_rows_is_followed_and_the_textbook_line_is_not_enough() -> None:
    shapes = some_shapes(3000, seed=2)
    rows = [shape.decode_seqs + shape.prefill_tokens for shape in shapes]
    durations = np.array([4e-3 + 2e-3 * -(-min(n, 16) // 8) + 1e-4 * n for n in rows])  # stairs of 8 rows, then none
    model = fit_step_time(steps_table(shapes, durations))
    assert model.misfit.rms < 1e-6
    assert model.textbook.rms > 0.02


def test_prompt_rows_and_decode_rows_fill_the_same_tiles() -> None:
    """A kernel sees rows, not kinds: a model that adds up the two kinds apart would be 20 % off where both are there."""
    shapes = some_shapes(4000, seed=23)
    true = [2e-2 + 1e-3 * float(np.sqrt(shape.decode_seqs + shape.prefill_tokens)) for shape in shapes]
    model = fit_step_time(steps_table(shapes, np.array(true)))
    assert model.misfit.by_term["mixed"]["rms"] < 1e-3
    assert model.misfit.by_term["decode only"]["rms"] < 1e-3


def test_a_pause_makes_the_next_step_slower_by_what_was_measured() -> None:
    shapes = some_shapes(1000, seed=24)
    rng = np.random.default_rng(25)
    idle_s = np.where(rng.random(1000) < 0.1, rng.uniform(0.0, 0.5, size=1000), 0.0)
    durations = np.array([TRUTH(shape) for shape in shapes]) + 0.04 * np.minimum(idle_s, 0.2)
    table = steps_table(shapes, durations).assign(idle_s=idle_s)
    model = fit_step_time(table)
    assert model.cold(0.0) == 0.0
    assert model.cold(0.1) == pytest.approx(0.004, rel=1e-4)
    assert model.cold(0.4) == pytest.approx(0.008, rel=1e-4)
    assert model.cold(30.0) == model.cold(0.5)  # nothing longer was seen
    assert model.misfit.by_term["after idle"]["rms"] < 1e-6
    np.testing.assert_allclose(np.asarray(model.predict(table)), durations, rtol=1e-6)


def test_noise_leaves_prices_within_their_standard_errors_and_stolen_steps_are_set_aside_and_counted() -> None:
    shapes = some_shapes(6000, seed=3)
    rng = np.random.default_rng(4)
    clean = np.array([TRUTH(shape) for shape in shapes])
    stolen = rng.random(len(shapes)) < 0.05
    durations = clean * (1 + 0.01 * rng.standard_normal(len(shapes))) + 0.01 * stolen
    model = fit_step_time(steps_table(shapes, durations))
    error = np.array([model(shape) for shape in shapes]) / clean - 1
    # p parameters from 6,000 steps of 1 % noise: rms error of the curve 1 % * sqrt(p / 6000), about 0.08 %
    parameters = len(model.row_knots) + len(SHAPE_TERMS)
    assert float(np.sqrt(np.mean(error**2))) < 3 * 0.01 * np.sqrt(parameters / 6000)
    assert model.misfit.set_aside == pytest.approx(int(stolen.sum()), abs=3)
    assert model.misfit.n + model.misfit.set_aside == len(shapes)
    assert model.noise.extra_s.sum() == pytest.approx(0.01 * stolen.sum(), rel=0.02)
    assert model.time_factor == pytest.approx(durations.sum() / clean.sum(), rel=2e-3)


def test_resampled_noise_keeps_the_mean_time_of_a_step() -> None:
    shapes = some_shapes(4000, seed=5)
    rng = np.random.default_rng(6)
    clean = np.array([TRUTH(shape) for shape in shapes])
    durations = clean * (1 + 0.02 * rng.standard_normal(len(shapes))) + 0.02 * (rng.random(len(shapes)) < 0.02)
    model = fit_step_time(steps_table(shapes, durations))
    stream = model.noise.stream(np.random.default_rng(7))
    again = np.array([model(shape) * ratio + extra for shape in shapes for ratio, extra, _ in [stream.next()]])
    # a stolen step adds 20 ms * Bernoulli(.02): standard error 20 ms * sqrt(.0196 / 4000), in the fit and in the resample
    band = 2.58 * np.sqrt(2) * 0.02 * np.sqrt(0.0196 / 4000)
    assert again.mean() == pytest.approx(durations.mean(), abs=band)


def test_prices_are_never_negative_and_time_never_falls_with_rows() -> None:
    shapes = some_shapes(300, seed=8)
    rng = np.random.default_rng(9)
    model = fit_step_time(steps_table(shapes, 1e-2 * (1 + 0.3 * rng.random(len(shapes)))))
    assert min(model.prices.values()) >= 0
    assert (np.diff(model.row_s) >= 0).all()


def test_one_step_a_batch_and_a_table_are_predicted_alike() -> None:
    shapes = some_shapes(400, seed=10)
    table = steps_table(shapes, np.array([TRUTH(shape) for shape in shapes]))
    model = fit_step_time(table)
    one_by_one = [model.predict(shape) for shape in shapes]
    np.testing.assert_allclose(np.asarray(model.predict(table)), one_by_one, rtol=1e-12)
    beyond = BatchShape(0, 40, 0, 40, 4000, 0.0, 40)
    assert model.predict(beyond) == pytest.approx(TRUTH(beyond), rel=1e-4)


def test_a_shape_outside_what_was_fitted_is_named() -> None:
    shapes = some_shapes(400, seed=11, seats=8)
    table = steps_table(shapes, np.array([TRUTH(shape) for shape in shapes]))
    model = fit_step_time(table)
    assert not np.any(model.extrapolates(table))
    beyond = BatchShape(0, 9, 0, 9, 500, 0.0, 8)
    assert model.extrapolates(beyond)
    assert model.outside(beyond) == ("decode_seqs",)


def test_a_model_goes_through_json() -> None:
    shapes = some_shapes(200, seed=12)
    table = steps_table(shapes, np.array([TRUTH(shape) for shape in shapes]))
    model = fit_step_time(table)
    again = StepTimeModel.from_dict(json.loads(json.dumps(model.to_dict())))
    assert [again(shape) for shape in shapes] == [model(shape) for shape in shapes]
    assert str(again.to_dict()) == str(model.to_dict())  # as text: nan is nan
    assert again.textbook == model.textbook
    np.testing.assert_array_equal(again.noise.ratio, model.noise.ratio)


def run_of(table: pd.DataFrame, execution: dict[str, object]) -> Run:
    requests = pd.DataFrame({"request_id": ["0"], "intended_s": [0.0]})
    return Run.from_tables(requests, steps=table, meta={"fingerprints": {"execution": execution}})


def test_another_execution_is_refused_with_both_names() -> None:
    shapes = some_shapes(100, seed=13)
    table = steps_table(shapes, np.array([TRUTH(shape) for shape in shapes]))
    model = fit_step_time(run_of(table, {"dtype": "float32", "digest": "aaaa"}))
    model.require_execution({"dtype": "float32", "digest": "aaaa"})
    with pytest.raises(ValueError, match=r"aaaa.*bbbb.*dtype 'float32' against 'bfloat16'"):
        model.require_execution({"dtype": "bfloat16", "digest": "bbbb"})
    with pytest.raises(ValueError, match="different executions"):
        fit_step_time([run_of(table, {"dtype": "float32"}), run_of(table, {"dtype": "bfloat16"})])


def test_the_gap_is_measured_only_where_nothing_was_idle_and_not_across_runs() -> None:
    shapes = some_shapes(60, seed=14)
    table = steps_table(shapes, np.full(60, 1e-2), gap_s=1e-3)
    table.loc[30:, ["start_s", "end_s"]] += 7.0
    table.loc[30, "idle_s"] = 7.0
    later = table.assign(start_s=table["start_s"] + 100, end_s=table["end_s"] + 100)
    model = fit_step_time([table, later])
    assert model.gap_s == pytest.approx(1e-3, rel=1e-6)
    assert len(model.noise) == 120


def test_terms_that_the_steps_cannot_tell_apart_are_named() -> None:
    shapes = [BatchShape(0, n, 0, n, 100 * n, 0.0, n) for n in range(1, 9) for _ in range(8)]
    model = fit_step_time(steps_table(shapes, np.array([TRUTH(shape) for shape in shapes])))
    assert set(model.unidentified) >= {"kv_tokens", "logit_rows"}
    assert model.misfit.rms < 1e-9


def test_too_few_steps_and_steps_without_a_duration_are_errors() -> None:
    shapes = some_shapes(30, seed=15)
    with pytest.raises(ValueError, match="too few"):
        fit_step_time(steps_table(shapes[:5], np.full(5, 1e-2)))
    durations = np.full(30, 1e-2)
    durations[17] = 0.0
    with pytest.raises(ValueError, match="step 17"):
        fit_step_time(steps_table(shapes, durations))


def test_the_gap_grows_with_what_the_step_gave_out() -> None:
    shapes = some_shapes(16_000, seed=26)
    gap_s = np.array([1e-4 + 2e-5 * shape.logit_rows for shape in shapes])
    noise = np.random.default_rng(27).exponential(size=16_000)
    durations = np.full(16_000, 1e-2)
    table = steps_table(shapes, durations)
    start = np.concatenate([[0.0], np.cumsum(durations + gap_s * noise)[:-1]])
    model = fit_step_time(table.assign(start_s=start, end_s=start + durations))
    one, many = BatchShape(0, 1, 0, 1, 100, 0.0, 1), BatchShape(0, 12, 0, 12, 1200, 0.0, 12)
    # an exponential has the spread of its mean: 16,000 of them give a line to some 3 % near its ends
    assert model.gap(one) == pytest.approx(1.2e-4, rel=0.12)
    assert model.gap(many) == pytest.approx(3.4e-4, rel=0.12)
    assert model.noise.gap_ratio.mean() == pytest.approx(1.0, abs=0.01)


def test_noise_comes_in_blocks_of_neighbours() -> None:
    noise = StepNoise(np.arange(100.0), np.zeros(100), np.zeros(100), block=10)
    stream = noise.stream(np.random.default_rng(0))
    drawn = np.array([stream.next()[0] for _ in range(1000)])
    jumps = np.flatnonzero(np.diff(drawn) % 100 != 1)
    assert (jumps % 10 == 9).all()


def test_an_unknown_gap_takes_the_last_one_before_it() -> None:
    filled = filled_gaps(np.array([np.nan, 1.0, np.nan, 3.0, np.nan]))
    np.testing.assert_array_equal(filled, [2.0, 1.0, 1.0, 3.0, 3.0])
