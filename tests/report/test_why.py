from __future__ import annotations

from collections.abc import Sequence

import msgspec

from advisor.decide.candidate import Candidate, Recommendation, Role
from advisor.decide.choose import choose
from advisor.decide.confirmation import Confirmation
from advisor.goal import Fidelity, Goal
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import MethodSetting, use
from advisor.report.why import explain, explained
from advisor.trial.outcome import Outcome
from tests.decide.examples import GIB, baseline, goal, in_short_steps, lost, measured, measurement, on

from .scenario import BF16, CHECKPOINT, recommendation


def decide(candidates: Sequence[Candidate], aim: Goal | None = None, untried: int = 0) -> Recommendation:
    return choose(
        candidates, aim or goal(), refused_settings={}, untried=untried, stopped_because="every policy was tried"
    )


def why(candidates: Sequence[Candidate], aim: Goal | None = None, untried: int = 0) -> str:
    return " ".join(explain(decide(candidates, aim, untried), aim or goal()))


def test_the_whole_story_in_figures() -> None:
    text = " ".join(recommendation().why)
    assert (
        "Training with chunked_cross_entropy chunks=8 + precision bf16 at batch 48 runs 132 samples/s (±1.0%)." in text
    )
    assert "That is 2.15 times the baseline (plain training at batch 8: 61.3), where the noise is 1.4%." in text
    assert "It is 17% faster than the hand-tuned default (precision bf16 at batch 24: 112)." in text
    assert (
        "Faster by 0.3%, inside the noise of 1.4%, was chunked_cross_entropy chunks=8 + optimizer_in_backward" in text
    )
    assert "the winner is simpler (2 methods instead of 3)" in text
    assert "6.5% faster was adam_8bit + checkpoint every=2" in text
    assert "but loss drift 9.3% is above the tolerance 5.0%" in text
    assert "7.20 GiB is 90% of the 8.00 GiB limit: memory limits the batch" in text
    assert "its first losses differ by 0.4% (2.0% is tolerated)" in text
    assert "Not tried: 274 combinations of the space, because the time limit of 5m00s was reached." in text


def test_explaining_fills_in_the_recommendation() -> None:
    answer = decide([baseline(100)])
    assert answer.why == ()
    assert explained(answer, goal()).why == explain(answer, goal())


def test_no_method_is_a_good_answer_when_nothing_was_faster() -> None:
    text = why([baseline(100), measured(70, CHECKPOINT)])
    assert "That is the baseline itself, and nothing measured was faster: use no method." in text


def test_no_method_is_a_good_answer_when_the_gain_is_noise() -> None:
    text = why([baseline(100), measured(101, CHECKPOINT)])
    assert "the fastest, checkpoint every=2 at batch 8, led by 1.0%, inside the noise of 1.4%. Use no method." in text
    assert text.count("inside the noise") == 1, "and it is said once"


def test_a_smaller_batch_than_the_users_own_is_no_simpler_advice() -> None:
    text = why([baseline(100, micro_batch=32), measured(100.5, micro_batch=16)])
    assert "the fastest, plain training at batch 16, led by 0.5%, inside the noise of 1.4%. Use no method." in text


def test_a_winner_with_more_methods_than_what_it_ties_with_is_not_called_simpler() -> None:
    """Trap: "the winner is simpler (2 methods instead of 1)", as the other one had half of the user's batch."""
    both = measured(150, BF16, CHECKPOINT, micro_batch=32, fidelity=Fidelity.PRECISION)
    alone = measured(150.5, BF16, micro_batch=16, fidelity=Fidelity.PRECISION)
    text = why([baseline(100, micro_batch=32), both, alone])
    assert "the winner needs no smaller batch than the baseline's (16 instead of 32)." in text
    assert "is simpler" not in text


def test_a_tie_with_the_baseline_says_so() -> None:
    # The user's own setting has the worse class, as a batch that is split has with BatchNorm.
    split = msgspec.structs.replace(baseline(100), fidelity=Fidelity.MODEL)
    text = why([split, measured(100.5, micro_batch=16)], goal(fidelity=Fidelity.MODEL))
    assert "It ties with the baseline (plain training at batch 8: 100): +0.5%, inside the noise of 1.4%." in text


def test_a_baseline_that_could_not_be_measured_is_explained() -> None:
    text = why(
        [lost(Outcome.OUT_OF_MEMORY, role=Role.BASELINE, micro_batch=8, reason="8 do not fit."), measured(9, BF16)]
    )
    assert (
        "The baseline (plain training at batch 8) has no measurement; it ended as out of memory: 8 do not fit." in text
    )


