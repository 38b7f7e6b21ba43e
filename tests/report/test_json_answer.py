from __future__ import annotations

import json

import msgspec
import pytest

from advisor.decide.candidate import Recommendation
from advisor.errors import NothingFitsError
from advisor.goal import Goal
from advisor.report.json_documents import JSON_SCHEMA_VERSION, json_answer, json_error
from tests.decide.examples import GIB, goal

from .cost_scenario import cost_goal, cost_recommendation
from .scenario import answered, recommendation


def document(answer: Recommendation, aim: Goal | None = None) -> dict[str, object]:
    loaded = json.loads(json_answer(answered(answer, aim or goal())))
    assert isinstance(loaded, dict)
    return loaded


def test_the_winner_stands_at_the_top_in_figures() -> None:
    loaded = document(recommendation())
    assert loaded["schema"] == JSON_SCHEMA_VERSION
    winner = loaded["winner"]
    assert isinstance(winner, dict)
    assert winner["label"] == "chunked_cross_entropy(chunks=8) + precision(dtype=bf16)"
    assert winner["methods"][1] == {"name": "precision", "parameters": {"dtype": "bf16"}}
    assert (winner["micro_batch"], winner["accumulation_steps"]) == (48, 1)
    assert winner["samples_per_second"] == 131.7
    assert winner["gain_over_baseline"] == pytest.approx(131.7 / 61.3 - 1)
    assert (winner["fidelity"], winner["loss_drift"], winner["tie"]) == ("precision", 0.0042, False)


def test_the_peak_to_plan_with_is_the_larger_of_search_and_confirmation() -> None:
    assert document(recommendation())["winner"]["peak_bytes"] == int(7.3 * GIB)  # type: ignore[index]
    assert document(recommendation(confirmation=None))["winner"]["peak_bytes"] == int(7.2 * GIB)  # type: ignore[index]


def test_everything_that_was_tried_can_be_read_back() -> None:
    loaded = document(recommendation())
    assert msgspec.convert(loaded["recommendation"], Recommendation) == recommendation()
    assert loaded["files"] == {
        "policy": "out/policy.yaml",
        "wrapper": "out/wrapper.py",
        "study": "out/study.db",
    }
    assert loaded["notes"] == ["a note"]
    assert loaded["versions"] == {"torch": "2.13.0"}


def test_without_a_baseline_there_is_no_gain() -> None:
    answer = msgspec.structs.replace(recommendation(), baseline=None)
    assert document(answer)["winner"]["gain_over_baseline"] is None  # type: ignore[index]


def test_the_least_cost_has_its_frontier_and_its_price() -> None:
    loaded = document(cost_recommendation(), cost_goal())
    winner, answer = loaded["winner"], loaded["recommendation"]
    assert isinstance(winner, dict)
    assert isinstance(answer, dict)
    assert winner["gpu_count"] == 4
    assert (winner["latency_seconds"], winner["cost_usd"]) == pytest.approx((0.301, 0.001204))
    assert winner["gain_over_baseline"] == pytest.approx(1.92 / 1.204 - 1)
    frontier = answer["frontier"]
    assert [point["policy"]["gpu_count"] for point in frontier["points"]] == [1, 2, 4]
    assert (frontier["pick"], frontier["knee"]) == (2, 2)
    assert frontier["dominated"][0]["by"] == 0
    assert loaded["goal"]["price"]["usd_per_hour"] == 3.6  # type: ignore[index]


def test_other_goals_have_no_cost_and_no_frontier() -> None:
    loaded = document(recommendation())
    assert loaded["winner"]["cost_usd"] is None  # type: ignore[index]
    assert loaded["recommendation"]["frontier"] is None  # type: ignore[index]


def test_an_error_is_a_document_too() -> None:
    loaded = json.loads(json_error(NothingFitsError("none fits below 1.00 GiB")))
    assert loaded == {
        "schema": JSON_SCHEMA_VERSION,
        "error": "NothingFitsError",
        "message": "none fits below 1.00 GiB",
    }
