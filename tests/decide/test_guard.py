"""What a comparison with the reference run does to a candidate: its measured class, and why it may not win."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.decide.choose import choose
from advisor.decide.eligible import pace, why_not_eligible, worth_checking
from advisor.decide.guard import comparison_evidence, ends_clearly_worse, observed_class, why_worse
from advisor.goal import Fidelity, Goal
from advisor.measure.fidelity import (
    NOT_FINITE,
    FidelityMeasurement,
    FidelityRecord,
    GradientError,
    NoiseFloor,
    StateError,
    compared,
    noise_floor,
)
from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from tests.decide.examples import baseline, goal, measured

BF16, CHECKPOINT = use("precision", dtype="bf16"), use("checkpoint", every=1)


def error(share: float, norm_ratio: float = 1.0) -> GradientError:
    return GradientError(error=share, cosine=1.0, norm_ratio=norm_ratio)


def found(drift: float = 0.0, *, excess: float = 0.0, **changes: Any) -> FidelityMeasurement:
    """The reference run went from 5 to 4."""
    fields: dict[str, Any] = {"learned": 1.0, "gradient": None, **changes}
    return FidelityMeasurement(
        steps=30,
        loss_drift=drift,
        final_loss=4.0 + excess,
        exact_final_loss=4.0,
        reference="plain",
        micro_batch=2,
        **fields,
    )


def chance(drift: float = 0.0, *, gap: float = 0.0, gradient: GradientError | None = None) -> NoiseFloor:
    return NoiseFloor(loss_drift=drift, final_loss_gap=gap, gradient=gradient)


@pytest.mark.parametrize(
    ("drift", "observed"),
    [
        (0.0, Fidelity.PRECISION),
        (0.01, Fidelity.PRECISION),
        (0.04, Fidelity.LOSSY),
        (0.4, Fidelity.MODEL),
    ],
)
def test_a_loss_that_drifts_further_makes_the_next_class_that_admits_it(drift: float, observed: Fidelity) -> None:
    assert observed_class(Fidelity.PRECISION, found(drift)) is observed
    assert observed_class(Fidelity.MODEL, found(drift)) is Fidelity.MODEL, "what is declared is never improved on"


@pytest.mark.parametrize(
    ("share", "observed"),
    [(1e-5, Fidelity.PRECISION), (0.1, Fidelity.PRECISION), (0.3, Fidelity.LOSSY)],
)
def test_so_does_the_first_gradient(share: float, observed: Fidelity) -> None:
    assert observed_class(Fidelity.PRECISION, found(gradient=error(share))) is observed


@pytest.mark.parametrize(
    ("promised", "kept", "broken"), [(Fidelity.EXACT, 4e-4, 1e-3), (Fidelity.ROUNDING, 1e-3, 0.03)]
)
def test_a_promise_of_plain_trainings_own_gradient_that_is_not_kept_is_no_other_class(
    promised: Fidelity, kept: float, broken: float
) -> None:
    """Trap: a block with a generator of its own made "exact" checkpointing wrong by 84 %, and it was recommended."""
    assert observed_class(promised, found(kept)) is promised
    assert observed_class(promised, found(broken)) is None
    assert observed_class(promised, found(gradient=error(1e-5))) is promised
    assert observed_class(promised, found(gradient=error(0.84))) is None


TWICE = StateError(name="0.calls", change=2.0, exact=1.0)
MOVED = StateError(name="0.mean", change=0.5, exact=0.4)


@pytest.mark.parametrize("declared", [one for one in Fidelity if one is not Fidelity.MODEL])
def test_what_advances_twice_a_step_is_broken_in_every_class_but_that_of_another_model(declared: Fidelity) -> None:
    counted = found(state=(TWICE,))
    assert observed_class(declared, counted) is None
    assert why_worse(declared, counted).what == "a step changes 0.calls by 2, that of plain training by 1"
    assert observed_class(Fidelity.MODEL, counted) is Fidelity.MODEL


def test_statistics_may_move_otherwise_where_numbers_have_fewer_bits() -> None:
    moved = found(state=(MOVED,))
    assert observed_class(Fidelity.EXACT, moved) is None
    assert observed_class(Fidelity.ROUNDING, moved) is None
    assert observed_class(Fidelity.PRECISION, moved) is Fidelity.PRECISION


@pytest.mark.parametrize(
    ("by_chance", "observed"),
    [(0.44, None), (0.45, Fidelity.ROUNDING), (4.0, Fidelity.ROUNDING)],
    ids=["less", "half as much", "anything, as a clock"],
)
def test_what_chance_changes_as_much_is_excused(by_chance: float, observed: Fidelity | None) -> None:
    noise = NoiseFloor(
        loss_drift=0.0, final_loss_gap=0.0, state=(StateError(name="0.mean", change=by_chance, exact=0.4),)
    )
    assert observed_class(Fidelity.ROUNDING, found(state=(MOVED,), noise=noise)) is observed


def test_only_a_loss_that_ends_higher_is_broken() -> None:
    assert not ends_clearly_worse(found(excess=0.09))
    assert ends_clearly_worse(found(excess=0.11))
    assert not ends_clearly_worse(found(0.9, excess=-3.0)), "it learns faster: another training, not a broken one"
    assert observed_class(Fidelity.MODEL, found(0.4, excess=2.0)) is None


def test_where_little_was_learned_a_single_batch_decides_nothing() -> None:
    assert not ends_clearly_worse(found(excess=0.019, learned=0.01))
    assert ends_clearly_worse(found(excess=0.021, learned=0.01))
    assert not ends_clearly_worse(found(excess=0.019, learned=-0.5))


def test_a_gap_that_chance_makes_is_no_evidence() -> None:
    assert ends_clearly_worse(found(excess=0.3))
    assert not ends_clearly_worse(found(excess=0.3, noise=chance(gap=0.2)))
    assert observed_class(Fidelity.ROUNDING, found(0.03, noise=chance(0.03))) is Fidelity.ROUNDING
    other_masks = chance(gradient=error(0.6, 0.97))
    assert observed_class(Fidelity.ROUNDING, found(gradient=error(0.7, 1.03), noise=other_masks)) is Fidelity.ROUNDING


def test_chance_excuses_nothing_that_promises_equal_gradients() -> None:
    noise = chance(0.03, gradient=error(0.6))
    assert observed_class(Fidelity.EXACT, found(0.03, noise=noise)) is None
    assert observed_class(Fidelity.EXACT, found(gradient=error(0.5), noise=noise)) is None


def test_but_what_a_training_makes_of_sums_in_any_order_where_its_first_gradient_is_right() -> None:
    """A GPU's atomic sums differ by a rounding, which a training at the edge of stability amplifies."""
    right = found(0.03, gradient=error(1e-6), noise=chance(0.03))
    assert observed_class(Fidelity.EXACT, right) is Fidelity.EXACT


