from __future__ import annotations

import msgspec
import pytest

from advisor.methods.base import Saves
from advisor.methods.setting import use
from advisor.phase import Phase
from advisor.predict.roofline import PredictedStep, predict_step
from advisor.predict.step_work import Kind
from advisor.report import why_time
from advisor.report.why_time import explain_time, time_sentence
from tests.predict.rates import group, rates, work_of

# For each sample 10 s of products forward and 20 backward, and 30 s of bytes in every optimizer step.
FORWARD = group(Phase.FORWARD, flops=(0, 1000), read_bytes=10.0, launches=1.0)
BACKWARD = group(Phase.BACKWARD, flops=(0, 2000), read_bytes=10.0, launches=1.0)
OPTIMIZER = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=200.0, written_bytes=100.0, launches=4.0)


def step(*groups, batch: int = 1) -> PredictedStep:  # type: ignore[no-untyped-def]
    return predict_step(work_of(*groups), batch, rates())


PLAIN = step(FORWARD, BACKWARD, OPTIMIZER)


def test_where_the_time_of_a_step_goes() -> None:
    assert time_sentence(PLAIN, "plain training") == (
        "Predicted from the work of its operators, plain training at batch 1 spends 50% in the optimizer step, bound "
        "by memory bandwidth; 33% in the backward pass, bound by compute; 17% in the forward pass, bound by compute. "
        "It makes 9.38 floating-point operations for each byte that it moves."
    )


def test_published_rates_are_said_to_be_published() -> None:
    published = msgspec.structs.replace(PLAIN, measured_rates=False)
    assert time_sentence(published, "plain training").startswith("Predicted at published peak rates from")


def test_fewer_bytes_in_a_phase_that_they_bind() -> None:
    smaller = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=50.0, written_bytes=25.0, launches=4.0)
    (_, relief) = explain_time(PLAIN, step(FORWARD, BACKWARD, smaller), [use("adam_8bit")])
    assert relief == (
        "For each sample the optimizer step is predicted to take 7.50 s instead of 30.0 s, with 75 B moved instead of "
        "300 B (adam_8bit lowers optimizer state)."
    )


def test_the_credit_is_what_methods_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are called: nothing here knows a name."""
    declared = {
        "one": frozenset({Saves.GRADIENTS, Saves.ACTIVATIONS}),
        "two": frozenset({Saves.LOGITS}),
        "three": frozenset[Saves](),
    }

    class Declared:
        def __init__(self, name: str) -> None:
            self.name, self.saves = name, declared[name]

    monkeypatch.setattr(why_time, "get_method", Declared)
    fewer = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=100.0, launches=4.0)
    (_, relief) = explain_time(PLAIN, step(FORWARD, BACKWARD, fewer), [use("one"), use("two"), use("three")])
    assert relief.endswith("(one lowers gradients, three changes only the time).")


def test_the_same_operations_at_another_rate() -> None:
    faster = [
        group(Phase.FORWARD, flops=(0, 1000), number_format="bfloat16", launches=1.0),
        group(Phase.BACKWARD, flops=(0, 2000), number_format="bfloat16", launches=1.0),
    ]
    (_, relief) = explain_time(PLAIN, step(*faster, OPTIMIZER), [use("precision", dtype="bf16")])
    assert "the backward pass is predicted to take 5.00 s instead of 20.0 s" in relief
    assert "with the same floating-point operations at another rate" in relief


def test_a_larger_batch_gets_its_own_credit() -> None:
    (_, relief) = explain_time(PLAIN, step(FORWARD, BACKWARD, OPTIMIZER, batch=10), [use("checkpoint", every=1)])
    assert relief == (
        "For each sample the optimizer step is predicted to take 3.00 s instead of 30.0 s: one step is shared by 10 "
        "samples instead of 1."
    )


def test_what_a_winner_pays() -> None:
    again = group(Phase.BACKWARD, flops=(0, 3000), read_bytes=10.0, launches=1.0)
    sentences = explain_time(PLAIN, step(FORWARD, again, OPTIMIZER, batch=10), [use("checkpoint", every=1)])
    assert len(sentences) == 3
    assert sentences[2] == (
        "In exchange the backward pass is predicted to take 30.0 s for each sample instead of 20.0 s, with 3,000 "
        "floating-point operations instead of 2,000."
    )


def test_a_phase_that_is_gone_was_moved_into_another() -> None:
    with_update = group(Phase.BACKWARD, Kind.OTHER, read_bytes=200.0, launches=4.0)
    _, relief, cost = explain_time(PLAIN, step(FORWARD, BACKWARD, with_update), [use("optimizer_in_backward")])
    assert relief == (
        "The work of the optimizer step is done within other phases (optimizer_in_backward lowers gradients)."
    )
    assert cost.startswith(
        "In exchange the backward pass is predicted to take 40.0 s for each sample instead of 20.0 s"
    )


def test_a_change_that_may_be_an_error_of_the_prediction_is_not_told() -> None:
    slightly = group(Phase.OPTIMIZER, Kind.OTHER, read_bytes=190.0, written_bytes=90.0, launches=4.0)
    assert len(explain_time(PLAIN, step(FORWARD, BACKWARD, slightly), [use("adam_8bit")])) == 1
