"""What a search thinks of a combination whose figure it has, and what a further figure changes."""

from __future__ import annotations

import math

import pytest

from advisor.search.propose.proposal import SamplerName
from advisor.search.propose.standing import Standing
from advisor.search.study.sampler import Proposer

from .synthetic import Instance, space


def searched(seed: int, trials: int, sampler: SamplerName = SamplerName.MODEL) -> tuple[Proposer, Instance]:
    instance = Instance(seed)
    one = Proposer(instance.space(), storage=None, study_name="s", maximize=(True,), seed=seed, sampler=sampler)
    for _ in range(trials):
        proposal = one.ask()
        assert proposal is not None
        rate = instance.measured(proposal.combination)
        one.tell(proposal, rate, {"outcome": float(rate is None)}, noise=instance.NOISE)
    return one, instance


def test_a_figure_as_sure_as_what_was_thought_moves_it_half_way() -> None:
    before = Standing(mean=-math.log(100.0), deviation=0.02)
    after = before.after(110.0, 0.02)
    assert before.score == pytest.approx(100.0)
    assert after.score == pytest.approx(math.sqrt(100.0 * 110.0))
    assert after.deviation == pytest.approx(0.02 / math.sqrt(2))


def test_everything_that_ran_has_a_standing_near_its_figure_and_what_failed_has_none() -> None:
    one, instance = searched(0, 20)
    standings = one.standings()
    able = [
        each.choice.combination for each in one._model.observations(one._study) if each.counts and not each.under_way
    ]
    assert set(standings) == {each.label for each in able}
    for combination in able:
        seconds = instance.seconds(combination)
        assert seconds is not None
        standing = standings[combination.label]
        assert standing.score == pytest.approx(1 / seconds, rel=0.1)
        assert 0 < standing.deviation < 0.05


def test_what_was_not_tried_has_a_standing_where_it_is_asked_for_with_more_doubt() -> None:
    one, instance = searched(0, 20)
    tried = one.standings()
    known = {each.choice.combination.label: each.choice.combination for each in one._model.observations(one._study)}
    leader = known[min(tried, key=lambda label: tried[label].mean)]
    others = [each for each in instance.space().neighbours(leader) if each.label not in known]
    standings = one.standings(others)
    assert standings.keys() == {*tried, *(each.label for each in others)}
    assert all(standings[each.label].deviation > standings[leader.label].deviation for each in others)
    assert all(standings[label] == standing for label, standing in tried.items())


def test_without_figures_or_with_samplers_of_optuna_or_with_two_objectives_nothing_is_thought() -> None:
    assert searched(0, 0)[0].standings() == {}
    assert searched(0, 6, SamplerName.TPE)[0].standings() == {}
    two = Proposer(space(), storage=None, study_name="s", maximize=(False, False))
    proposal = two.ask()
    assert proposal is not None
    two.tell(proposal, (1.0, 2.0))
    assert two.standings() == {}
