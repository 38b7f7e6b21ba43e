"""Propose combinations through the ask-and-tell interface of an Optuna study.

The parameters are one categorical per method and, where there is a choice, the number of devices and a fraction of the
largest feasible batch, which the memory model knows better than any sampler. Cost and latency are two objectives.

A trial that failed is *completed*, violates a constraint and has the worst value so far: Optuna's own samplers ignore
failed trials and would come back to them.
"""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import optuna
from optuna.trial import TrialState

from advisor.search.propose.history import EXCLUDED, NOISE, TRY_AGAIN, WITHOUT_VALUE
from advisor.search.propose.initial_trials import names_of
from advisor.search.propose.model_sampler import ModelSampler
from advisor.search.propose.proposal import Attribute, GainLeft, InTurn, Proposal, SamplerName
from advisor.search.propose.standing import JointStanding, Standing
from advisor.search.space.explored import Explored, Point
from advisor.search.space.factors import Choice
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.search.study.learned import tell_measured, tell_ruled_out
from advisor.search.study.one_thread import on_one_thread
from advisor.search.study.optuna_samplers import optuna_sampler
from advisor.search.study.queue import Queue
from advisor.search.study.rejected import tell_conflict, tell_duplicate, worst_values
from advisor.search.study.storage import close_storage, one_at_a_time, open_study, quietly
from advisor.search.study.study_sync import StudySync

__all__ = ["Attribute", "Proposal", "Proposer"]

_REJECTIONS_PER_ASK = 4
"""Proposals that Optuna may waste (already tried, or impossible) before an untried combination is drawn instead."""

_FEWEST_MEASURED = 8
"""Measured points before the remaining gain is estimated: with fewer, the prior dominates the model."""


