"""What a study tries before its sampler is asked: plain training, the recipes, and points that were drawn for it."""

from __future__ import annotations

import optuna
from optuna.trial import TrialState

from advisor.search.propose.history import RECIPE
from advisor.search.propose.initial_trials import seeds_of
from advisor.search.space.explored import Explored
from advisor.search.space.factors import Choice
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import ResolvedSpace

__all__ = ["Queue"]


class Queue:
    """The enqueued points of one study.

    Args:
        study: The study.
        space: Its space, with the recipes.
        parameters: The study's parameters.
        tried: What was tried already.
    """

    def __init__(self, study: optuna.Study, space: ResolvedSpace, parameters: Parameters, tried: Explored) -> None:
        self._study = study
        self._space = space
        self._parameters = parameters
        self._tried = tried
        self._left_out: set[str] = set()

    def fill(self, *, compares_devices: bool) -> None:
        """Enqueue plain training and the recipes at the first fraction, unless they are done or waiting."""
        fraction = self._space.batch_fractions[0]
        waiting = self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
        seen = {self._parameters.choice_of(trial.system_attrs["fixed_params"]).combination.label for trial in waiting}
        for name, combination in seeds_of(self._space, compares_devices=compares_devices):
            if combination.label not in seen and (combination.label, fraction) not in self._tried:
                self.add(Choice(combination, fraction), name)
            seen.add(combination.label)

    def add(self, choice: Choice, recipe: str | None = None) -> None:
        """Enqueue a point, under the name of its recipe if it is one."""
        named = None if recipe is None else {RECIPE: recipe}
        self._study.enqueue_trial(self._parameters.of(choice), user_attrs=named)

    def leave_out(self, method: str) -> None:
        """Try the recipes that are left without a method that is optional in them."""
        self._left_out.add(method)

    def gives_way(self, trial: optuna.trial.Trial, choice: Choice) -> bool:
        """Whether a point is a recipe with a method to leave out; without it, it comes later, unless it was tried."""
        name = trial.user_attrs.get(RECIPE)
        recipe = next((one for one in self._space.recipes if one.name == name), None)
        if recipe is None or recipe.hand_tuned:
            return False
        left_out = self._left_out & set(recipe.optional)
        kept = tuple(one for one in recipe.settings if one.name not in left_out)
        shorter = self._space.on_devices(kept, choice.combination.gpu_count)
        if kept == recipe.settings or shorter is None:
            return False
        if (shorter.label, choice.fraction) not in self._tried:
            self.add(Choice(shorter, choice.fraction))
        return True