def test_other_random_numbers_do_not_make_a_gradient_longer() -> None:
    noise = chance(gradient=error(0.6, 0.97))
    too_long = found(gradient=error(0.3, 1.3), noise=noise)
    assert observed_class(Fidelity.PRECISION, too_long) is Fidelity.LOSSY
    worse = why_worse(Fidelity.PRECISION, too_long)
    assert worse is not None
    assert worse.what == "its first gradient is 1.3 times as long as the reference run's"


def test_where_one_rounding_of_float32_shows_16_bits_may_be_far_off() -> None:
    """The trap: BatchNorm over few values makes any gradient in bfloat16 look broken."""
    ill = found(0.006, gradient=error(0.9, 1.13))
    assert observed_class(Fidelity.PRECISION, ill) is Fidelity.LOSSY
    excused = found(0.006, gradient=error(0.9, 1.13), noise=chance(gradient=error(1e-5)))
    assert observed_class(Fidelity.PRECISION, excused) is Fidelity.PRECISION
    well = found(0.006, gradient=error(0.9, 1.13), noise=chance(gradient=error(5e-7)))
    assert observed_class(Fidelity.PRECISION, well) is Fidelity.LOSSY


@pytest.mark.parametrize(
    ("changes", "observed"),
    [
        ({}, Fidelity.PRECISION),
        ({"gradient": error(0.4)}, Fidelity.MODEL),
        ({"gradient": error(0.84), "noise": chance(0.04, gradient=error(1e-5))}, Fidelity.MODEL),
        ({"excess": 0.2}, None),
        ({"excess": -0.2}, Fidelity.MODEL),
        ({"noise": chance(0.04, gradient=error(0.3))}, Fidelity.MODEL),
        ({"noise": chance(0.0004, gradient=error(3e-7))}, Fidelity.MODEL),
    ],
    ids=[
        "sound",
        "wrong gradient",
        "wrong gradient where chance excuses it",
        "worse end",
        "lower end",
        "random masks, not rounding",
        "rounding hardly amplified",
    ],
)
def test_where_a_rounding_error_grows_to_a_drift_coarser_rounding_is_judged_by_gradient_and_end(
    changes: dict[str, Any], observed: Fidelity | None
) -> None:
    """Seen: a large learning rate and BatchNorm over two samples; bfloat16 was refused for curves 30 % apart."""
    comparison = {"gradient": error(0.03), "noise": chance(0.04, gradient=error(3e-7)), **changes}
    assert observed_class(Fidelity.PRECISION, found(0.3, **comparison)) is observed


