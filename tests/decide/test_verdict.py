"""What counts as a kept promise: bits for what promises bits, a class's own figures else, and chance is excused."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.decide.verdict import Kept, memory_check, speed_check, step_checks
from advisor.goal import Fidelity
from advisor.measure.fidelity import GradientError
from advisor.measure.in_turn import Speedup
from advisor.measure.step_record import StepRecord
from advisor.policy.file import Evidence
from advisor.policy.policy import Policy

PLAIN = StepRecord(losses=(4.0, 3.0, 2.0))
POLICY = Policy(micro_batch=4)


def record(*, loss: float = 0.0, gradient: float = 0.0, update: float = 0.0, **more: Any) -> StepRecord:
    """A run that is off by these shares."""
    return StepRecord(
        losses=tuple(one * (1 + loss) for one in PLAIN.losses),
        gradient=GradientError(error=gradient, cosine=1.0, norm_ratio=1.0),
        update_errors=(update, update, update),
        **more,
    )


def kept(fidelity: Fidelity, own: StepRecord, chance: StepRecord | None = None) -> dict[str, Kept]:
    return {check.name: check.kept for check in step_checks(POLICY, fidelity, PLAIN, own, chance)}


@pytest.mark.parametrize("off", ["loss", "gradient", "update"])
def test_the_same_bits_are_the_same_bits(off: str) -> None:
    assert set(kept(Fidelity.EXACT, record()).values()) == {Kept.YES}
    assert list(kept(Fidelity.EXACT, record(**{off: 1e-6})).values()).count(Kept.NO) == 1


def test_a_plain_loop_that_does_not_repeat_itself_asks_for_no_bits() -> None:
    found = kept(Fidelity.EXACT, record(gradient=1.9e-6), chance=record(gradient=1e-6))
    assert found["first gradient"] is Kept.YES
    assert kept(Fidelity.EXACT, record(gradient=2.1e-6), chance=record(gradient=1e-6))["first gradient"] is Kept.NO


@pytest.mark.parametrize(
    ("fidelity", "within", "beyond"),
    [
        (Fidelity.ROUNDING, {"loss": 4e-3, "gradient": 1e-3, "update": 0.04}, {"loss": 6e-3}),
        (Fidelity.ROUNDING, {}, {"gradient": 3e-3}),
        (Fidelity.ROUNDING, {}, {"update": 0.06}),
        (Fidelity.PRECISION, {"loss": 0.01, "gradient": 0.1, "update": 0.4}, {"gradient": 0.3}),
        (Fidelity.LOSSY, {"loss": 0.04, "gradient": 2.0, "update": 2.0}, {"loss": 0.06}),
    ],
)
def test_each_class_has_figures_of_its_own(
    fidelity: Fidelity, within: dict[str, float], beyond: dict[str, float]
) -> None:
    assert Kept.NO not in kept(fidelity, record(**within)).values()
    assert Kept.NO in kept(fidelity, record(**beyond)).values()


def test_what_changes_the_model_is_not_judged() -> None:
    assert set(kept(Fidelity.MODEL, record(loss=3.0, gradient=3.0, update=3.0)).values()) == {Kept.NOT_JUDGED}


def test_what_was_not_compared_says_why_and_is_not_judged() -> None:
    own = StepRecord(losses=PLAIN.losses, gradient_reason="it trains others", update_reason="so does its state")
    found = step_checks(POLICY, Fidelity.EXACT, PLAIN, own)
    assert [check.kept for check in found] == [Kept.YES, Kept.NOT_JUDGED, Kept.NOT_JUDGED]
    assert found[1].found == "not compared: it trains others"


def test_a_buffer_that_ends_otherwise_breaks_the_promise_of_the_same_training() -> None:
    own = record(other_buffers=("0.running_mean",))
    assert kept(Fidelity.EXACT, own)["buffers"] is Kept.NO
    assert kept(Fidelity.PRECISION, own)["buffers"] is Kept.NOT_JUDGED
    assert "buffers" not in kept(Fidelity.EXACT, own, chance=own), "the plain loop does not repeat it either"


def evidence(**changes: Any) -> Evidence:
    return Evidence(
        **{
            "goal": "faster",
            "date": "2026-01-01",
            "samples_per_second": 10.0,
            "relative_spread": 0.1,
            "peak_bytes": 1000,
            "memory_limit_bytes": 10_000,
            "fidelity": "exact",
            "tie": False,
            "trials": 1,
            "why": [],
            "speedup_over_baseline": (2.0, 1.8, 2.2),
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("peak", "same_device", "expected"),
    [(1100, True, Kept.YES), (1101, True, Kept.NO), (5000, False, Kept.NOT_JUDGED)],
)
def test_a_peak_may_be_a_tenth_above_the_promise(peak: int, same_device: bool, expected: Kept) -> None:
    assert memory_check(evidence(), peak, "", same_device=same_device).kept is expected


def test_the_larger_of_two_promised_peaks_counts() -> None:
    assert memory_check(evidence(confirmed_peak_bytes=2000), 2100, "", same_device=True).kept is Kept.YES


def speedup(low: float, high: float) -> Speedup:
    return Speedup(value=(low * high) ** 0.5, low=low, high=high, rounds=3)


@pytest.mark.parametrize(
    ("found", "same_device", "expected"),
    [
        (speedup(1.5, 1.81), True, Kept.YES),
        (speedup(1.5, 1.79), True, Kept.NO),
        (speedup(3.0, 4.0), True, Kept.YES),
        (speedup(0.1, 0.2), False, Kept.NOT_JUDGED),
        (None, True, Kept.NOT_JUDGED),
    ],
)
def test_a_speed_is_too_low_where_both_intervals_say_so(
    found: Speedup | None, same_device: bool, expected: Kept
) -> None:
    assert speed_check(evidence(), 10.0, found, same_device=same_device).kept is expected


def test_a_file_written_by_hand_promises_no_figures() -> None:
    assert memory_check(None, 1, "", same_device=True).kept is Kept.NOT_JUDGED
    assert speed_check(None, 1.0, speedup(1.0, 2.0), same_device=True).kept is Kept.NOT_JUDGED
    assert speed_check(evidence(speedup_over_baseline=None), 1.0, None, same_device=True).kept is Kept.NOT_JUDGED


def test_a_speedup_is_over_what_the_policy_was_compared_with() -> None:
    found = speed_check(evidence(), 10.0, speedup(1.9, 2.1), "the baseline (adafactor)", same_device=True)
    assert "times the baseline (adafactor)" in found.found
