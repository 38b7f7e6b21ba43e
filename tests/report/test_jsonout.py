from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from advisor.decide.candidate import Recommendation
from advisor.errors import NothingFitsError
from advisor.report.jsonout import JSON_SCHEMA_VERSION, json_answer, json_error
from tests.decide.examples import GIB, goal

from .scenario import CPU, recommendation


def document(answer: Recommendation) -> dict[str, object]:
    text = json_answer(
        answer,
        workload="gpt2",
        goal=goal(),
        hardware=CPU,
        versions={"torch": "2.13.0"},
        files={"policy": Path("out/policy.yaml")},
        notes=("a note",),
    )
    loaded = json.loads(text)
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
    assert loaded["files"] == {"policy": "out/policy.yaml"}
    assert loaded["notes"] == ["a note"]
    assert loaded["versions"] == {"torch": "2.13.0"}


def test_without_a_baseline_there_is_no_gain() -> None:
    answer = msgspec.structs.replace(recommendation(), baseline=None)
    assert document(answer)["winner"]["gain_over_baseline"] is None  # type: ignore[index]


def test_an_error_is_a_document_too() -> None:
    loaded = json.loads(json_error(NothingFitsError("none fits below 1.00 GiB")))
    assert loaded == {
        "schema": JSON_SCHEMA_VERSION,
        "error": "NothingFitsError",
        "message": "none fits below 1.00 GiB",
    }
