from __future__ import annotations

import logging
import random
import sqlite3
import statistics
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import optuna
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from advisor.errors import OutputFolderError
from advisor.methods.setting import use
from advisor.search.propose.model_sampler import ModelSampler
from advisor.search.space.space import ResolvedSpace
from advisor.search.study.sampler import Proposal, Proposer

from .synthetic import rate, recipe, space

SMALL = ("precision", "small_adam")
HAND_TUNED = recipe("hand-tuned default", use("precision", dtype="bf16"), hand_tuned=True)
ADAM = recipe("8-bit Adam", use("small_adam"))


def proposer(
    of: ResolvedSpace, storage: Path | None = None, *, seed: int = 0, maximize: tuple[bool, ...] = (True,)
) -> Proposer:
    return Proposer(of, storage=storage, study_name="momadvise", maximize=maximize, seed=seed)


def point(proposal: Proposal) -> tuple[str, float]:
    return " + ".join(one.label for one in proposal.settings), proposal.batch_fraction


def run_to_the_end(one: Proposer) -> list[Proposal]:
    proposals = []
    while (proposal := one.ask()) is not None:
        proposals.append(proposal)
        one.tell(proposal, rate(proposal.settings, proposal.batch_fraction))
    return proposals


def raw_trials(storage: Path) -> list[optuna.trial.FrozenTrial]:
    return optuna.load_study(study_name="momadvise", storage=f"sqlite:///{storage}").trials


def test_plain_training_is_proposed_first_then_the_recipes() -> None:
    one = proposer(space(*SMALL, recipes=(HAND_TUNED, ADAM)))
    first = [one.ask() for _ in range(3)]
    assert [proposal.recipe_name for proposal in first if proposal] == ["plain", "hand-tuned default", "8-bit Adam"]
    assert [proposal.hand_tuned for proposal in first if proposal] == [False, True, False]
    assert [proposal.batch_fraction for proposal in first if proposal] == [1.0, 1.0, 1.0]
    assert first[0] is not None
    assert first[0].settings == ()


def test_a_hand_tuned_recipe_of_which_nothing_is_left_is_plain_training() -> None:
    one = proposer(space(*SMALL, recipes=(recipe("hand-tuned default", hand_tuned=True),)))
    first = one.ask()
    assert first is not None
    assert (first.settings, first.recipe_name, first.hand_tuned) == ((), "plain", True)


def test_every_combination_is_proposed_once_and_then_nothing() -> None:
    of = space(*SMALL, recipes=(HAND_TUNED, ADAM))
    one = proposer(of)
    assert one.untried == of.count * 4
    proposals = run_to_the_end(one)
    assert len({point(proposal) for proposal in proposals}) == len(proposals) == of.count * 4
    assert one.untried == 0
    assert one.completed == of.count * 4


def test_settings_that_exclude_each_other_are_never_proposed() -> None:
    one, other = use("small_adam"), use("precision", dtype="bf16")
    proposals = run_to_the_end(proposer(space(*SMALL, conflicts=((one, other),))))
    assert len(proposals) == (4 * 2 - 1) * 4
    assert not any(one in proposal.settings and other in proposal.settings for proposal in proposals)


def test_a_combination_that_was_excluded_is_not_proposed_at_another_fraction() -> None:
    one = proposer(space(*SMALL))
    proposals = []
    while (proposal := one.ask()) is not None:
        proposals.append(proposal)
        if use("small_adam") in proposal.settings:
            one.tell(proposal, None, {"refused": 1.0}, excludes_combination=True)
        else:
            one.tell(proposal, rate(proposal.settings, proposal.batch_fraction))
    excluded = [proposal for proposal in proposals if use("small_adam") in proposal.settings]
    assert len({point(proposal)[0] for proposal in excluded}) == len(excluded) == 4


