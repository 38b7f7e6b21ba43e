"""What is known of a combination without a trial of it: the model learns, and nothing counts as tried."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from advisor.methods.setting import use
from advisor.search.propose.proposal import SamplerName
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.search.study.sampler import Proposer

from .synthetic import Instance, space

SPACE = space("precision", "small_adam", "swap", fractions=(1.0,))
ADAM = Combination((use("small_adam"),))


def proposer(of: ResolvedSpace = SPACE, *, storage: Path | None = None, seed: int = 0) -> Proposer:
    return Proposer(of, storage=storage, study_name="momadvise", maximize=(True,), seed=seed)


def trials_needed(instance: Instance, seed: int, *, compared: bool) -> int:
    """Trials until something within 2 % of the best was tried, with every setting compared beforehand or not."""
    one = proposer(instance.space(), seed=seed)
    for number in range(1, 41):
        proposal = one.ask()
        assert proposal is not None
        seconds, rate = instance.seconds(proposal.combination), instance.measured(proposal.combination)
        one.tell(proposal, rate, {"outcome": float(rate is None)})
        if seconds is not None and seconds <= instance.least / 0.98:
            return number
        if number == 1 and compared:
            for setting in (setting for axis in instance.axes for setting in axis.settings):
                alone = instance.measured(Combination((setting,)))
                if alone is not None:
                    one.learn(Combination((setting,)), alone, noise=instance.NOISE)
    return 41


def test_what_was_learned_counts_as_untried_and_is_proposed_all_the_same() -> None:
    one = proposer()
    before = one.untried
    one.learn(ADAM, 150.0, {"micro_batch": 8}, noise=0.01)
    assert (one.completed, one.untried) == (0, before)
    seen = []
    while (proposal := one.ask()) is not None:
        seen.append(proposal.combination.label)
        one.tell(proposal, 100.0)
    assert ADAM.label in seen
    assert len(seen) == SPACE.count


def test_a_method_that_was_compared_and_pays_is_among_the_next_proposals() -> None:
    one = proposer()
    first = one.ask()
    assert first is not None
    one.tell(first, 100.0)
    one.learn(ADAM, 200.0, noise=0.01)
    proposal = one.ask()
    assert proposal is not None
    assert use("small_adam") in proposal.settings


def test_comparisons_of_methods_alone_save_trials() -> None:
    needed = {
        compared: statistics.median(trials_needed(Instance(seed), seed, compared=compared) for seed in range(12))
        for compared in (False, True)
    }
    assert needed[True] <= 6
    assert needed[True] < needed[False]


def test_it_is_no_trial_for_the_samplers_of_optuna() -> None:
    one = Proposer(SPACE, storage=None, study_name="s", maximize=(True,), sampler=SamplerName.TPE)
    before = len(one._study.trials)
    one.learn(ADAM, 150.0, noise=0.01)
    assert len(one._study.trials) == before


def test_a_continued_study_knows_it_and_still_counts_it_as_untried(tmp_path: Path) -> None:
    storage = tmp_path / "study.db"
    one = proposer(storage=storage)
    one.learn(ADAM, 150.0, {"micro_batch": 8, "largest_batch": 16}, noise=0.01)
    one.close()
    again = proposer(storage=storage)
    assert again.completed == 0
    (known,) = again._model.observations(again._study)
    assert (known.choice.combination, known.batch, known.largest_batch, known.noise) == (ADAM, 8, 16, 0.01)
    assert not known.tried
    assert not known.counts
    again.close()


def test_what_is_to_be_learned_is_a_finite_score_of_a_combination_of_the_space() -> None:
    one = proposer()
    with pytest.raises(AssertionError, match="finite scores"):
        one.learn(ADAM, float("nan"), noise=0.01)
    with pytest.raises(AssertionError, match="one score"):
        one.learn(ADAM, (1.0, 2.0), noise=0.01)


def observed(one: Proposer) -> dict[str, tuple[bool, bool]]:
    """Label -> whether it ran, and whether it may be the answer, of every combination that a forecast was told of."""
    known = [each for each in one._model.observations(one._study) if each.logs is not None]
    return {each.choice.combination.label: (each.ran, each.counts) for each in known}


@pytest.mark.parametrize(
    ("violated", "by_chance", "ran"),
    [("fidelity", False, False), ("outcome", False, False), ("memory", False, True), ("outcome", True, True)],
)
def test_a_forecast_that_was_not_kept_is_neither_the_answer_nor_what_clears_a_broken_method(
    tmp_path: Path, violated: str, by_chance: bool, ran: bool
) -> None:
    storage = tmp_path / "study.db"
    one = proposer(storage=storage)
    promised: dict[str, float] = {}
    for rate in (100.0, 300.0):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, rate, {"outcome": 0.0})
        promised[proposal.combination.label] = rate
    plain, fast = promised
    assert observed(one) == {plain: (True, True), fast: (True, True)}
    one.rule_out(proposal.combination, violated, {"reason": "its gradient is off"}, by_chance=by_chance)
    expected = {plain: (True, True), fast: (ran, False)}
    assert observed(one) == expected
    assert (one.completed, one.gain_left()) == (2, None)
    one.close()
    again = proposer(storage=storage)
    assert observed(again) == expected, "a continued study knows it too"
    again.close()


def test_what_is_measured_after_it_was_ruled_out_counts_again() -> None:
    one = proposer()
    one.rule_out(ADAM, "outcome", {}, by_chance=True)
    while (proposal := one.ask()) is not None:
        one.tell(proposal, 100.0, {"outcome": 0.0})
    assert observed(one)[ADAM.label] == (True, True)


def test_settings_of_what_trains_wrongly_are_avoided_although_short_steps_promised_much_of_them() -> None:
    """The trap: the promise stays the least cost, so that the search goes on near it and then expects nothing."""
    spoiled = use("small_adam")
    one = proposer(space("precision", "small_adam", "swap", "checkpoint", fractions=(1.0,)))
    tried: list[bool] = []
    while (proposal := one.ask()) is not None and len(tried) < 8:
        tried.append(spoiled in proposal.settings)
        one.tell(proposal, 200.0 if tried[-1] else 100.0, {"outcome": 0.0})
        if tried[-1]:
            one.rule_out(proposal.combination, "fidelity", {}, by_chance=False)
    assert sum(tried) <= 3, "a few are enough to know it"