@pytest.mark.parametrize(
    ("declared", "by_chance", "drift", "excess", "observed"),
    [
        (Fidelity.ROUNDING, 0.004, 0.1, 0.0, Fidelity.ROUNDING),
        (Fidelity.ROUNDING, 0.004, 0.13, 0.0, None),
        (Fidelity.ROUNDING, 0.004, 0.1, -0.2, None),
        (Fidelity.ROUNDING, 0.04, 0.45, 0.0, Fidelity.ROUNDING),
        (Fidelity.ROUNDING, 0.04, 0.89, 0.0, None),
        (Fidelity.EXACT, 0.004, 0.1, 0.0, None),
        (Fidelity.LOSSY, 0.004, 0.1, 0.0, Fidelity.MODEL),
    ],
)
def test_there_two_curves_of_plain_training_are_as_far_apart_as_their_rounding_has_it(
    declared: Fidelity, by_chance: float, drift: float, excess: float, observed: Fidelity | None
) -> None:
    """Measured: twenty runs one rounding apart drifted by 0.3 % to 37 %, one at a tenth of the rate by 89 %."""
    noise = chance(by_chance, gradient=error(3e-7))
    comparison = found(drift, excess=excess, gradient=error(3e-7), noise=noise)
    assert observed_class(declared, comparison) is observed


# ---- who may win


def guarded(candidate: Candidate, comparison: FidelityMeasurement) -> Candidate:
    return msgspec.structs.replace(candidate, guard=comparison)


def winner(*candidates: Candidate, aim: Goal | None = None) -> Candidate:
    answer = choose(
        [baseline(100), *candidates], aim or goal(), refused_settings={}, untried=0, stopped_because="it ended"
    )
    return answer.winner


def fast(comparison: FidelityMeasurement, *, fidelity: Fidelity = Fidelity.PRECISION, **changes: Any) -> Candidate:
    return guarded(measured(150, BF16, fidelity=fidelity, **changes), comparison)


def test_a_candidate_within_its_class_wins() -> None:
    good = fast(found(0.003, gradient=error(0.006)))
    assert winner(good) == good
    assert winner(good, aim=goal(fidelity=Fidelity.PRECISION)) == good


def test_beyond_its_class_it_wins_only_where_the_next_one_is_allowed() -> None:
    lossy = fast(found(0.04))
    assert winner(lossy, aim=goal(fidelity=Fidelity.LOSSY)) == lossy
    assert winner(lossy, aim=goal(fidelity=Fidelity.PRECISION)).role is Role.BASELINE
    assert why_not_eligible(lossy, goal(fidelity=Fidelity.PRECISION)) == (
        "over 30 steps its loss is up to 4.0% off the reference run's: above the tolerance of precision, 2.0%; "
        "--fidelity lossy would allow it"
    )