def test_the_best_is_found_much_sooner_than_by_drawing_at_random() -> None:
    of = space()
    points = [(one.settings, fraction) for one in of.combinations() for fraction in of.batch_fractions]
    goal = 0.95 * max(rate(*one) for one in points)

    def trials_needed(seed: int) -> int:
        one = proposer(of, seed=seed)
        for number in range(1, 151):
            proposal = one.ask()
            assert proposal is not None
            value = rate(proposal.settings, proposal.batch_fraction)
            if value >= goal:
                return number
            one.tell(proposal, value)
        return 151

    def drawn_at_random(seed: int) -> int:
        shuffled = random.Random(seed).sample(points, len(points))
        return next(number for number, one in enumerate(shuffled, 1) if rate(*one) >= goal)

    guided = statistics.mean(trials_needed(seed) for seed in range(5))
    blind = statistics.mean(drawn_at_random(seed) for seed in range(20))
    assert guided < 0.1 * blind


def test_minimizing_finds_the_smallest() -> None:
    of = space("precision", "checkpoint", "swap", "small_adam")
    one = proposer(of, maximize=(False,))
    lowest = min(rate(one.settings, fraction) for one in of.combinations() for fraction in of.batch_fractions)
    seen = []
    for _ in range(60):
        proposal = one.ask()
        assert proposal is not None
        seen.append(rate(proposal.settings, proposal.batch_fraction))
        one.tell(proposal, seen[-1])
    assert min(seen) <= 1.1 * lowest


def test_combinations_that_run_out_of_memory_are_avoided_afterwards() -> None:
    """The trap: told as failures they would be ignored by the model, which then comes back to them half of the time."""
    lost_late = 0
    for seed in range(3):
        one = proposer(space(), seed=seed)
        for number in range(60):
            proposal = one.ask()
            assert proposal is not None
            # Few combinations fit, and they are the slow ones.
            fits = bool({"checkpoint(every=1)", "swap(gib=4)"} & {setting.label for setting in proposal.settings})
            lost_late += number >= 40 and not fits
            if fits:
                one.tell(proposal, rate(proposal.settings, proposal.batch_fraction), {"memory": -0.1})
            else:
                one.tell(proposal, None, {"memory": 0.3})
    assert lost_late <= 0.35 * 3 * 20


def test_a_trial_without_a_value_is_complete_infeasible_and_takes_the_worst_value(tmp_path: Path) -> None:
    storage = tmp_path / "study.db"
    one = proposer(space(*SMALL), storage)
    for value in (50.0, None, 80.0):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, value, {"memory": 0.2 if value is None else -0.2}, {"outcome": "out of memory"})
    one.close()
    trials = raw_trials(storage)
    assert [trial.state for trial in trials] == [optuna.trial.TrialState.COMPLETE] * 3
    assert [trial.value for trial in trials] == [50.0, 50.0, 80.0]
    assert trials[1].constraints == {"memory": 0.2}
    assert trials[1].user_attrs["outcome"] == "out of memory"


def test_a_first_trial_without_a_value_is_never_the_best(tmp_path: Path) -> None:
    storage = tmp_path / "study.db"
    one = proposer(space(*SMALL), storage)
    first, second = one.ask(), one.ask()
    assert first is not None
    assert second is not None
    one.tell(first, None, {"crash": 1.0})
    one.tell(second, 3.0)
    one.close()
    study = optuna.load_study(study_name="momadvise", storage=f"sqlite:///{storage}")
    assert study.best_trial.number == second.number


def test_a_continued_study_proposes_only_what_is_left(tmp_path: Path) -> None:
    of = space(*SMALL, fractions=(1.0, 0.5), recipes=(HAND_TUNED, ADAM))
    seen: list[tuple[str, float]] = []
    for process in range(3):
        one = proposer(of, tmp_path / "study.db")
        for _ in range(4):
            proposal = one.ask()
            assert proposal is not None
            seen.append(point(proposal))
            one.tell(proposal, rate(proposal.settings, proposal.batch_fraction))
        assert one.completed == 4 * (process + 1)
        one.close()
    last = proposer(of, tmp_path / "study.db")
    seen += [point(proposal) for proposal in run_to_the_end(last)]
    last.close()
    assert len(seen) == len(set(seen)) == of.count * 2
    recipes = [
        trial.user_attrs["recipe"] for trial in raw_trials(tmp_path / "study.db") if "recipe" in trial.user_attrs
    ]
    assert recipes == ["plain", "hand-tuned default", "8-bit Adam"]


