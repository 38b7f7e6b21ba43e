"""Fit goal and space to settings of the user's own, which are the baseline instead of plain training."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from advisor.errors import OptionError
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.hardware.hardware import Hardware
from advisor.methods.catalogue import get_method
from advisor.methods.compose import fidelity_of, judge, worst_fidelity
from advisor.methods.libraries import needed_by
from advisor.methods.setting import ParameterValue
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.report.wording import batch_words, on_devices
from advisor.search.space.space_file import Recipe, SearchSpace
from advisor.session.request import TuneRequest
from advisor.workload.facts import Facts
from advisor.workload.sizes import size_words

__all__ = ["fit_to_own_settings", "libraries_of"]

_RECIPE = "your own settings"


def fit_to_own_settings(
    request: TuneRequest,
    space: SearchSpace,
    goal: Goal,
    facts: Facts,
    hardware: Hardware,
    say: Callable[[str], None],
) -> tuple[SearchSpace, Goal]:
    """Let the search begin from the settings of the user, whatever the space holds.

    Their methods may be tried at other batches and beside other methods. Unless another is asked for, the ceiling of
    fidelity is at least theirs, and a step has as many samples as theirs where they accumulate (who does has chosen
    that number) and for ``cheapest``. Methods of theirs that change what is learned stay in every policy that may win.

    Returns:
        The space and the goal, unchanged without such settings.

    Raises:
        OptionError: The settings cannot be applied to this model on this machine.
    """
    if request.baseline is None:
        return space, goal
    policy, origin = request.baseline.policy, request.baseline.origin
    _check_applies(policy, origin, facts, hardware)
    batch = f"batch {batch_words(policy)}" if request.baseline.states_batch else "your own batch"
    where = f"{batch}{on_devices(policy)}"
    say(f"the baseline is what {origin} says: {policy.words} at {where}")
    size = request.baseline.model_size
    if size and request.model_size:
        say(f"every trial has the model at the size that {origin} says: {size_words(size)}")
    elif size:
        say(f"the size that {origin} says ({size_words(size)}) is left aside: sizes are what is searched")
    for note in request.baseline.notes:
        say(note)
    own = worst_fidelity(
        policy.methods,
        accumulation_steps=policy.accumulation_steps,
        facts=facts,
        gpu_count=policy.gpu_count,
        mesh=policy.axes,
    )
    if request.fidelity is None and not goal.fidelity.allows(own):
        lower = f"--fidelity {goal.fidelity.value} lowers it"
        say(f"as the baseline's fidelity is {own.value}, so is the ceiling ({lower})")
        goal = msgspec.structs.replace(goal, fidelity=own)
    trains_alike = policy.accumulation_steps > 1 or goal.kind is GoalKind.CHEAPEST
    if request.global_batch is None and trains_alike and request.baseline.states_batch:
        say(f"every step has {policy.global_batch} samples, as the baseline's (--global-batch says another number)")
        goal = msgspec.structs.replace(goal, global_batch=policy.global_batch)
    kept = tuple(one.name for one in policy.methods if fidelity_of(one) is Fidelity.MODEL)
    if kept:
        say(f"every recommended policy has {' and '.join(kept)}: without, something else is learned")
    goal = msgspec.structs.replace(goal, own_settings=origin, kept_methods=kept)
    return (space if request.methods else _with_methods(space, policy, kept)), goal


def libraries_of(space: SearchSpace, baseline: Baseline | None) -> tuple[str, ...]:
    """The optional libraries that the methods of a space and of a baseline need."""
    own = () if baseline is None else needed_by(get_method(one.name) for one in baseline.policy.methods)
    return tuple(dict.fromkeys((*space.libraries, *own)))


def _check_applies(policy: Policy, origin: str, facts: Facts, hardware: Hardware) -> None:
    verdict = judge(
        policy.methods,
        facts=facts,
        hardware=hardware,
        accumulation_steps=policy.accumulation_steps,
        gpu_count=policy.gpu_count,
        mesh=policy.axes,
    )
    if not verdict.applicable:
        raise OptionError(
            f"The baseline must be trainable here, but {origin} has a method that is not: {verdict.reason}. Take it "
            "out, or run this on the machine that you train on."
        )


def _with_methods(space: SearchSpace, policy: Policy, kept: tuple[str, ...]) -> SearchSpace:
    """The space with the policy's settings in it, a recipe of all of them, and those that are kept in every recipe."""
    methods = dict(space.methods)
    for setting in policy.methods:
        narrowed = methods.get(setting.name, {name: [] for name in setting.parameters})
        if narrowed is None:
            continue  # every value is in the space
        values = {name: list(allowed) for name, allowed in narrowed.items()}
        for name, value in setting.parameters.items():
            if name in values and value not in values[name]:
                values[name].append(value)
        methods[setting.name] = values
    if not policy.methods:
        return space
    own: dict[str, dict[str, ParameterValue | list[ParameterValue]] | None] = {
        one.name: dict(one.parameters) for one in policy.methods
    }
    always = {name: own[name] for name in kept}
    others = (msgspec.structs.replace(one, methods={**one.methods, **always}) for one in space.recipes)
    return msgspec.structs.replace(space, methods=methods, recipes=(Recipe(name=_RECIPE, methods=own), *others))
