"""Lengths follow the law written down, bounds condition it, and seeds give equal lists."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from workload.lengths import (
    PredictionSpec,
    draw_joint,
    draw_lengths,
    length_moments,
    mean_length,
    parse_length_source,
    parse_lengths,
    predict_lengths,
)

LAWS: list[dict[str, Any]] = [
    {"dist": "uniform", "min": 3, "max": 9},
    {"dist": "lognormal", "mean": 48, "cv": 0.8, "min": 4, "max": 512},
    {"dist": "geometric", "mean": 24, "max": 256},
    {"dist": "geometric", "mean": 3},
    {"dist": "exponential", "mean": 20, "min": 5},
    {"dist": "gamma", "mean": 30, "cv": 1.5, "max": 40},
    {"dist": "pareto", "alpha": 1.2, "min": 4, "max": 500},
]
LEVEL = 0.01 / (2 * len(LAWS))
N = 20_000


def drawn_again_until_inside(law: dict[str, Any], rng: np.random.Generator) -> np.ndarray:
    """The same law by numpy's own samplers, rounded, those outside the bounds drawn again."""
    low, high = law.get("min", 1), law.get("max", 10**9)
    kept: list[np.ndarray] = []
    while sum(map(len, kept)) < N:
        if law["dist"] == "uniform":
            values = rng.integers(low, high + 1, N).astype(float)
        elif law["dist"] == "lognormal":
            sigma = math.sqrt(math.log(1 + law["cv"] ** 2))
            values = rng.lognormal(math.log(law["mean"]) - sigma**2 / 2, sigma, N)
        elif law["dist"] == "geometric":
            values = rng.geometric(1 / law["mean"], N).astype(float)
        elif law["dist"] == "exponential":
            values = rng.exponential(law["mean"], N)
        elif law["dist"] == "gamma":
            values = rng.gamma(1 / law["cv"] ** 2, law["mean"] * law["cv"] ** 2, N)
        else:
            values = (1 + rng.pareto(law["alpha"], N)) * (low - 0.5)
        values = np.rint(values)
        kept.append(values[(values >= low) & (values <= high)])
    return np.concatenate(kept)[:N]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law["dist"])
def test_bounds_condition_the_law_as_if_drawn_again(law: dict[str, Any]) -> None:
    ours, _ = draw_lengths(law, 1, N, seed=1)
    theirs = drawn_again_until_inside(law, np.random.default_rng(2))
    cuts = np.unique(np.quantile(theirs, np.linspace(0.05, 0.95, 19)))
    table = [np.histogram(sample, [-np.inf, *cuts, np.inf])[0] for sample in (ours, theirs)]
    table = [row[(table[0] + table[1]) > 0] for row in table]
    assert stats.chi2_contingency(np.array(table)).pvalue > LEVEL
    assert ours.min() >= law.get("min", 1)
    assert ours.max() <= law.get("max", 10**9)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law["dist"])
def test_stated_moments_are_those_of_the_draws(law: dict[str, Any]) -> None:
    mean, cv = length_moments(law)
    ours, _ = draw_lengths(law, 1, 100_000, seed=3)
    assert stats.ttest_1samp(ours, mean).pvalue > LEVEL
    assert ours.std() / ours.mean() == pytest.approx(cv, rel=0.1)


def test_moments_by_hand() -> None:
    assert mean_length(7) == 7
    assert mean_length({"dist": "uniform", "min": 1, "max": 3}) == pytest.approx(2)
    assert length_moments({"dist": "geometric", "mean": 4}) == pytest.approx((4, math.sqrt(3 / 4)), rel=1e-6)
    assert mean_length({"dist": "geometric", "mean": 2, "max": 2}) == pytest.approx(4 / 3)  # 1 and 2 with 2/3, 1/3