def test_a_hand_tuned_default_that_could_not_be_measured_is_explained() -> None:
    text = why([baseline(100), lost(Outcome.CRASHED, BF16, role=Role.HAND_TUNED)])
    assert "The hand-tuned default (precision bf16 at batch 1) has no measurement; it ended as crashed." in text


def test_a_hand_tuned_winner_is_called_that() -> None:
    text = why([baseline(100), measured(150, BF16, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION)])
    assert "what an experienced person would pick without measuring" in text


def test_a_hand_tuned_default_that_ties_or_may_not_win() -> None:
    tuned = measured(150, BF16, CHECKPOINT, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION)
    close = measured(149, BF16, fidelity=Fidelity.PRECISION)
    assert "it is a tie: -0.7%, noise 1.4%" in why([baseline(100), tuned, close])
    beyond = why([baseline(100), tuned], goal(fidelity=Fidelity.EXACT))
    assert "(checkpoint every=2 + precision bf16 at batch 8) is 50% faster, but fidelity precision is beyond" in beyond


def test_a_larger_batch_than_the_users_own_is_said_to_change_the_training() -> None:
    larger = why([baseline(100), measured(200, BF16, micro_batch=64)])
    assert "A step has 64 samples instead of 8: choose a new learning rate" in larger
    assert "--global-batch 8" in larger
    assert "learning rate" not in why([baseline(100), measured(200, BF16)])


def test_a_smaller_batch_that_lost_in_turn_is_no_tie_however_wide_its_interval() -> None:
    gain = Speedup(value=1.25, low=1.15, high=1.35, rounds=4)
    smaller = msgspec.structs.replace(measured(160, BF16, spread=0.4), gain_of_larger=gain)
    text = why([baseline(100), measured(200, BF16, micro_batch=16, spread=0.4), smaller])
    assert "The runner-up, precision bf16 at batch 8, is 20% slower." in text


def test_a_simpler_one_that_lost_in_short_steps_is_said_to_have() -> None:
    simpler, winner = measured(190, BF16, spread=0.2), measured(200, BF16, CHECKPOINT, spread=0.2)
    short = in_short_steps(winner, simpler, Speedup(value=1.25, low=1.15, high=1.35, rounds=4), micro_batch=16)
    text = why([baseline(100), simpler, winner, short])
    assert "The runner-up, precision bf16 at batch 8, is equal within the noise of 28%" in text
    assert "of 28%; in short steps in turn at micro-batch 16 it was 20% slower." in text


def test_a_hand_tuned_default_that_lost_in_short_steps_is_said_to_have() -> None:
    tuned = measured(190, BF16, spread=0.2, role=Role.HAND_TUNED)
    winner = measured(200, BF16, CHECKPOINT, spread=0.2)
    short = in_short_steps(winner, tuned, Speedup(value=1.25, low=1.15, high=1.35, rounds=4), micro_batch=16)
    text = why([baseline(100), tuned, winner, short])
    assert "it is a tie: +5.3%, noise 28%; in short steps in turn at micro-batch 16 it was 25% faster." in text


def test_the_runner_up_lost_by_a_figure() -> None:
    text = why([baseline(100), measured(200, BF16), measured(150, CHECKPOINT)])
    assert "The runner-up, checkpoint every=2 at batch 8, is 25% slower." in text


def test_a_larger_batch_that_was_no_faster_shows_that_memory_is_not_the_limit() -> None:
    text = why([baseline(50), measured(200, BF16, micro_batch=16), measured(150, BF16, micro_batch=32)])
    assert "at batch 32 the same methods are 25% slower" in text


def test_a_larger_batch_on_another_number_of_devices_is_not_the_same() -> None:
    other = on(2, measured(150, BF16, micro_batch=32))
    assert "the same methods" not in why([baseline(50), measured(200, BF16, micro_batch=16), other])


def test_processes_that_share_memory_have_a_part_of_the_limit_each() -> None:
    shared = msgspec.structs.replace(goal(), shares_memory=True)
    pair = on(2, measured(200, BF16, peak=3 * GIB))
    assert "peak of 3.00 GiB is 75% of the 4.00 GiB limit" in why([baseline(50), pair], shared)
    assert "peak of 3.00 GiB is 38% of the 8.00 GiB limit" in why([baseline(50), pair])
    above = on(2, measured(200, BF16, peak=5 * GIB))
    assert "peak 5.00 GiB is above the limit 4.00 GiB" in why([baseline(50), above], shared)


