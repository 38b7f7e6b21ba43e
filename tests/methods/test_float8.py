"""float8: which linear layers are changed, and that everything else stays as it was. On a CPU it is emulated."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge, settings_of
from advisor.methods.formats.float8 import Float8
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.contract.observe import relative_error
from tests.methods.perceptron import Perceptron, vectors
from tests.methods.tiny import adamw, cpu, facts_of, gpu, import_bitsandbytes, training_of

SETTINGS = settings_of(Float8())
TENSORWISE = SETTINGS[0]
LINEAR = {"torch.nn.Linear": 6}


@pytest.fixture(scope="module", autouse=True)
def _import_once() -> None:
    import_bitsandbytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchao.float8  # noqa: F401


def training(*settings: MethodSetting) -> Training:
    made = Training(Perceptron(), build_optimizer=adamw)
    apply_settings(made, settings)
    return made


def gradients(of: Training) -> dict[str, torch.Tensor]:
    of.backward(of.forward(vectors()))
    return {name: p.grad.clone() for name, p in of.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_layers_whose_sizes_have_kernels_are_changed_and_gradients_stay_near(setting: MethodSetting) -> None:
    changed = training(setting)
    kinds = {name: type(module).__name__ for name, module in changed.model.named_modules() if name[-2:] in ("up", "wn")}
    assert set(kinds.values()) == {"Float8Linear"}
    assert type(changed.model.head) is nn.Linear
    assert changed.notes == []
    error = relative_error(gradients(changed), gradients(training()))
    assert 1e-3 < error < Float8.gradient_tolerance


def test_a_number_of_samples_that_is_no_multiple_of_16_is_padded() -> None:
    changed = training(TENSORWISE)
    linear: Any = changed.model.blocks[0].up  # type: ignore[index,union-attr]
    assert linear.config.pad_inner_dim
    assert bool(changed.step(vectors(7)).isfinite())


@pytest.mark.parametrize(
    "others",
    [
        [use("precision", dtype="bf16")],
        [use("pure_bf16", rounding="stochastic")],
        [use("checkpoint", every=1)],
        [use("swap", min_bytes=2**20), use("adam_8bit")],
        [use("optimizer_in_backward")],
        [use("precision", dtype="fp16")],
        [use("half_weights", rounding="nearest")],
    ],
    ids=lambda others: "+".join(each.label for each in others),
)
def test_it_trains_together_with(others: Sequence[MethodSetting]) -> None:
    changed = training(TENSORWISE, *others)
    assert type(changed.model.get_submodule("blocks.0")).__name__ in ("Block", "_Checkpointed")
    assert "Float8Linear" in {type(module).__name__ for module in changed.model.modules()}
    losses = [float(changed.step(vectors())) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.2


def test_the_state_loads_into_a_plain_model_and_training_goes_on_from_it() -> None:
    first, second = training(TENSORWISE), training(TENSORWISE)
    first.step(vectors())
    state = copy.deepcopy(first.state_dict())
    Perceptron().load_state_dict(state["model"])
    assert list(state["model"]) == list(Perceptron().state_dict())
    second.load_state_dict(state)
    for each in (first, second):
        each.step(vectors(seed=1))
    assert all(torch.equal(v, second.state_dict()["model"][n]) for n, v in first.state_dict()["model"].items())


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.label)
def test_it_runs_under_fake_tensors(setting: MethodSetting) -> None:
    with FakeTensorMode():
        assert isinstance(training(setting).step(vectors()), FakeTensor)


def test_a_model_without_linear_layers_is_refused_before_a_trial_and_in_it() -> None:
    facts = facts_of("convnet", module_counts={"transformers.pytorch_utils.Conv1D": 8})
    verdict = judge([TENSORWISE], facts=facts, hardware=gpu((9, 0)))
    assert "Conv1D is another class" in verdict.reason
    with pytest.raises(MethodRefusedError, match=r"changes torch\.nn\.Linear"):
        apply_settings(Training(nn.Sequential(nn.Conv1d(1, 1, 1)), build_optimizer=adamw), [TENSORWISE])


def test_the_output_layer_of_a_language_model_keeps_its_format() -> None:
    """Its sizes would fit; GPT-2 has no other linear layer, so nothing changes, and a note says so."""
    plain = training_of("gpt2")
    apply_settings(plain, [TENSORWISE])
    assert type(plain.model.lm_head) is nn.Linear
    assert "changed nothing" in plain.notes[0]


def test_the_hardware_must_have_it() -> None:
    facts = facts_of("convnet", module_counts=LINEAR)
    reasons = {
        capability: judge([TENSORWISE], facts=facts, hardware=gpu(capability)).reason
        for capability in ((8, 0), (8, 9), (9, 0))
    }
    assert "needs compute capability 8.9" in reasons[8, 0]
    assert "torch.compile" in reasons[8, 9]
    assert judge([TENSORWISE], facts=facts, hardware=gpu((9, 0))).applicable
    assert "the device is a CPU" in judge([TENSORWISE], facts=facts, hardware=cpu()).reason


def test_a_missing_library_is_refused_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = judge([TENSORWISE], facts=facts_of("convnet", libraries={}), hardware=gpu((9, 0)))
    assert "pip install 'momadvise[quant]'" in verdict.reason
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(MethodRefusedError, match=r"torchao\.float8\.Float8LinearConfig cannot be imported"):
        training(TENSORWISE)
