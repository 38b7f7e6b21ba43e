"""What every method must keep, for every setting of its parameters, on a transformer and on a convolutional network.

A new method gets these tests by being in the catalogue. Methods for several devices train in ``tests/distributed``;
what is declared is tested here for all.
"""

from __future__ import annotations

import copy
import functools
from typing import Protocol

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.methods.base import Method, Saves, Stage
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import apply_uses, fidelity_of, judge, settings_of
from advisor.methods.use import MethodUse
from advisor.workload.facts import Facts
from tests.contract.expected import expected
from tests.contract.observe import (
    Observation,
    batch_for,
    dropout_for,
    layers_for,
    observe,
    relative_error,
    same,
    samples_for,
    training_for,
)
from tests.contract.promises import UPDATE_TOLERANCE, assert_trains_as_promised
from tests.methods.tiny import MODELS, cpu, facts_of, import_bitsandbytes, training_of

ON_ONE_DEVICE = [method for method in CATALOGUE if not (method.distributes or method.builds_on)]
SETTINGS = [use for method in ON_ONE_DEVICE for use in settings_of(method)]
RANDOM = [method for method in ON_ONE_DEVICE if method.random_gradients]
CASES = [(model, use) for model in MODELS for use in SETTINGS if model not in expected(use).refused]
OTHER = [(model, use) for model, use in CASES if fidelity_of(use) is not Fidelity.EXACT]
EFFECTIVE = [(model, use) for model, use in CASES if model not in expected(use).no_effect]


def _of(use: MethodUse) -> tuple[MethodUse, ...]:
    """All settings of a setting's method."""
    return settings_of(get_method(use.name))


def _able(model: str, use: MethodUse) -> list[MethodUse]:
    """Those of them that work on a model."""
    return [other for other in _of(use) if (model, other) in CASES]


def over(cases: list[tuple[str, MethodUse]]) -> pytest.MarkDecorator:
    parameters = [
        pytest.param(
            model,
            use,
            id=f"{model}-{use.label}",
            marks=[pytest.mark.slow] if model in expected(use).slow else [],
        )
        for model, use in cases
    ]
    return pytest.mark.parametrize(("model", "use"), parameters)


over_methods = pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)


class Run(Protocol):
    def __call__(self, model: str, use: MethodUse | None, to: MethodUse | None = None) -> Observation:
        """Observe a setting, or plain training; ``to`` is a setting that it will be compared with."""


@pytest.fixture(scope="module")
def run() -> Run:
    """Observations, each made once for all tests of this file."""
    import_bitsandbytes()

    @functools.cache
    def cached(model: str, label: str, dropout: float, samples: int, layers: int) -> Observation:
        uses = [use for use in SETTINGS if use.label == label]
        with pytest.MonkeyPatch.context() as monkeypatch:
            return observe(model, uses, monkeypatch, samples=samples, dropout=dropout, layers=layers)

    def observed(model: str, use: MethodUse | None, to: MethodUse | None = None) -> Observation:
        alike = [one for one in (use, to) if one]
        label = use.label if use else "plain"
        return cached(model, label, dropout_for(alike), samples_for(alike), layers_for(alike))

    return observed


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("use", SETTINGS, ids=lambda use: use.label)
def test_a_setting_is_judged_before_a_trial_as_the_worker_finds_it(model: str, use: MethodUse) -> None:
    verdict = judge([use], facts=_facts(model), hardware=cpu())
    reason = expected(use).refused.get(model)
    if reason is not None:
        assert not verdict.applicable
        assert verdict.reason.startswith(f"{use.label}: ")
        assert reason in verdict.reason
        with pytest.raises(MethodRefusedError, match=reason):
            apply_uses(training_of(model), [use])
    elif reason := expected(use).not_on_cpu or expected(use).known_by_facts.get(model):
        assert not verdict.applicable  # Pointless there, yet it can be applied to see that it is right.
        assert reason in verdict.reason
    else:
        assert verdict.applicable, verdict.reason


@over(CASES)
def test_a_method_trains_as_its_fidelity_promises(model: str, use: MethodUse, run: Run) -> None:
    assert_trains_as_promised([use], run(model, None, use), run(model, use))


@over(OTHER)
def test_a_method_that_is_not_exact_is_not_plain_training(model: str, use: MethodUse, run: Run) -> None:
    assert same(run(model, use).state, run(model, None, use).state) == (model in expected(use).same_bits)


@pytest.mark.parametrize("tolerance", UPDATE_TOLERANCE.values())
def test_an_optimizer_that_never_steps_is_outside_every_tolerance(tolerance: float, run: Run) -> None:
    """Trap: whole parameters hardly move in two steps, so compared by them it would pass for a lossy optimizer."""
    plain = run("convnet", None)
    start = {name: plain.state[name] - moved for name, moved in plain.updates.items()}
    stuck = {name: torch.zeros_like(moved) for name, moved in plain.updates.items()}
    assert relative_error(start, {name: plain.state[name] for name in start}) < 0.05
    assert relative_error(stuck, plain.updates) > tolerance


@over(CASES)
def test_a_method_that_finds_nothing_to_do_says_so_and_no_other(model: str, use: MethodUse, run: Run) -> None:
    said = any("nothing" in note for note in run(model, use).notes)
    assert said == (model in expected(use).no_effect)