def test_an_excluded_combination_stays_excluded_in_a_continued_study(tmp_path: Path) -> None:
    of = space("small_adam", recipes=(ADAM,))
    one = proposer(of, tmp_path / "study.db")
    for value in (10.0, None):
        proposal = one.ask()
        assert proposal is not None
        one.tell(proposal, value, {"refused": float(value is None)}, excludes_combination=value is None)
    one.close()
    again = proposer(of, tmp_path / "study.db")
    assert all(proposal.settings == () for proposal in run_to_the_end(again))
    again.close()


def test_recipes_that_are_left_go_without_what_is_optional_and_left_out() -> None:
    both, other = (
        msgspec.structs.replace(one, optional=("precision",))
        for one in (
            recipe("in bf16", use("precision", dtype="bf16"), use("small_adam")),
            recipe("the same, swapped", use("precision", dtype="bf16"), use("small_adam"), use("swap", gib=1)),
        )
    )
    needed = recipe("half precision", use("precision", dtype="bf16"), use("swap", gib=1))
    one = proposer(space(fractions=(1.0,), recipes=(HAND_TUNED, both, other, needed)))
    proposed = []
    while len(proposed) < 5:
        proposal = one.ask()
        assert proposal is not None
        proposed.append({setting.name for setting in proposal.settings})
        one.tell(proposal, rate(proposal.settings, 1.0))
        if len(proposed) == 2:
            one.leave_out("precision")
    assert proposed == [set(), {"precision"}, {"precision", "swap"}, {"small_adam"}, {"small_adam", "swap"}]


@pytest.mark.parametrize("in_profiling", [False, True])
def test_what_ran_out_of_time_comes_once_more_in_a_continued_study(in_profiling: bool, tmp_path: Path) -> None:
    """The trap: what the end of the first run cut off after five seconds was never tried again."""
    one = proposer(space(*SMALL), tmp_path / "study.db")
    first = one.ask()
    assert first is not None
    one.tell(first, None, {"outcome": 1.0}, try_again=True, excludes_combination=in_profiling)
    rest = run_to_the_end(one)
    assert point(first) not in map(point, rest), "within one process it is enough to know"
    one.close()
    continued = proposer(space(*SMALL), tmp_path / "study.db")
    again = list(map(point, run_to_the_end(continued)))
    assert point(first) in again
    assert {combination for combination, _ in again} == {point(first)[0]}
    continued.close()


def test_an_abandoned_proposal_may_come_again() -> None:
    one = proposer(space("small_adam", fractions=(1.0,)))
    first = one.ask()
    assert first is not None
    one.abandon(first)
    assert {point(proposal) for proposal in run_to_the_end(one)} == {("", 1.0), ("small_adam", 1.0)}


def test_proposals_under_way_are_not_proposed_a_second_time() -> None:
    one = proposer(space("small_adam", fractions=(1.0, 0.5)))
    proposals = [one.ask() for _ in range(5)]
    assert proposals[4] is None
    assert len({point(proposal) for proposal in proposals if proposal}) == 4
    assert one.untried == 0


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.search.test_sampler import SMALL, HAND_TUNED, proposer, rate, space
one = proposer(space(*SMALL, recipes=(HAND_TUNED,)), Path({storage!r}))
for _ in range(3):
    proposal = one.ask()
    one.tell(proposal, rate(proposal.settings, proposal.batch_fraction))
one.ask()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_study_goes_on_after_its_process_was_killed(tmp_path: Path) -> None:
    storage = tmp_path / "study.db"
    script = KILLED.format(root=str(Path(__file__).parents[2]), storage=str(storage))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    before = {tuple(sorted(t.params.items())) for t in raw_trials(storage) if t.value is not None}
    assert len(before) == 3

    of = space(*SMALL, recipes=(HAND_TUNED,))
    one = proposer(of, storage)
    assert one.completed == 3
    left = run_to_the_end(one)
    one.close()
    assert len(left) == of.count * 4 - 3
    states = [trial.state for trial in raw_trials(storage)]
    assert states.count(optuna.trial.TrialState.FAIL) == 1
    assert optuna.trial.TrialState.RUNNING not in states


