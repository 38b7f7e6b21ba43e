"""Propose combinations: Optuna over ask and tell. The only file that imports Optuna.

What is sampled is one categorical per method (off, or one of its settings), the number of devices where there is a
choice, and a fraction of the largest feasible batch; never the batch itself, which the memory model knows better than
any sampler. A goal with two figures (cost and latency) is a study with two objectives.

A trial that ran out of memory, crashed or was refused is a *completed* trial that violates a constraint, with the
worst value seen so far: Optuna's model ignores failed trials and would come back to them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import random
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import optuna
import sqlalchemy
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.study import StudyDirection
from optuna.trial import TrialState

from advisor.errors import OutputFolderError
from advisor.methods.use import MethodUse
from advisor.search.resolved import Combination, ResolvedSpace
from advisor.search.tried import Point, Tried

__all__ = ["Attribute", "Proposal", "Proposer"]

Attribute = str | int | float | bool | None

_OFF = "off"
_FRACTION = "batch_fraction"
_DEVICES = "gpu_count"
_RECIPE = "recipe"
_EXCLUDED = "combination_excluded"
_DUPLICATE = "duplicate_of"
_CONFLICT = "conflict"
_TRY_AGAIN = "ran_out_of_time"
_SPACE = "space"
_PLAIN = "plain"

_REJECTIONS_PER_ASK = 4
"""Proposals that Optuna may waste (tried already, or impossible) before an untried combination is drawn instead."""

_STARTUP_TRIALS = 8
"""Completed trials before Optuna's model is used; the enqueued seeds count."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What to try next.

    Attributes:
        number: Number of the Optuna trial.
        combination: The methods and the number of devices.
        batch_fraction: Share of the largest feasible micro-batch.
        recipe_name: Name of the recipe (``"plain"`` for plain training) if the proposal was enqueued, else ``None``.
        hand_tuned: Whether it is the experienced person's setting (which may be plain training).
    """

    number: int
    combination: Combination
    batch_fraction: float
    recipe_name: str | None = None
    hand_tuned: bool = False

    @property
    def uses(self) -> tuple[MethodUse, ...]:
        """The methods, sorted by name."""
        return self.combination.uses


class Proposer:
    """Asks Optuna for untried combinations and tells it what became of them.

    A study is continued when its file exists: what was completed is not proposed again, and what was under way when
    its process ended may be.

    Args:
        space: What may be proposed.
        storage: SQLite file of the study (``optuna-dashboard sqlite:///FILE`` opens it); ``None`` keeps it in memory.
        study_name: Name of the study in that file.
        maximize: For each objective, whether larger values are better.
        seed: Seed of the sampler.

    Raises:
        OutputFolderError: The file cannot be read or written, or is no study.
    """

    def __init__(
        self, space: ResolvedSpace, *, storage: Path | None, study_name: str, maximize: Sequence[bool], seed: int = 0
    ) -> None:
        self._space = space
        self._maximize = tuple(maximize)
        self._storage_path = storage
        self._distributions: dict[str, CategoricalDistribution] = {
            axis.method: CategoricalDistribution((_OFF, *(setting.label for setting in axis.settings)))
            for axis in space.axes
        }
        if len(space.gpu_counts) > 1:
            self._distributions[_DEVICES] = CategoricalDistribution(space.gpu_counts)
        self._distributions[_FRACTION] = CategoricalDistribution(space.batch_fractions)
        self._settings = {setting.label: setting for axis in space.axes for setting in axis.settings}
        self._tried = Tried(space)
        self._open: dict[int, optuna.trial.Trial] = {}
        with self._quietly():
            self._study = self._open_study(study_name)
            self._take_in_history()
            # The same seed would draw the same startup proposals again when a study is continued.
            started = len(self._study.get_trials(deepcopy=False))
            self._random = random.Random(seed + started)
            self._study.sampler = _sampler(seed + started)
            self._enqueue_seeds()

    @property
    def completed(self) -> int:
        """Different proposals whose outcome is known, from this and earlier processes."""
        return len(self._tried)

    @property
    def untried(self) -> int:
        """Combinations and batch fractions that could still be proposed (those under way not counted).

        Of a space that is too large to count, no more than there are, and never 0.
        """
        return self._tried.points_left().number

    @property
    def untried_combinations(self) -> int:
        """Combinations of which no batch fraction was tried or is under way; likewise."""
        return self._tried.combinations_left().number

    def ask(self) -> Proposal | None:
        """The next proposal, or ``None`` when every combination at every fraction was tried.

        Proposals that were tried already or exclude themselves are answered here, without a run; after a few of them
        an untried combination is drawn at random: where there are many methods, and nearly everything that Optuna
        draws excludes itself, from what it last proposed.
        """
        with self._quietly():
            if self.untried == 0:
                return None
            for _ in range(_REJECTIONS_PER_ASK):
                trial = self._study.ask(dict(self._distributions))
                combination, point = self._combination_of(trial.params), self._point_of(trial.params)
                if not self._tried.is_valid(combination):
                    self._reject_conflict(trial)
                elif point in self._tried:
                    self._reject_duplicate(trial, point)
                else:
                    return self._proposal(trial, combination, point)
            drawn = self._tried.draw(self._random, wish=combination)
            assert drawn is not None, "something is untried"
            self._enqueue(*drawn, None)
            trial = self._study.ask(dict(self._distributions))
            return self._proposal(trial, drawn[0], self._tried.point(*drawn))

    def tell(
        self,
        proposal: Proposal,
        value: float | Sequence[float] | None,
        constraints: Mapping[str, float] | None = None,
        attributes: Mapping[str, Attribute] | None = None,
        *,
        excludes_combination: bool = False,
        try_again: bool = False,
    ) -> None:
        """Record what became of a proposal.

        Args:
            proposal: What :meth:`ask` returned.
            value: Its score, one for each objective, or ``None`` if there is none.
            constraints: Name -> amount by which it is violated (positive) or kept (zero or less). A proposal without
                a value must violate one.
            attributes: What else to show in the dashboard.
            excludes_combination: Whether the outcome holds for every batch fraction (a refused method, a
                combination of which not even one sample fits).
            try_again: Whether a process that continues the study may propose it once more: it ran out of time, and
                there may be more then.
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
        with self._quietly():
            for name, text in (attributes or {}).items():
                trial.set_user_attr(name, text)
            for name, amount in constraints.items():
                trial.set_constraint(name, amount)
            if try_again:
                trial.set_user_attr(_TRY_AGAIN, True)
            if excludes_combination:
                trial.set_user_attr(_EXCLUDED, True)
                self._tried.exclude(point[0])
            self._study.tell(trial, self._worst() if values is None else values)
        self._tried.finish(point, proposal.number)

    def abandon(self, proposal: Proposal) -> None:
        """Give a proposal back without an outcome (the search was interrupted): it may be proposed again."""
        trial = self._open.pop(proposal.number)
        with self._quietly():
            self._study.tell(trial, state=TrialState.FAIL)
        self._tried.stop((proposal.combination.label, proposal.batch_fraction))

    def close(self) -> None:
        """Release the study's file."""
        storage = self._study._storage
        storage.remove_session()
        backend = getattr(storage, "_backend", storage)
        engine = getattr(backend, "engine", None)
        if engine is not None:
            engine.dispose()

    # -- opening ------------------------------------------------------------------------------------------------

    def _open_study(self, name: str) -> optuna.Study:
        """Open or make the study of this space.

        What applies may change between two runs (less free host memory, a library that went): then the settings to
        choose from differ, which one study cannot hold. The file gets a second study beside the first.
        """
        storage = None
        if self._storage_path is not None:
            # A writer waits for another (optuna-dashboard may read along) instead of failing at once.
            storage = optuna.storages.RDBStorage(
                _url(self._storage_path), engine_kwargs={"connect_args": {"timeout": 30}}
            )
        choices = {key: list(distribution.choices) for key, distribution in self._distributions.items()}
        digest = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:8]
        for own_name in (name, f"{name}-{digest}"):
            study = optuna.create_study(
                study_name=own_name,
                storage=storage,
                directions=[
                    StudyDirection.MAXIMIZE if larger else StudyDirection.MINIMIZE for larger in self._maximize
                ],
                load_if_exists=True,
            )
            if _SPACE not in study.user_attrs:
                study.set_user_attr(_SPACE, choices)
            if study.user_attrs[_SPACE] == choices:
                return study
        raise AssertionError(f"two spaces have the digest {digest}")

    def _take_in_history(self) -> None:
        """Learn what earlier processes completed, and close what they left open."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.state is TrialState.RUNNING:
                self._study.tell(trial.number, state=TrialState.FAIL)
            elif trial.state is TrialState.COMPLETE and trial.params.keys() == self._distributions.keys():
                point = self._point_of(trial.params)
                if trial.user_attrs.get(_EXCLUDED):
                    self._tried.exclude(point[0])
                if not trial.user_attrs.keys() & {_DUPLICATE, _CONFLICT, _TRY_AGAIN}:
                    self._tried.finish(point, trial.number)

    def _enqueue_seeds(self) -> None:
        """Plain training and the recipes at the first fraction, unless they are done or waiting already.

        On every number of devices plain training comes first, then the first recipe, and so on: a search that ends
        early has seen each of them.
        """
        fraction = self._space.batch_fractions[0]
        seen = {
            self._combination_of(trial.system_attrs["fixed_params"]).label
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        }
        for name, uses in ((_PLAIN, ()), *((recipe.name, recipe.uses) for recipe in self._space.recipes)):
            for gpu_count in self._space.gpu_counts:
                combination = self._space.on_devices(uses, gpu_count)
                if combination is None:
                    continue
                if combination.label not in seen and (combination.label, fraction) not in self._tried:
                    self._enqueue(combination, fraction, name)
                seen.add(combination.label)

    def _enqueue(self, combination: Combination, fraction: float, recipe: str | None) -> None:
        labels = {use.name: use.label for use in combination.uses}
        parameters: dict[str, str | float] = {axis.method: labels.get(axis.method, _OFF) for axis in self._space.axes}
        if _DEVICES in self._distributions:
            parameters[_DEVICES] = combination.gpu_count
        parameters[_FRACTION] = fraction
        self._study.enqueue_trial(parameters, user_attrs=None if recipe is None else {_RECIPE: recipe})

    # -- proposals ----------------------------------------------------------------------------------------------

    def _point_of(self, parameters: Mapping[str, object]) -> Point:
        fraction = parameters[_FRACTION]
        assert isinstance(fraction, int | float)
        return self._tried.point(self._combination_of(parameters), float(fraction))

    def _combination_of(self, parameters: Mapping[str, object]) -> Combination:
        """The combination that Optuna's parameters mean, valid or not."""
        chosen = [self._settings[value] for value in parameters.values() if isinstance(value, str) and value != _OFF]
        gpu_count = parameters.get(_DEVICES, self._space.gpu_counts[0])
        assert isinstance(gpu_count, int)
        return Combination(tuple(sorted(chosen, key=lambda use: use.name)), gpu_count)

    def _proposal(self, trial: optuna.trial.Trial, combination: Combination, point: Point) -> Proposal:
        self._open[trial.number] = trial
        self._tried.start(point)
        # The name goes with the combination, not with the way it was drawn: a continued study may draw it again.
        names: dict[str, bool] = {}
        if point[1] == self._space.batch_fractions[0]:
            count = combination.gpu_count
            if combination == self._space.on_devices((), count):
                names[_PLAIN] = False
            for recipe in self._space.recipes:
                if combination == self._space.on_devices(recipe.uses, count):
                    # An experienced person uses every device there is.
                    names[recipe.name] = recipe.hand_tuned and count == self._space.gpu_counts[-1]
        return Proposal(
            number=trial.number,
            combination=combination,
            batch_fraction=point[1],
            recipe_name=next(iter(names), None),
            hand_tuned=any(names.values()),
        )

    def _reject_conflict(self, trial: optuna.trial.Trial) -> None:
        """Complete an impossible combination without running it, so that the model learns to avoid it."""
        uses = [setting for label, setting in self._settings.items() if label in trial.params.values()]
        trial.set_user_attr(_CONFLICT, self._space.conflict_in(uses) or "not a valid combination on these devices")
        trial.set_constraint(_CONFLICT, 1.0)
        self._study.tell(trial, self._worst())

    def _reject_duplicate(self, trial: optuna.trial.Trial, point: Point) -> None:
        """Answer a point that was tried with the outcome it had."""
        number = self._tried.number_of(point)
        original = None if number is None else self._study.get_trials(deepcopy=False)[number]
        if original is None or original.values is None:
            # Under way, or excluded with its whole combination: nothing is known of this very point.
            trial.set_user_attr(_DUPLICATE, -1)
            trial.set_constraint("excluded", 1.0)
            self._study.tell(trial, self._worst())
            return
        trial.set_user_attr(_DUPLICATE, original.number)
        for name, amount in original.constraints.items():
            trial.set_constraint(name, amount)
        self._study.tell(trial, original.values)

    def _worst(self) -> tuple[float, ...]:
        """The worst value so far of every objective; before the first, one that is worse than any."""
        told = [
            trial.values
            for trial in self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
            if all(map(math.isfinite, trial.values))
        ]
        if not told:
            return tuple(-math.inf if larger else math.inf for larger in self._maximize)
        return tuple(
            min(values) if larger else max(values)
            for larger, values in zip(self._maximize, zip(*told, strict=True), strict=True)
        )

    @contextlib.contextmanager
    def _quietly(self) -> Iterator[None]:
        """Keep Optuna's log and warnings of experimental features away, and put everything back afterwards.

        Raises:
            OutputFolderError: The study's file cannot be read or written.
        """
        logger = logging.getLogger("optuna")
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ExperimentalWarning)
                yield
        except (sqlalchemy.exc.SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError) as error:
            cause = getattr(error, "orig", None) or error.__cause__ or error
            raise OutputFolderError(
                f"The study's file must be a readable and writable SQLite file of Optuna, but {self._storage_path}: "
                f"{' '.join(str(cause).split())}. Use another --output folder."
            ) from error
        finally:
            logger.setLevel(level)


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(
        multivariate=True, group=True, constant_liar=True, seed=seed, n_startup_trials=_STARTUP_TRIALS
    )


def _url(path: Path) -> str:
    return sqlalchemy.URL.create("sqlite", database=str(path.absolute())).render_as_string(hide_password=False)