def test_equal_seeds_give_equal_lists_and_longer_ones_begin_with_shorter_ones() -> None:
    law = {"dist": "lognormal", "mean": 48, "cv": 0.8}
    prompt, output = draw_lengths(law, law, 1000, seed=5)
    again = draw_lengths(law, {"dist": "fixed", "value": 3}, 100, seed=5)
    assert np.array_equal(prompt[:100], again[0])
    assert not np.array_equal(prompt, output)
    assert not np.array_equal(prompt, draw_lengths(law, law, 1000, seed=6)[0])
    assert abs(stats.spearmanr(prompt, output).statistic) < 4 / math.sqrt(1000)


def test_a_swept_mean_moves_every_length_the_same_way() -> None:
    short, _ = draw_lengths({"dist": "exponential", "mean": 10}, 1, 1000, seed=5)
    long, _ = draw_lengths({"dist": "exponential", "mean": 20}, 1, 1000, seed=5)
    assert (long >= short).all()  # common random numbers


def test_empirical_and_joint_lengths_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    rng = np.random.default_rng(1)
    prompt = rng.integers(1, 500, 400)
    pd.DataFrame({"in": prompt, "out": prompt * 2}).to_csv(path, index=False)
    law = {"dist": "empirical", "path": str(path), "column": "in"}
    ours, _ = draw_lengths(law, 1, 5000, seed=1)
    assert set(ours) <= set(prompt)
    assert stats.ks_2samp(ours, prompt).pvalue > 0.001
    assert mean_length(law) == pytest.approx(prompt.mean())
    halves, _ = draw_lengths({**law, "scale": 0.5}, 1, 5000, seed=1)
    assert halves.max() <= round(prompt.max() / 2)
    joint = parse_length_source({"from": "file", "path": str(path), "prompt_column": "in", "output_column": "out"})
    both = draw_joint(joint, 1000, seed=4)  # type: ignore[arg-type]
    assert np.array_equal(both[0] * 2, both[1])


def test_a_value_that_is_no_length_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("in\n3\n0\n")
    with pytest.raises(ValueError, match=r"lengths\.csv:3: in is 0"):
        draw_lengths({"dist": "empirical", "path": str(path), "column": "in"}, 1, 5, seed=1)
    with pytest.raises(ValueError, match=r"found 'inn'; did you mean 'in'. allowed: in .columns of "):
        draw_lengths({"dist": "empirical", "path": str(path), "column": "inn"}, 1, 5, seed=1)


def test_predictions_have_the_error_asked_for() -> None:
    output = np.full(100_000, 400)
    exact = predict_lengths(PredictionSpec(), output, seed=1)
    assert np.array_equal(exact, output)
    guess = predict_lengths(PredictionSpec(cv=0.5, bias=1.2), output, seed=1)
    assert guess.mean() == pytest.approx(480, rel=0.01)
    assert guess.std() / guess.mean() == pytest.approx(0.5, rel=0.03)
    assert np.array_equal(guess, predict_lengths(PredictionSpec(cv=0.5, bias=1.2), output, seed=1))
    assert (predict_lengths(PredictionSpec(cv=3.0), np.ones(1000, dtype=np.int64), seed=1) >= 1).all()


@pytest.mark.parametrize(
    ("law", "words"),
    [
        ({"dist": "lognorm"}, ["did you mean 'lognormal'"]),
        ({"dist": "lognormal", "mean": 48}, ["'cv' is missing"]),
        ({"dist": "geometric", "mean": 0.5}, ["mean", "0.5", "greater than or equal to 1"]),
        ({"dist": "uniform", "min": 9, "max": 3}, ["min = 9", "max = 3"]),
        ({"dist": "exponential", "mean": 3, "min": 1000}, ["almost no length"]),
        ({"dist": "pareto", "alpha": 1}, ["'max' is missing"]),
        ({"dist": "fixed", "value": 2.5}, ["value", "2.5"]),
        (0, ["value", "found 0"]),
        ("many", ["'many'", "dist"]),
    ],
)
def test_a_mistake_names_key_found_and_allowed(law: Any, words: list[str]) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_lengths(law)
    assert all(word in str(caught.value) for word in words), caught.value