def test_an_interrupted_seed_is_enqueued_again(tmp_path: Path) -> None:
    storage = tmp_path / "study.db"
    one = proposer(space(*SMALL, recipes=(HAND_TUNED,)), storage)
    assert one.ask() is not None
    one.close()
    again = proposer(space(*SMALL, recipes=(HAND_TUNED,)), storage)
    names = {proposal.recipe_name for proposal in (again.ask(), again.ask()) if proposal}
    again.close()
    assert names == {"plain", "hand-tuned default"}


def test_another_space_gets_a_study_of_its_own_in_the_same_file(tmp_path: Path) -> None:
    """The trap: a setting that stops to apply between two runs would make the search fail instead of going on."""
    storage = tmp_path / "study.db"
    for of in (space("small_adam", fractions=(1.0,)), space("small_adam", "swap", fractions=(1.0,))):
        one = proposer(of, storage)
        assert len(run_to_the_end(one)) == of.count
        one.close()
    assert len(optuna.get_all_study_names(f"sqlite:///{storage}")) == 2
    first = proposer(space("small_adam", fractions=(1.0,)), storage)
    again = proposer(space("small_adam", "swap", fractions=(1.0,)), storage)
    assert first.ask() is again.ask() is None
    assert (first.completed, again.completed) == (2, 6)
    first.close()
    again.close()


def test_a_file_that_is_no_study_is_an_error_of_the_output_folder(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("this is not SQLite, and it is long enough to be sure of that" * 20)
    with pytest.raises(OutputFolderError, match="not a database"):
        proposer(space("small_adam"), tmp_path / "study.db")
    with pytest.raises(OutputFolderError, match="unable to open"):
        proposer(space("small_adam"), tmp_path / "no such folder" / "study.db")


def test_a_folder_with_odd_characters_works(tmp_path: Path) -> None:
    folder = tmp_path / "50% größe #1 a?b=c"
    folder.mkdir()
    one = proposer(space("small_adam"), folder / "study.db")
    assert one.ask() is not None
    one.close()
    with sqlite3.connect(folder / "study.db") as connection:
        assert connection.execute("select count(*) from trials").fetchone() == (2 - 1,)


def test_optuna_is_quiet_and_the_users_own_settings_stay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = (logging.getLogger("optuna").level, optuna.logging.get_verbosity(), list(warnings.filters))
    one = proposer(space("small_adam"), tmp_path / "study.db")
    run_to_the_end(one)
    one.close()
    assert (logging.getLogger("optuna").level, optuna.logging.get_verbosity(), list(warnings.filters)) == before
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_proposal_without_a_value_must_violate_a_constraint() -> None:
    one = proposer(space("small_adam"))
    proposal = one.ask()
    assert proposal is not None
    with pytest.raises(AssertionError, match="violates a constraint"):
        one.tell(proposal, None, {"memory": -0.1})


def test_a_method_that_is_put_off_is_proposed_in_no_combination_and_counts_as_untried() -> None:
    of = space(*SMALL, recipes=(HAND_TUNED, ADAM))
    one = proposer(of)
    one.put_off("small_adam")
    proposals = run_to_the_end(one)
    assert proposals
    assert not any(use("small_adam") in proposal.settings for proposal in proposals)
    assert len(proposals) == of.count * 4 // 2
    assert one.untried == of.count * 4 // 2


def test_its_linear_algebra_has_one_thread_and_the_process_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """More threads make small matrices slower, and the environment would limit the trials, too."""

    def threads() -> list[int]:
        ours = (one for one in threadpool_info() if "numpy" in one["filepath"] or "scipy" in one["filepath"])
        return [one["num_threads"] for one in ours]

    inside = []
    one = proposer(space(*SMALL))
    propose = ModelSampler.sample_relative
    monkeypatch.setattr(
        ModelSampler, "sample_relative", lambda *given: (inside.append(threads()), propose(*given))[1], raising=True
    )
    with threadpool_limits(2, user_api="blas"):
        for _ in range(3):
            proposal = one.ask()
            assert proposal is not None
            one.tell(proposal, 100.0)
        after = threads()
    assert inside
    assert all(each == [1] * len(after) for each in inside)
    assert after == [2] * len(after)
    assert after
