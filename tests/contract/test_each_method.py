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
from advisor.methods.compose import apply_settings, fidelity_of, judge, settings_of
from advisor.methods.setting import MethodSetting
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
SETTINGS = [setting for method in ON_ONE_DEVICE for setting in settings_of(method)]
RANDOM = [method for method in ON_ONE_DEVICE if method.random_gradients]
CASES = [(model, setting) for model in MODELS for setting in SETTINGS if model not in expected(setting).refused]
OTHER = [(model, setting) for model, setting in CASES if fidelity_of(setting) is not Fidelity.EXACT]
EFFECTIVE = [(model, setting) for model, setting in CASES if model not in expected(setting).no_effect]


def _of(setting: MethodSetting) -> tuple[MethodSetting, ...]:
    """All settings of a setting's method."""
    return settings_of(get_method(setting.name))


def _able(model: str, setting: MethodSetting) -> list[MethodSetting]:
    """Those of them that work on a model."""
    return [other for other in _of(setting) if (model, other) in CASES]


def over(cases: list[tuple[str, MethodSetting]]) -> pytest.MarkDecorator:
    parameters = [
        pytest.param(
            model,
            setting,
            id=f"{model}-{setting.label}",
            marks=[pytest.mark.slow] if model in expected(setting).slow else [],
        )
        for model, setting in cases
    ]
    return pytest.mark.parametrize(("model", "setting"), parameters)


over_methods = pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)


class Run(Protocol):
    def __call__(self, model: str, setting: MethodSetting | None, to: MethodSetting | None = None) -> Observation:
        """Observe a setting, or plain training; ``to`` is a setting that it will be compared with."""


@pytest.fixture(scope="module")
def run() -> Run:
    """Observations, each made once for all tests of this file."""
    import_bitsandbytes()

    @functools.cache
    def cached(model: str, label: str, dropout: float, samples: int, layers: int) -> Observation:
        settings = [setting for setting in SETTINGS if setting.label == label]
        with pytest.MonkeyPatch.context() as monkeypatch:
            return observe(model, settings, monkeypatch, samples=samples, dropout=dropout, layers=layers)

    def observed(model: str, setting: MethodSetting | None, to: MethodSetting | None = None) -> Observation:
        alike = [one for one in (setting, to) if one]
        label = setting.label if setting else "plain"
        return cached(model, label, dropout_for(alike), samples_for(alike), layers_for(alike))

    return observed


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_a_setting_is_judged_before_a_trial_as_the_worker_finds_it(model: str, setting: MethodSetting) -> None:
    verdict = judge([setting], facts=_facts(model), hardware=cpu())
    reason = expected(setting).refused.get(model)
    if reason is not None:
        assert not verdict.applicable
        assert verdict.reason.startswith(f"{setting.words}: ")
        assert reason in verdict.reason
        with pytest.raises(MethodRefusedError, match=reason):
            apply_settings(training_of(model), [setting])
    elif reason := expected(setting).not_on_cpu or expected(setting).known_by_facts.get(model):
        assert not verdict.applicable  # Pointless there, yet it can be applied to see that it is right.
        assert reason in verdict.reason
    else:
        assert verdict.applicable, verdict.reason


@over(CASES)
def test_a_method_trains_as_its_fidelity_promises(model: str, setting: MethodSetting, run: Run) -> None:
    assert_trains_as_promised([setting], run(model, None, setting), run(model, setting))


@over(OTHER)
def test_a_method_that_is_not_exact_is_not_plain_training(model: str, setting: MethodSetting, run: Run) -> None:
    assert same(run(model, setting).state, run(model, None, setting).state) == (model in expected(setting).same_bits)


@pytest.mark.parametrize("tolerance", UPDATE_TOLERANCE.values())
def test_an_optimizer_that_never_steps_is_outside_every_tolerance(tolerance: float, run: Run) -> None:
    """Trap: whole parameters hardly move in two steps, so compared by them it would pass for a lossy optimizer."""
    plain = run("convnet", None)
    start = {name: plain.state[name] - moved for name, moved in plain.updates.items()}
    stuck = {name: torch.zeros_like(moved) for name, moved in plain.updates.items()}
    assert relative_error(start, {name: plain.state[name] for name in start}) < 0.05
    assert relative_error(stuck, plain.updates) > tolerance