@over(EFFECTIVE)
def test_a_method_lowers_the_memory_it_claims(model: str, use: MethodUse, run: Run) -> None:
    saves = get_method(use.name).saves
    plain, changed = run(model, None, use), run(model, use)
    if saves & {Saves.ACTIVATIONS, Saves.LOGITS}:
        assert changed.held_bytes < plain.held_bytes
    if Saves.GRADIENTS in saves:
        assert changed.gradient_bytes < 0.6 * plain.gradient_bytes
    if Saves.OPTIMIZER_STATE in saves:
        assert changed.optimizer_bytes < expected(use).optimizer_share * plain.optimizer_bytes
    if Saves.PARAMETERS in saves:
        assert changed.parameter_bytes < plain.parameter_bytes
    checked = {Saves.ACTIVATIONS, Saves.LOGITS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.PARAMETERS}
    assert not saves or saves & checked, "extend this test with how the new category is seen from outside"


@over(CASES)
def test_the_state_loads_into_a_plain_model(model: str, use: MethodUse, run: Run) -> None:
    changed = run(model, use)
    fresh = training_for(model, [use], layers=layers_for([use])).model
    assert list(changed.state) == list(fresh.state_dict())
    fresh.load_state_dict(changed.state)
    kept = {name: tensor.to(fresh.state_dict()[name].dtype) for name, tensor in changed.state.items()}
    assert same(dict(fresh.state_dict()), kept)


@over(CASES)
def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(model: str, use: MethodUse) -> None:
    import_bitsandbytes()
    first, second = (training_for(model, [use], layers=layers_for([use])) for _ in range(2))
    apply_uses(first, [use])
    apply_uses(second, [use])
    torch.manual_seed(0)
    first.step(batch_for(model, 2, seed=0))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (first, second):
        torch.manual_seed(1)
        training.step(batch_for(model, 2, seed=1))
    for training in (second, first):  # what is set for the whole process holds until all are done
        training.close()
    assert same(first.state_dict()["model"], second.state_dict()["model"])


@over([(model, use) for model, use in CASES if use == _able(model, use)[{"gpt2": 0, "convnet": -1}[model]]])
def test_a_method_runs_under_fake_tensors(model: str, use: MethodUse) -> None:
    """The predictor traces applied policies without a byte of memory."""
    import_bitsandbytes()
    _, make_batch = MODELS[model]
    with FakeTensorMode():
        training = training_for(model, [use], layers=layers_for([use]))
        apply_uses(training, [use])
        try:
            for _ in range(2 + training.settling_steps):
                assert isinstance(training.step(make_batch()), FakeTensor)
        finally:
            training.close()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", RANDOM, ids=lambda method: method.name)
def test_random_gradients_are_right_on_the_average(model: str, method: Method) -> None:
    """Their error shrinks with the root of the number of draws: what is left is noise, and no bias."""
    use = next((use for use in settings_of(method) if (model, use) in CASES), None)
    if use is None:
        pytest.skip("refused for this model")
    exact = _mean_gradient(model, [], draws=1)
    few = relative_error(_mean_gradient(model, [use], draws=4), exact)
    many = relative_error(_mean_gradient(model, [use], draws=64), exact)
    assert many < 0.5 * few


def _mean_gradient(model: str, uses: list[MethodUse], draws: int) -> dict[str, torch.Tensor]:
    training = training_of(model, layers=2)
    apply_uses(training, uses)
    batch = batch_for(model, 2, seed=0)
    total: dict[str, torch.Tensor] = {}
    for draw in range(draws):
        torch.manual_seed(0)  # The same dropout in every draw: a method draws its own numbers elsewhere.
        training.model.zero_grad(set_to_none=True)
        training.backward(training.forward(batch))
        for name, parameter in training.model.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad.float() / draws
                total[name] = gradient if draw == 0 else total[name] + gradient
    training.close()
    return total


@over_methods
def test_a_method_declares_everything_that_is_said_of_it(method: Method) -> None:
    for text in (method.name, method.summary, method.costs, method.pays, method.does_not_pay, method.citation):
        assert text.strip()
    assert "\n" not in method.summary
    assert isinstance(method.stage, Stage)
    assert (method.gradient_tolerance == 0.0) or method.fidelity is not Fidelity.EXACT
    assert type(method).__doc__ != Method.__doc__
    assert bool(method.requires) == (method.extra is not None)
    for parameter in method.parameters:
        assert parameter.meaning
        assert len(set(parameter.choices)) == len(parameter.choices) >= 1
        assert all(choice in parameter.choices for choice in parameter.worse)
        assert all(worse.rank > method.fidelity.rank for worse in parameter.worse.values())
    assert set(method.builds_on) <= {other.name for other in CATALOGUE if other.distributes}


@over_methods
def test_a_declared_conflict_names_what_exists(method: Method) -> None:
    for conflict in method.conflicts:
        other = get_method(conflict.other)
        assert conflict.reason
        for owner, wanted in ((method, conflict.own), (other, conflict.where)):
            choices = {parameter.name: parameter.choices for parameter in owner.parameters}
            assert all(value in choices[name] for name, value in wanted.items())


@over_methods
def test_a_method_can_be_judged_from_the_hardware_alone(method: Method) -> None:
    for use in settings_of(method):
        verdict = method.applicable(use.parameters, None, cpu())
        assert verdict.applicable or verdict.reason


@functools.cache
def _facts(model: str) -> Facts:
    return facts_of(model)
