"""Words for what short steps showed."""

from __future__ import annotations

import pytest

from advisor.decide.candidate import Candidate, Comparison, Role
from advisor.goal import Fidelity
from advisor.hardware.mesh import Mesh
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import label_words, use
from advisor.policy.policy import Policy
from advisor.report.wording import comparison_words, of_each_share, training_words
from advisor.search.space.space import Combination
from advisor.trial.outcome import Outcome


def comparison(speedup: Speedup | None) -> Comparison:
    return Comparison(
        speedup=speedup, micro_batch=4, at_batch=64, expected_samples_per_second=131.7, expected_error=0.06
    )


def test_what_was_measured_is_told_from_what_is_predicted() -> None:
    words = comparison_words(comparison(Speedup(value=1.234, low=1.2, high=1.27, rounds=4)))
    assert words == ("1.23 times plain training in turn at batch 4 (±2.8%); 132 samples/s predicted at its own batch")


def test_a_prediction_without_turns_has_its_error() -> None:
    assert comparison_words(comparison(None)) == "132 samples/s predicted at its own batch, ±6.0%"


def test_devices_that_divide_the_model_are_told_from_those_that_share_a_batch() -> None:
    cut = Policy(methods=(use("sliced"),), micro_batch=8, accumulation_steps=2, gpu_count=4, mesh=Mesh(tensor=2))
    candidate = Candidate(policy=cut, role=Role.SEARCHED, outcome=Outcome.OK, fidelity=Fidelity.ROUNDING)
    assert training_words(candidate) == "sliced at batch 8 x 2 on 4 devices (2 data x 2 tensor)"
    assert Combination.of(cut).words == "sliced on 4 devices (2 data x 2 tensor)"
    assert of_each_share(cut) == " of each share"
    shared = Policy(methods=(use("ddp"),), micro_batch=8, gpu_count=4)
    assert Combination.of(shared).words == "ddp on 4 devices"
    assert of_each_share(shared) == " of each device"
    assert of_each_share(Policy(methods=(use("sliced"),), micro_batch=8, gpu_count=2, mesh=Mesh(tensor=2))) == ""


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("fused_optimizer + precision(dtype=bf16)", "fused_optimizer + precision bf16"),
        (
            "ddp(bucket_views=True, static_graph=False) on 2 devices",
            "ddp bucket_views=True static_graph=False on 2 devices",
        ),
        ("checkpoint(every=2) on 4 devices (2 data x 2 tensor)", "checkpoint every=2 on 4 devices (2 data x 2 tensor)"),
        ("plain", "plain"),
    ],
)
def test_a_recorded_name_is_said_as_the_tables_say_it(label: str, words: str) -> None:
    assert label_words(label) == words