class Proposer:
    """Asks Optuna for untried combinations and tells it their results.

    A study in the storage is continued: completed proposals are not made again, those pending when its process ended
    may be.

    Args:
        space: What may be proposed.
        storage: SQLite file of the study (``optuna-dashboard sqlite:///FILE`` opens it); text for a URL or a journal
            that several workers share; ``None`` keeps it in memory.
        study_name: Name of the study in the storage.
        maximize: For each objective, whether larger values are better.
        seed: Seed of the sampler.
        sampler: How proposals are chosen.

    Raises:
        OutputFolderError: The file cannot be read or written, or is no study.
        OptionError: The shared storage cannot.
    """

    def __init__(
        self,
        space: ResolvedSpace,
        *,
        storage: Path | str | None,
        study_name: str,
        maximize: Sequence[bool],
        seed: int = 0,
        sampler: SamplerName = SamplerName.MODEL,
    ) -> None:
        assert isinstance(sampler, SamplerName), f"a SamplerName, got {sampler!r}"
        self._space = space
        self._maximize = tuple(maximize)
        self._storage = storage
        self._parameters = Parameters(space)
        self._tried = Explored(space)
        self._open: dict[int, optuna.trial.Trial] = {}
        self._turn = one_at_a_time(storage)
        with self._quietly(), self._turn:
            self._study = open_study(storage, study_name, self._maximize, self._parameters.choices)
            self._sync = StudySync(self._study, self._parameters, self._tried, shared=self.is_shared)
            # The same seed would draw the same startup proposals again when a study is continued.
            started = seed + len(self._study.get_trials(deepcopy=False))
            self._random = random.Random(started)
            self._model = ModelSampler(space, self._tried, self._parameters, self._maximize, seed=started)
            self._study.sampler = self._model if sampler is SamplerName.MODEL else optuna_sampler(sampler, started)
            self._queue = Queue(self._study, space, self._parameters, self._tried)
            self._queue.fill(compares_devices=len(self._maximize) > 1)

    @property
    def is_shared(self) -> bool:
        """Whether other workers may write into the study."""
        return isinstance(self._storage, str)

    @property
    def completed(self) -> int:
        """Number of distinct proposals with a known outcome, from this and other processes."""
        return len(self._tried)

    @property
    def untried(self) -> int:
        """Combinations and batch fractions that could still be proposed, without pending ones.

        In a space too large to count, a lower bound that is never 0.
        """
        return self._tried.points_left().number

    @property
    def failing_pairs(self) -> dict[tuple[str, str], int]:
        """Pairs of settings that failed together and never ran, with whatever losses -> number of combinations."""
        with self._quietly():
            return self._model.failing_pairs(self._model.observations(self._study))

    def ask(self) -> Proposal | None:
        """The next proposal, or ``None`` when every combination at every fraction was tried.

        Optuna's own samplers may propose tried or self-excluding combinations, which are answered here without a run.
        After a few of them an untried combination near the last one is drawn at random.
        """
        rejected = 0
        with self._quietly(), self._turn:
            self._sync.refresh()
            while self.untried > 0:
                trial = self._study.ask(dict(self._parameters.distributions))
                self._sync.sign(trial)
                choice = self._parameters.choice_of(trial.params)
                point = self._tried.point(*choice)
                if self._queue.gives_way(trial, choice):
                    self._study.tell(trial, state=TrialState.FAIL)
                    continue
                if not self._tried.is_valid(choice.combination):
                    tell_conflict(self._study, trial, self._space.conflict_in(choice.combination.settings))
                elif point in self._tried:
                    tell_duplicate(self._study, trial, self._tried.number_of(point))
                elif not self._sync.gives_way(trial, point):
                    return self._proposal(trial, choice, point)
                else:
                    self._study.tell(trial, state=TrialState.FAIL)
                    self._sync.refresh()
                    continue
                rejected += 1
                if rejected % _REJECTIONS_PER_ASK == 0:
                    drawn = self._tried.draw(self._random, wish=choice.combination)
                    if drawn is None:
                        return None  # all the others were put off
                    self._queue.add(Choice(*drawn))
            return None

    def tell(
        self,
        proposal: Proposal,
        value: float | Sequence[float] | None,
        constraints: Mapping[str, float] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        noise: float | None = None,
        excludes_combination: bool = False,
        try_again: bool = False,
    ) -> None:
        """Record the result of a proposal.

        Args:
            proposal: What :meth:`ask` returned.
            value: Its score, one for each objective, or ``None`` if there is none.
            constraints: Name -> amount by which it is violated (positive) or met (zero or less). A proposal without
                a value must violate one. ``"memory"`` is peak / limit - 1.
            attributes: Further attributes for the dashboard.
            noise: Relative standard deviation of the score between repetitions.
            excludes_combination: Whether the outcome holds for every batch fraction (a refused method, a
                combination of which not even one sample fits).
            try_again: Whether a process that continues the study may propose it again: it ran out of time, or its
                worker was lost.
        """
        constraints = dict(constraints or {})
        values = None if value is None else (value,) if isinstance(value, int | float) else tuple(value)
        assert values is None or (len(values) == len(self._maximize) and all(map(math.isfinite, values))), (
            f"a finite score for each of {len(self._maximize)} objectives, got {value}"
        )
        assert values is not None or any(amount > 0 for amount in constraints.values()), (
            "a proposal without a value violates a constraint"
        )
        trial = self._open.pop(proposal.number)
        point = self._tried.point(proposal.combination, proposal.batch_fraction)
        remarks: dict[str, Attribute] = {
            NOISE: noise,
            WITHOUT_VALUE: True if values is None else None,
            TRY_AGAIN: True if try_again else None,
            EXCLUDED: True if excludes_combination else None,
        }
        remarks = {name: remark for name, remark in remarks.items() if remark is not None}
        with self._quietly():
            for name, text in (*(attributes or {}).items(), *remarks.items()):
                trial.set_user_attr(name, text)
            for name, amount in constraints.items():
                trial.set_constraint(name, amount)
            if excludes_combination:
                self._tried.exclude(point[0])
            self._study.tell(trial, worst_values(self._study) if values is None else values)
        self._sync.completed(trial)
        self._tried.finish(point, proposal.number)

    def put_off(self, method: str) -> None:
        """Stop proposing combinations with a method; a process that continues the study may."""
        self._tried.put_off(method)

    def leave_out(self, method: str) -> None:
        """Try the recipes that are left without a method that is optional in them."""
        self._queue.leave_out(method)

    def learn(
        self,
        combination: Combination,
        value: float | Sequence[float],
        attributes: Mapping[str, Attribute] | None = None,
        *,
        noise: float,
        beside: InTurn | None = None,
    ) -> None:
        """Learn about a combination from something other than a trial of it, such as a second batch.

        It informs the model, but the combination stays untried and cannot be the answer. Optuna's own samplers are not
        told, because they would take it for a trial.

        Args:
            combination: A valid one.
            value: Its score, one for each objective.
            attributes: Further attributes for the dashboard. ``"micro_batch"`` is the batch of the measurement,
                ``"largest_batch"`` the largest that fits.
            noise: Relative standard deviation of the score between repetitions.
            beside: What it alternated with. Only the ratio counts then, and ``noise`` is the ratio's.
        """
        if self._study.sampler is not self._model:
            return
        values = [value] if isinstance(value, int | float) else list(value)
        assert len(values) == len(self._maximize), f"one score for each of {len(self._maximize)}, got {value}"
        assert all(map(math.isfinite, values)), f"finite scores, got {value}"
        assert self._tried.is_valid(combination), f"a combination of the space, got {combination.label}"
        assert beside is None or len(self._maximize) == 1, "a ratio of one objective"
        choice = Choice(combination, self._space.batch_fractions[0])
        with self._quietly():
            tell_measured(self._study, self._parameters, choice, values, attributes or {}, noise=noise, beside=beside)

    def rule_out(
        self, combination: Combination, violated: str, attributes: Mapping[str, Attribute], *, by_chance: bool
    ) -> None:
        """Learn that a combination of which a forecast was told violates a constraint, so that it may not win.

        None of its settings is suspected if that was ``by_chance``.
        """
        if self._study.sampler is not self._model:
            return
        assert self._tried.is_valid(combination), f"a combination of the space, got {combination.label}"
        choice = Choice(combination, self._space.batch_fractions[0])
        with self._quietly():
            tell_ruled_out(self._study, self._parameters, choice, violated, attributes, by_chance=by_chance)

    @property
    def compared(self) -> set[str]:
        """Labels of the combinations that the study has learned of beside others, without a trial."""
        with self._quietly():
            observed = self._model.observations(self._study)
        return {one.choice.combination.label for one in observed if one.beside is not None}

    def abandon(self, proposal: Proposal) -> None:
        """Give a proposal back without an outcome (the search was interrupted): it may be proposed again."""
        trial = self._open.pop(proposal.number)
        with self._quietly():
            self._study.tell(trial, state=TrialState.FAIL)
        self._tried.stop((proposal.combination.label, proposal.batch_fraction))

    def gain_left(self) -> GainLeft | None:
        """The expected remaining gain; ``None`` while there is too little evidence.

        That is, until plain training and every recipe were tried and a few points were measured.
        """
        with self._quietly():
            self._sync.refresh()
            measured = [one for one in self._model.observations(self._study) if one.tried and one.logs is not None]
            waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
            if waiting or len(measured) < _FEWEST_MEASURED:
                return None
            found = self._model.largest_improvement(self._study)
        if found is None:
            return None
        noise = statistics.median(one.noise for one in measured)
        expected, learning = found
        return GainLeft(expected=expected, learning=learning, noise=noise, measured=len(measured))

    def standings(self, others: Iterable[Combination] = ()) -> dict[str, Standing]:
        """Label -> the model's estimate of each tried combination that may win, and of others, from all measurements.

        Empty with two objectives, and with Optuna's samplers, which have no such model.
        """
        if self._study.sampler is not self._model:
            return {}
        with self._quietly():
            self._sync.refresh()
            return self._model.standings(self._study, [Choice(one, self._space.batch_fractions[0]) for one in others])

    def explorers(
        self, leader: Combination, *, most: int, least: float, allowed: Callable[[Combination], bool]
    ) -> list[Combination]:
        """Combinations to compare with a leader for what they may teach (:mod:`~advisor.search.propose.exploring`)."""
        if self._study.sampler is not self._model:
            return []
        with self._quietly():
            return self._model.explorers(self._study, leader, most, least, allowed)

    def joint_standing(self, points: Sequence[tuple[Combination, int]]) -> JointStanding | None:
        """The model's estimate of combinations at micro-batches, all together; ``None`` without a model."""
        if self._study.sampler is not self._model or len(self._maximize) > 1:
            return None
        with self._quietly():
            self._sync.refresh()
            choices = [(Choice(one, self._space.batch_fractions[0]), batch) for one, batch in points]
            return self._model.joint_standing(self._study, choices)

    def take_records(self) -> list[str]:
        """``record`` attributes of proposals that other workers completed since the last call."""
        with self._quietly():
            return self._sync.take_records()

    def close(self) -> None:
        """Release the study's storage."""
        close_storage(self._study._storage)

    # -- proposals ----------------------------------------------------------------------------------------------

    def _proposal(self, trial: optuna.trial.Trial, choice: Choice, point: Point) -> Proposal:
        self._open[trial.number] = trial
        self._tried.start(point)
        combination, fraction = choice
        name, tuned = names_of(self._space, choice)
        return Proposal(
            number=trial.number, combination=combination, batch_fraction=fraction, recipe_name=name, hand_tuned=tuned
        )

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        with on_one_thread(), quietly(self._storage):
            yield