def test_a_small_peak_is_not_the_limit() -> None:
    assert "memory does not limit the batch" in why([baseline(100, micro_batch=8), measured(70, CHECKPOINT, peak=GIB)])


def test_a_loss_that_was_not_compared_is_said() -> None:
    text = why([measured(100, BF16, fidelity=Fidelity.PRECISION, drift=None)])
    assert "its loss was not compared with plain training's" in text


def test_a_baseline_that_is_faster_and_may_not_win_is_explained() -> None:
    split = measured(90, micro_batch=4, accumulation_steps=4, fidelity=Fidelity.ROUNDING)
    text = why([baseline(100), split], goal(global_batch=16))
    assert "is 11% faster, but its global batch 8 is not the 16 that was asked for" in text
    assert "Plain training at batch 4 x 4" in text


def test_one_untried_combination_is_in_the_singular() -> None:
    assert "Not tried: 1 combination of the space" in why([baseline(100)], untried=1)
    assert "The search ended because every policy was tried." in why([baseline(100)])


def test_combinations_too_many_to_count_are_said_to_be_more_than_a_round_number() -> None:
    answer = decide([baseline(100)], untried=3_456_789)
    assert "Not tried: about 3.5 million combinations" in " ".join(explain(answer, goal()))
    bound = msgspec.structs.replace(answer, untried_is_bound=True)
    assert "Not tried: more than 3.4 million combinations" in " ".join(explain(bound, goal()))


def test_every_sentence_is_one_and_no_name_of_a_method_is_changed() -> None:
    for sentence in recommendation().why:
        assert sentence.endswith(".")
        assert "  " not in sentence
    assert "Chunked" not in " ".join(recommendation().why)


def test_an_answer_without_candidates_besides_the_winner_is_explained() -> None:
    answer = msgspec.structs.replace(decide([measured(10, CHECKPOINT)]), stopped_because="")
    text = " ".join(explain(answer, goal()))
    assert "The baseline was not measured." in text
    assert "because ." not in text


def test_what_the_process_held_is_said_where_it_is_known() -> None:
    candidate = measured(100, BF16, peak=GIB)
    assert candidate.measurement is not None
    memory = msgspec.structs.replace(candidate.measurement.memory, peak_resident_bytes=3 * GIB)
    known = msgspec.structs.replace(
        candidate, measurement=msgspec.structs.replace(candidate.measurement, memory=memory)
    )
    assert "limit (its process held 3.00 GiB, libraries included)" in why([baseline(50), known])
    assert "its process held" not in why([baseline(50), candidate])


def promise(value: float, spread: float, *, kept: float = 150.0) -> Confirmation:
    speedup = Speedup(value=value, low=value * (1 - spread), high=value * (1 + spread), rounds=6)
    return Confirmation(
        outcome=Outcome.OK,
        measurement=measurement(kept),
        promised_samples_per_second=150,
        speedup=speedup,
        promise=speedup,
    )


def test_what_was_confirmed_in_turn_is_promised_first_as_a_ratio_to_the_baseline() -> None:
    answer = decide([baseline(100), measured(150, BF16, fidelity=Fidelity.PRECISION)])
    confirmed = msgspec.structs.replace(answer, confirmation=promise(1.4, 0.03))
    first, second, *_ = explain(confirmed, goal())
    assert first == (
        "Training with precision bf16 at batch 8 is 1.40 times as fast as the baseline, ±3.0% (plain training at batch "
        "8), in turn with it in fresh processes."
    )
    assert second == "At the speed the machine had for the baseline, that is 140 samples/s instead of 100."
    assert "runs 150 samples/s" not in " ".join(explain(confirmed, goal())), "what the search saw is no promise"


def test_figures_of_two_moments_do_not_stand_side_by_side() -> None:
    """The promise's samples per second are its confirmation's: the hand-tuned default was measured before it."""
    fp16 = use("precision", dtype="fp16")
    tuned = measured(149, fp16, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION)
    answer = decide([baseline(100), measured(150, BF16, fidelity=Fidelity.PRECISION), tuned])
    against = "Against the hand-tuned default (precision fp16 at batch 8"
    assert f"{against}: 149) it is a tie" in " ".join(explain(answer, goal()))
    confirmed = msgspec.structs.replace(answer, confirmation=promise(0.7, 0.03))
    assert f"{against}) it is a tie" in " ".join(explain(confirmed, goal()))


