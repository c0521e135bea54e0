"""The main job end to end on the real model: a study in, runs, statements and a report out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from analysis.littles_law import littles_law
from analysis.runs import Run, open_run


def measured(results: Path) -> Run:
    return open_run(results / "batching" / "load=0.6" / "0")


def test_every_request_that_arrived_is_accounted_for(smoke_results: Path) -> None:
    run = measured(smoke_results)
    rows = run.requests
    assert len(rows) == sum(run.meta["counts"].values())
    finished = rows[rows["finish_reason"] == "length"]
    assert (finished["output_tokens"] == finished["max_tokens"]).all()
    assert finished["finished_s"].notna().all()


def test_what_the_client_and_the_engine_saw_is_in_order(smoke_results: Path) -> None:
    rows = measured(smoke_results).requests
    rows = rows[rows["finish_reason"] == "length"]
    order = ["intended_s", "sent_s", "received_s", "scheduled_s", "emitted_first_s", "first_token_s", "finished_s"]
    assert (np.diff(rows[order].to_numpy(), axis=1) >= 0).all()


def test_every_token_of_every_request_was_computed_in_some_step(smoke_results: Path) -> None:
    run = measured(smoke_results)
    rows = run.requests[run.requests["finish_reason"] == "length"].set_index("request_id")
    computed = run.batch.groupby("request_id")["num_tokens"].sum()
    expected = rows["prompt_tokens"] - rows["cached_tokens"] + rows["output_tokens"] - 1
    assert (computed.loc[rows.index] == expected).all()
    assert (run.tokens.set_index("request_id").loc[rows.index, "token_s"].map(len) == rows["output_tokens"]).all()


def test_littles_law_closes_between_the_two_observers(smoke_results: Path) -> None:
    assert littles_law(measured(smoke_results)).verdict.startswith("closed")


def test_the_report_is_one_self_contained_page_with_figures(smoke_results: Path) -> None:
    page = (smoke_results / "report.html").read_text()
    for title in ("TTFT against load", "E2E against load", "Number in system over time"):
        assert title in page
    assert page.count("<svg") >= 3
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert list((smoke_results / "hdr").rglob("*.hgrm"))


def test_the_engine_ran_on_its_own_cores_and_said_what_it_was(smoke_results: Path) -> None:
    meta = measured(smoke_results).meta
    assert meta["fingerprints"]["execution"]["model"] == "smollm2-135m-instruct"
    assert meta["versions"]["torch"]
    generator, engine = set(meta["affinity"]["generator"]), set(meta["affinity"]["engine"])
    assert generator.isdisjoint(engine) or len(generator | engine) == 1