def test_broken_training_wins_under_no_ceiling() -> None:
    """The trap: by memory and speed alone the combination that destroys the loss would be recommended."""
    broken = fast(found(2.75, excess=11.2, began=5.0), fidelity=Fidelity.MODEL)
    everything = goal(fidelity=Fidelity.MODEL)
    assert winner(broken, aim=everything).role is Role.BASELINE
    assert why_not_eligible(broken, everything) == (
        "its loss is 15.2 after 30 steps, above where plain training began: training diverges from the reference "
        "(tolerated: 5)"
    )
    lossy = fast(found(2.75, excess=11.2), fidelity=Fidelity.MODEL)
    assert why_not_eligible(lossy, everything) == (
        "its loss ends 280% above the reference run's after 30 steps: training diverges from the reference "
        "(tolerated: a tenth of what "
        "that one learned (1))"
    )
    lost = fast(found(NOT_FINITE, excess=NOT_FINITE), fidelity=Fidelity.MODEL)
    assert why_not_eligible(lost, everything) == (
        "its loss became infinite or NaN within 30 steps: training diverges from the reference"
    )


def test_what_declares_to_change_what_is_learned_need_not_learn_as_fast() -> None:
    """The trap: LoRA trains a hundredth of the parameters, and within 30 steps learns next to nothing beside them."""
    everything = goal(fidelity=Fidelity.MODEL)
    slow = fast(found(10.41, excess=0.98, began=5.0), fidelity=Fidelity.MODEL)
    assert winner(slow, aim=everything) == slow
    assert winner(slow).role is Role.BASELINE, "under the default ceiling it may not win"
    other = fast(found(0.2, excess=0.98, began=5.0), fidelity=Fidelity.LOSSY)
    assert winner(other, aim=everything).role is Role.BASELINE, "who promises the same training must keep up"
    assert observed_class(Fidelity.MODEL, found(0.2, excess=1.02, began=5.0)) is Fidelity.MODEL, "half a percent"
    assert observed_class(Fidelity.MODEL, found(0.2, excess=1.03, began=5.0)) is None
    assert observed_class(Fidelity.MODEL, found(0.2, excess=1.3, began=5.0, noise=chance(gap=0.2))) is Fidelity.MODEL


def test_an_exact_method_that_is_not_exact_is_caught() -> None:
    wrong = guarded(measured(150, CHECKPOINT), found(0.001, gradient=error(0.4)))
    assert winner(wrong, aim=goal(fidelity=Fidelity.ROUNDING)).role is Role.BASELINE


def test_the_comparison_decides_and_the_first_losses_are_only_a_first_look() -> None:
    changed = measured(150, BF16, fidelity=Fidelity.MODEL, drift=0.3)
    aim = goal(fidelity=Fidelity.MODEL)
    assert winner(changed, aim=aim).role is Role.BASELINE
    assert winner(guarded(changed, found(0.3, excess=-0.1)), aim=aim).guard is not None


# ---- who is compared before it sets the pace


def test_what_would_lead_and_is_not_exact_is_compared_before_it_sets_the_pace() -> None:
    leader = measured(150, BF16, fidelity=Fidelity.PRECISION)
    assert worth_checking(leader, [baseline(100)], goal())
    assert not worth_checking(leader, [baseline(200)], goal())
    assert not worth_checking(fast(found()), [baseline(100)], goal()), "it was compared"
    broken = fast(found(0.5, excess=2.0))
    assert pace([baseline(100), broken], goal(), 1) == 100


def test_an_exact_candidate_is_compared_only_when_its_first_losses_are_not() -> None:
    assert not worth_checking(measured(150, CHECKPOINT), [baseline(100)], goal())
    assert worth_checking(measured(150, CHECKPOINT, drift=0.01), [baseline(100)], goal())


def test_what_cannot_win_anyway_is_not_compared() -> None:
    leader = measured(150, BF16, fidelity=Fidelity.LOSSY)
    assert not worth_checking(leader, [baseline(100)], goal(fidelity=Fidelity.PRECISION))
    early = measured(150, BF16, fidelity=Fidelity.LOSSY, stop_reason=StopReason.OUTPACED)
    assert not worth_checking(early, [baseline(100)], goal())
    lost = measured(150, BF16, fidelity=Fidelity.LOSSY, drift=NOT_FINITE)
    assert not worth_checking(lost, [baseline(100)], goal())


