"""The table of optimizers, against the classes: what it says of each is what that one does."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import apply_settings, judge, settings_of
from advisor.methods.optimizers.adam import WHICH_OPTIMIZER
from advisor.methods.optimizers.optimizer_class import traits_of
from advisor.methods.optimizers.traits import _OTHERS, _TORCH, UNKNOWN, OptimizerTraits, named, of_torch
from advisor.methods.setting import MethodSetting, use
from tests.methods.tiny import (
    cpu,
    facts_of,
    gpu,
    images,
    import_bitsandbytes,
    text,
    training_of,
    uncompiled_optimizers,
)

SHAPES = ((64, 128), (7,), (3, 5, 2), (5, 1000))
"""Of whole blocks; small; small with more than two dimensions; large, but not of whole blocks."""

KNOWN = [*(f"torch.optim.{name}" for name in _TORCH), *_OTHERS]

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "torch.optim.Adam": [{}, {"amsgrad": True}],
    "torch.optim.AdamW": [{}, {"amsgrad": True}],
    "torch.optim.RMSprop": [{}, {"momentum": 0.9}, {"centered": True}, {"momentum": 0.9, "centered": True}],
    "torch.optim.SGD": [{}, {"momentum": 0.9}],
    **{f"bitsandbytes.optim.{name}": [{"lr": 0.1, "momentum": 0.9}] for name in ("sgd.SGD", "lars.LARS")},
}


def options_of(name: str) -> list[dict[str, Any]]:
    return OPTIONS.get(name.removesuffix("8bit").removesuffix("32bit"), [{}])


CASES = [
    pytest.param(name, options, id=f"{name.removeprefix('torch.optim.')} {options or ''}")
    for name in KNOWN
    for options in options_of(name)
]
pytestmark = pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
over_classes = pytest.mark.parametrize("name", KNOWN)


@pytest.fixture(autouse=True)
def _without_kernels() -> Iterator[None]:
    import_bitsandbytes()
    with uncompiled_optimizers(), torch.compiler.set_stance("force_eager"):
        yield


def class_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def parameters_for(name: str) -> list[nn.Parameter]:
    shapes = [shape for shape in SHAPES if len(shape) == 2] if name.endswith("Muon") else SHAPES
    return [nn.Parameter(torch.full(shape, 0.5)) for shape in shapes]


def step(name: str, optimizer: torch.optim.Optimizer) -> None:
    """One step on gradients as the class takes them."""
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        gradient = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0))
        parameter.grad = gradient.to_sparse(1) if name.endswith("SparseAdam") else gradient
    if name.endswith("LBFGS"):
        optimizer.step(lambda: 1.0)
    else:
        optimizer.step()


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor, or of those that one of a library's own kind is made of."""
    if hasattr(value, "__tensor_flatten__"):
        return sum(tensor_bytes(getattr(value, name)) for name in value.__tensor_flatten__()[0])
    return value.numel() * value.element_size()


def held(entries: dict[str, Any]) -> list[Any]:
    """The tensors of one parameter's state, but for single numbers and for tables that all parameters share."""
    return [
        value
        for name, value in entries.items()
        if isinstance(value, torch.Tensor) and value.numel() > 1 and not name.startswith("qmap")
    ]


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if "LBFGS" not in str(case.id)])
def test_the_state_of_each_parameter_takes_what_the_table_says(name: str, options: dict[str, Any]) -> None:
    parameters = parameters_for(name)
    optimizer = class_of(name)(parameters, **options)
    step(name, optimizer)
    traits, group = traits_of(optimizer), optimizer.param_groups[0]
    assert traits is named(name)
    for parameter in parameters:
        found = held(optimizer.state[parameter])
        said = traits.state_bytes(parameter.shape, parameter.element_size(), group)
        assert sum(map(tensor_bytes, found)) == said, tuple(parameter.shape)
        full = [value for value in found if value.shape[-parameter.dim() :] == parameter.shape]
        copies = sum(value.numel() for value in full) / parameter.numel()
        assert copies == (0 if traits.factored and parameter.dim() > 1 else traits.state_tensors(group))


@over_classes
def test_a_parameter_is_updated_alone_as_among_others_if_the_table_says_so(name: str) -> None:
    together, alone = (parameters_for(name) for _ in range(2))
    options = options_of(name)[-1]
    step(name, class_of(name)(together, **options))
    for parameter in alone:
        step(name, class_of(name)([parameter], **options))
    same = all(torch.equal(one, other) for one, other in zip(together, alone, strict=True))
    assert same == named(name).per_parameter


@over_classes
def test_it_takes_parameter_groups_if_the_table_says_so(name: str) -> None:
    groups = [{"params": [parameter]} for parameter in parameters_for(name)]
    taken = True
    try:
        class_of(name)(groups, **options_of(name)[0])
    except ValueError as error:
        taken = "parameter options" not in str(error)
    assert taken == named(name).param_groups