def test_what_was_confirmed_without_turns_is_told_in_samples_per_second() -> None:
    answer = decide([baseline(100), measured(150, BF16, fidelity=Fidelity.PRECISION)])
    alone = msgspec.structs.replace(promise(1.4, 0.03), speedup=None, promise=None)
    for confirmation in (None, alone):
        text = " ".join(explain(msgspec.structs.replace(answer, confirmation=confirmation), goal()))
        assert "runs 150 samples/s (±1.0%). That is 1.50 times the baseline" in text


def test_a_faster_one_whose_confirmation_showed_no_gain_is_explained() -> None:
    no_gain = Speedup(value=1.01, low=0.98, high=1.04, rounds=8)
    led = msgspec.structs.replace(measured(150, CHECKPOINT), confirmed=no_gain)
    assert (
        "50% faster was checkpoint every=2 at batch 8, but its wrapper ran 1.01 times as fast as the baseline in turn "
        "with it (±3.0%), which is no gain beyond the noise."
    ) in why([baseline(100), led])


def making(candidate: Candidate, seconds: float) -> Candidate:
    assert candidate.measurement is not None
    return msgspec.structs.replace(
        candidate, measurement=msgspec.structs.replace(candidate.measurement, making_seconds=seconds)
    )


def test_data_that_takes_longer_than_the_step_is_the_bound() -> None:
    """Trap: 4 ms to load a sample; 21 times was promised, and 1.45 times came."""
    # 8 samples in 0.08 s, and 64 in 0.032 s: 20 times as many a second. With 4 ms for each sample 71 and 222 a second.
    plain, winner = making(baseline(100), 8 * 0.004), making(measured(2000, CHECKPOINT, micro_batch=64), 64 * 0.004)
    text = why([plain, winner])
    assert text.startswith(
        "Training with checkpoint every=2 at batch 64 is 3.11 times as fast as the baseline when both wait for their "
        "data, the bottleneck: make_batch takes 256 ms for 64 samples, longer than the step itself."
    )
    assert "Where batches arrive in time, training with checkpoint every=2 at batch 64 runs 2,000 samples/s" in text
    assert "make_batch takes" not in why([plain, making(winner, 0.03)])


def test_and_of_a_baseline_that_wins_its_whole_rate_is_said() -> None:
    text = why([making(baseline(100), 0.12), measured(70, CHECKPOINT)])
    assert text.startswith("Plain training at batch 8 does 40.0 samples/s when it waits for its data, the bottleneck")


def test_what_led_and_was_not_confirmed_is_no_proof_that_nothing_is_faster() -> None:
    """Trap: beside a busy core plain training at four times the batch was 162 % faster, and "nothing was"."""
    nothing = Speedup(value=1.63, low=0.4, high=6.0, rounds=3)
    led = msgspec.structs.replace(measured(262, BF16), confirmed=nothing)
    kept_out = msgspec.structs.replace(measured(146, CHECKPOINT), not_confirmed="the leader was not confirmed")
    text = why([baseline(100), led, kept_out])
    assert "what led during the search showed no gain beyond the noise when it was confirmed" in text
    assert "nothing measured was faster" not in text
    slower = msgspec.structs.replace(measured(90, CHECKPOINT), not_confirmed="the leader was not confirmed")
    assert "nothing measured was faster" in why([baseline(100), slower])


def test_what_led_and_whose_wrapper_failed_is_no_proof_that_nothing_is_faster() -> None:
    failed = msgspec.structs.replace(
        measured(262, BF16),
        outcome=Outcome.CRASHED,
        reason="its wrapper, run in a fresh process, ended as crashed: no space left.",
    )
    kept_out = msgspec.structs.replace(measured(146, CHECKPOINT), not_confirmed="no other was run")
    text = why([baseline(100), failed, kept_out])
    assert (
        "precision bf16 at batch 8 was faster in the search, but its wrapper, run in a fresh process, ended as "
        "crashed: no space left. Keep what you have."
    ) in text
    assert "nothing measured was faster" not in text


def test_a_winner_that_is_slower_than_the_hand_tuned_default_is_called_slower() -> None:
    tuned = measured(120, BF16, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION)
    answer = msgspec.structs.replace(decide([baseline(100), tuned, measured(130, CHECKPOINT)]), winner=baseline(100))
    text = " ".join(explain(answer, goal()))
    assert "slower than the hand-tuned default (precision bf16 at batch 8" in text


def test_a_gain_that_rests_on_what_else_runs_says_so() -> None:
    threads = MethodSetting(name="intraop_threads", parameters={"count": 1})
    said = "when that changes, measure again with another --output"
    assert said in " ".join(explain(decide([baseline(100), measured(300, threads)]), goal()))
    assert said not in " ".join(explain(decide([baseline(100), measured(300, CHECKPOINT)]), goal()))