def test_the_evidence_has_the_figures_and_the_class_that_they_are_within() -> None:
    evidence = comparison_evidence(fast(found(0.04, gradient=error(0.1))))
    assert evidence is not None
    assert (evidence.steps, evidence.loss_drift, evidence.final_loss_ratio, evidence.learned) == (30, 0.04, 1.0, 1.0)
    assert (evidence.gradient_error, evidence.gradient_cosine, evidence.reference) == (0.1, 1.0, "plain")
    assert evidence.observed_fidelity == "lossy"
    assert comparison_evidence(baseline(100)) is None


# Recorded: ResNet-50 at two samples a batch, four batches in turn, with a rate for 16. Its loss jumps up and down.
_JUMPING = (
    *(6.25, 8.56, 5.74, 14.74, 23.55, 4.45, 6.48, 5.86, 19.86, 26.03, 2.42, 14.12, 17.02, 19.09, 17.8),
    *(22.57, 18.25, 0.89, 7.21, 8.26, 13.22, 6.02, 3.38, 0.88, 2.31, 7.45, 0.0, 8.53, 3.58, 0.0),
)
_JUMPING_BY_CHANCE = (
    *(6.25, 8.66, 6.18, 14.5, 24.21, 4.46, 3.88, 4.01, 22.8, 25.97, 5.99, 15.25, 21.12, 27.11, 6.26),
    *(0.02, 14.63, 6.27, 1.07, 27.85, 0.0, 15.35, 0.01, 13.41, 9.35, 3.38, 0.18, 3.79, 0.0, 1.09),
)
_JUMPING_IN_BF16 = (
    *(6.52, 8.97, 6.02, 14.61, 23.91, 4.04, 4.52, 5.98, 25.22, 26.59, 10.63, 6.59, 21.41, 13.49, 11.88),
    *(15.09, 10.78, 8.75, 2.93, 0.03, 1.68, 5.53, 10.33, 20.25, 2.75, 6.0, 0.16, 30.94, 0.0, 0.0),
)


def test_where_the_reference_run_jumps_up_and_down_a_loss_that_ends_higher_by_as_much_is_not_broken() -> None:
    """The trap: two runs of plain training ended alike by luck, so that chance seemed to explain nothing."""
    exact, chance, own = (
        FidelityRecord(losses=losses, distinct_batches=4) for losses in (_JUMPING, _JUMPING_BY_CHANCE, _JUMPING_IN_BF16)
    )
    noise = noise_floor(chance, exact)
    beside = compared(own, exact, reference="plain", micro_batch=2)
    assert noise is not None
    assert beside is not None
    by_luck = msgspec.structs.replace(noise, final_loss_error=0.0)
    assert ends_clearly_worse(msgspec.structs.replace(beside, noise=by_luck))
    assert not ends_clearly_worse(msgspec.structs.replace(beside, noise=noise))
    worse = msgspec.structs.replace(beside, final_loss=beside.final_loss + 10, noise=noise)
    assert ends_clearly_worse(worse), "what chance does is measured, and not anything goes"


def test_other_random_numbers_excuse_a_length_that_the_one_other_run_happened_not_to_show() -> None:
    """Seen with other dropout masks: 56 % off and 2.7 % shorter, where the other run was 58 % off and 0.9 % shorter."""
    masks = chance(gradient=error(0.58, 0.991))
    assert observed_class(Fidelity.ROUNDING, found(gradient=error(0.56, 0.973), noise=masks)) is Fidelity.ROUNDING
    too_long = found(gradient=error(0.6, 1.3), noise=masks)
    assert observed_class(Fidelity.ROUNDING, too_long) is not Fidelity.ROUNDING, "a gradient that is scaled wrongly"
    little = chance(gradient=error(0.15, 1.0))
    assert observed_class(Fidelity.ROUNDING, found(gradient=error(0.15, 1.02), noise=little)) is not Fidelity.ROUNDING