@over_classes
def test_it_takes_dense_gradients_if_the_table_says_so(name: str) -> None:
    parameters = parameters_for(name)
    optimizer = class_of(name)(parameters, **options_of(name)[0])
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    taken = True
    try:
        optimizer.step(lambda: 1.0)
    except RuntimeError as error:
        taken = "dense gradients" not in str(error)
    assert taken == named(name).dense


@over_classes
def test_it_has_a_fused_step_if_the_table_says_so(name: str) -> None:
    assert ("fused" in inspect.signature(class_of(name)).parameters) == named(name).fused


@over_classes
def test_one_that_rebuilds_is_the_same_from_its_groups_and_defaults(name: str) -> None:
    traits = named(name)
    if not traits.rebuilds:
        assert not name.startswith("torch.optim.") or not traits.per_parameter
        return
    kind, taken = class_of(name), inspect.signature(class_of(name)).parameters
    first = kind(parameters_for(name), **options_of(name)[-1])
    defaults = {option: value for option, value in first.defaults.items() if option in taken}
    second = kind([dict(group) for group in first.param_groups], **defaults)
    assert second.defaults == first.defaults
    assert second.param_groups == first.param_groups


def test_weights_decay_apart_from_the_gradients_where_the_table_says_so() -> None:
    for name in ("torch.optim.Adam", "torch.optim.AdamW"):
        parameter = nn.Parameter(torch.ones(1))
        parameter.grad = torch.zeros(1)
        class_of(name)([parameter], lr=0.1, weight_decay=0.5).step()
        assert (parameter.item() == pytest.approx(1 - 0.1 * 0.5)) == named(name).decays_apart
        assert named(name).adam


def test_the_table_has_every_optimizer_of_torch() -> None:
    classes = [
        kind for _, kind in inspect.getmembers(torch.optim, inspect.isclass) if kind is not torch.optim.Optimizer
    ]
    assert {kind.__name__ for kind in classes} == _TORCH.keys()
    assert all(named(f"{kind.__module__}.{kind.__qualname__}") is _TORCH[kind.__name__] for kind in classes)


BRINGING = [one for method in CATALOGUE if method.decides == WHICH_OPTIMIZER for one in settings_of(method)]


@pytest.mark.parametrize("method", BRINGING, ids=lambda one: one.label)
def test_an_optimizer_that_a_method_brings_keeps_the_state_of_its_traits_or_says_nothing(method: MethodSetting) -> None:
    training = training_of("gpt2")
    apply_settings(training, [method])
    training.step(text(2))
    traits = traits_of(training.optimizer)
    for group in training.optimizer.param_groups if traits is not UNKNOWN else []:
        for parameter in group["params"]:
            found = sum(map(tensor_bytes, held(training.optimizer.state[parameter])))
            assert found == traits.state_bytes(parameter.shape, parameter.element_size(), group)


def test_nothing_in_the_table_keeps_more_than_an_unknown_optimizer_is_taken_to() -> None:
    everything = dict.fromkeys(("amsgrad", "momentum", "centered"), True)
    assert max(traits.state_tensors(everything) for traits in map(named, KNOWN)) == UNKNOWN.state


class Own(torch.optim.SGD):
    """What a user writes."""


class Declared(Own):
    """What a method of ours brings."""

    traits = OptimizerTraits(state=1)


class TestAnOptimizerThatIsNotInTheTable:
    @pytest.mark.parametrize(
        "method", [use("optimizer_in_backward"), use("pure_bf16", rounding="stochastic"), use("fused_optimizer")]
    )
    def test_is_refused_by_what_needs_to_know_it_before_a_trial_and_in_it(self, method: Any) -> None:
        facts = facts_of("convnet", optimizer_class="mine.Own")
        assert "the optimizer is mine.Own" in judge([method], facts=facts, hardware=cpu()).reason
        training = training_of("convnet", build_optimizer=lambda p: Own(p, lr=0.1))
        with pytest.raises(MethodRefusedError, match=r"the optimizer is .*Own"):
            apply_settings(training, [method])

    def test_is_taken_to_fill_the_host_as_the_largest_would(self) -> None:
        facts = facts_of("convnet", optimizer_class="mine.Own", parameter_bytes=2**33)
        verdict = judge([use("host_optimizer")], facts=facts, hardware=gpu((8, 0)))
        assert "40.0 GiB" in verdict.reason  # Parameters, gradients and three numbers for each.
        assert "mine.Own is not a known class" in verdict.reason

    def test_may_declare_its_traits(self) -> None:
        training = training_of("convnet", build_optimizer=lambda p: Declared(p, lr=0.1, momentum=0.9))
        apply_settings(training, [use("optimizer_in_backward")])
        training.step(images(2))
        assert all(p.grad is None for p in training.model.parameters())

    def test_inherits_no_traits_because_its_step_may_be_another(self) -> None:
        class Further(Declared):
            pass

        assert traits_of(Further([nn.Parameter(torch.ones(1))], lr=0.1)) is UNKNOWN


def test_refusals_name_the_classes_of_torch_that_the_table_has() -> None:
    assert of_torch(lambda traits: traits.fused) == ["Adagrad", "Adam", "AdamW", "SGD"]
    assert of_torch(lambda traits: not traits.per_parameter) == ["LBFGS"]
