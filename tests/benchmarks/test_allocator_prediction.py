"""What the page says of predictions on a device and by a profile."""

from __future__ import annotations

import itertools
import statistics

import msgspec
import pytest

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.predict.prediction import Affine, MemoryPrediction, Reserved
from benchmarks import allocator_prediction as table
from benchmarks.allocator_page import AIMS, BATCHES, POLICIES, Case, errors_of, page
from benchmarks.allocator_prediction import predicted

MADE_UP = Case(
    model="a model",
    policy="plain",
    batch=4,
    allocated=1000,
    reserved=2000,
    on_device=(1010, 1900),
    by_profile=(900, 2000),
    device="a GPU",
    versions={"torch": "2.14"},
)


def row(text: str, heading: str, name: str) -> list[str]:
    section = text[text.index(f"## {heading}") :]
    line = next(line for line in section.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_errors_are_relative_to_what_the_allocator_took() -> None:
    text = page([MADE_UP])
    assert row(text, "On the device", "a model") == [
        "a model",
        "1",
        "1.00%",
        "+1.00%",
        "+1.00%",
        "5.00%",
        "-5.00%",
        "-5.00%",
    ]
    assert row(text, "By", "**all**")[2:] == ["10.00%", "-10.00%", "-10.00%", "0.00%", "+0.00%", "+0.00%"]
    assert "Largest errors, reserved: -5.00% a model, plain, batch 4." in text


def test_what_was_not_predicted_is_named() -> None:
    refused = Case(model="another", policy="chunked loss", batch=4, why_not="no such loss", device="a GPU", versions={})
    text = page([MADE_UP, refused])
    assert "- another, chunked loss, batch 4: no such loss" in text
    assert "- another, chunked loss, batch 12: not measured" in text
    assert row(text, "On the device", "**all**")[1] == "1"


def test_the_replay_of_the_segments_in_use_is_what_is_predicted() -> None:
    replays = tuple(
        Reserved(
            expandable=expandable, micro_batch=4, peak_bytes=20 + expandable, allocated_bytes=10 + expandable,
            largest_batch=4, largest_peak_bytes=20,
        )
        for expandable in (False, True)
    )  # fmt: skip
    prediction = MemoryPrediction(moments=(), activations=Affine(0, 0), traced_at=(2, 4), reserved=replays)
    assert predicted(prediction, Policy(micro_batch=4)) == (10, 20)
    assert predicted(prediction, Policy(methods=(use("expandable_segments"),), micro_batch=4)) == (11, 21)


def test_every_model_is_a_workload() -> None:
    assert len(table.MODELS) >= 12
    for model in table.MODELS:
        assert table.source_of(model).name == model


class TestTheRecordedFigures:
    CASES = tuple(
        msgspec.json.decode(line, type=Case)
        for line in table.ROOT.joinpath("docs/results/allocator-prediction.jsonl").read_bytes().splitlines()
    )

    def test_there_is_a_row_for_every_model_policy_and_batch(self) -> None:
        rows = {(case.model, case.policy, case.batch) for case in self.CASES}
        assert rows == set(itertools.product(table.MODELS, POLICIES, BATCHES))
        assert all(case.why_not or (case.on_device and case.by_profile) for case in self.CASES)

    @pytest.mark.parametrize("side", ["on_device", "by_profile"])
    def test_they_meet_the_aims(self, side: str) -> None:
        errors = [errors_of(case, side) for case in self.CASES if getattr(case, side) is not None]
        for of_kind, (median, worst) in zip(zip(*errors, strict=True), AIMS.values(), strict=True):
            assert statistics.median(map(abs, of_kind)) <= median
            assert max(map(abs, of_kind)) <= worst