@over(CASES)
def test_a_method_that_finds_nothing_to_do_says_so_and_no_other(model: str, setting: MethodSetting, run: Run) -> None:
    said = any("nothing" in note for note in run(model, setting).notes)
    assert said == (model in expected(setting).no_effect)


@over(EFFECTIVE)
def test_a_method_lowers_the_memory_it_claims(model: str, setting: MethodSetting, run: Run) -> None:
    saves = get_method(setting.name).saves
    plain, changed = run(model, None, setting), run(model, setting)
    if saves & {Saves.ACTIVATIONS, Saves.LOGITS}:
        assert changed.held_bytes < plain.held_bytes
    if Saves.GRADIENTS in saves:
        assert changed.gradient_bytes < 0.6 * plain.gradient_bytes
    if Saves.OPTIMIZER_STATE in saves:
        assert changed.optimizer_bytes < expected(setting).optimizer_share * plain.optimizer_bytes
    if Saves.PARAMETERS in saves:
        assert changed.parameter_bytes < plain.parameter_bytes
    checked = {Saves.ACTIVATIONS, Saves.LOGITS, Saves.GRADIENTS, Saves.OPTIMIZER_STATE, Saves.PARAMETERS}
    assert not saves or saves & checked, "extend this test with how the new category is seen from outside"


@over(CASES)
def test_the_state_loads_into_a_plain_model(model: str, setting: MethodSetting, run: Run) -> None:
    changed = run(model, setting)
    fresh = training_for(model, [setting], layers=layers_for([setting])).model
    assert list(changed.state) == list(fresh.state_dict())
    fresh.load_state_dict(changed.state)
    kept = {name: tensor.to(fresh.state_dict()[name].dtype) for name, tensor in changed.state.items()}
    assert same(dict(fresh.state_dict()), kept)


@over(CASES)
def test_training_goes_on_from_a_state_as_if_it_had_not_stopped(model: str, setting: MethodSetting) -> None:
    import_bitsandbytes()
    first, second = (training_for(model, [setting], layers=layers_for([setting])) for _ in range(2))
    apply_settings(first, [setting])
    apply_settings(second, [setting])
    torch.manual_seed(0)
    first.step(batch_for(model, 2, seed=0))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (first, second):
        torch.manual_seed(1)
        training.step(batch_for(model, 2, seed=1))
    for training in (second, first):  # what is set for the whole process holds until all are done
        training.close()
    assert same(first.state_dict()["model"], second.state_dict()["model"])


@over(
    [
        (model, setting)
        for model, setting in CASES
        if setting == _able(model, setting)[{"gpt2": 0, "convnet": -1}[model]]
    ]
)
def test_a_method_runs_under_fake_tensors(model: str, setting: MethodSetting) -> None:
    """The predictor traces applied policies without a byte of memory."""
    import_bitsandbytes()
    _, make_batch = MODELS[model]
    with FakeTensorMode():
        training = training_for(model, [setting], layers=layers_for([setting]))
        apply_settings(training, [setting])
        try:
            for _ in range(2 + training.settling_steps):
                assert isinstance(training.step(make_batch()), FakeTensor)
        finally:
            training.close()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("method", RANDOM, ids=lambda method: method.name)
def test_random_gradients_are_right_on_the_average(model: str, method: Method) -> None:
    """Their error shrinks with the root of the number of draws: what is left is noise, and no bias."""
    setting = next((setting for setting in settings_of(method) if (model, setting) in CASES), None)
    if setting is None:
        pytest.skip("refused for this model")
    exact = _mean_gradient(model, [], draws=1)
    few = relative_error(_mean_gradient(model, [setting], draws=4), exact)
    many = relative_error(_mean_gradient(model, [setting], draws=64), exact)
    assert many < 0.5 * few


def _mean_gradient(model: str, settings: list[MethodSetting], draws: int) -> dict[str, torch.Tensor]:
    training = training_of(model, layers=2)
    apply_settings(training, settings)
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
    for setting in settings_of(method):
        verdict = method.applicable(setting.parameters, None, cpu())
        assert verdict.applicable or verdict.reason


@functools.cache
def _facts(model: str) -> Facts:
    return facts_of(model)
