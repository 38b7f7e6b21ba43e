"""Precision: what autocast and the process-wide tf32 switches leave behind."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import advisor
from advisor.errors import MethodRefusedError
from advisor.methods.base import Verdict
from advisor.methods.compose import apply_settings
from advisor.methods.formats.precision import Precision, use_tf32
from advisor.methods.setting import use
from tests.methods.tiny import cpu, facts_of, gpu, images, training_of


def switches() -> list[str]:
    cudnn: Any = torch.backends.cudnn
    return [switch.fp32_precision for switch in (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_master_weights_gradients_and_state_stay_float32(dtype: str) -> None:
    training = training_of("convnet")
    apply_settings(training, [use("precision", dtype=dtype)])
    training.backward(training.forward(images(2)))
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}
    assert {parameter.grad.dtype for parameter in training.model.parameters() if parameter.grad is not None} == {
        torch.float32
    }


def test_a_model_that_is_not_float32_is_refused() -> None:
    training = training_of("convnet")
    training.model.to(torch.bfloat16)
    with pytest.raises(MethodRefusedError, match=r"master weights must be float32.*bfloat16"):
        apply_settings(training, [use("precision", dtype="bf16")])


def test_float16_skips_a_step_whose_scaled_gradients_overflow_and_goes_on() -> None:
    training = training_of("convnet")
    apply_settings(training, [use("precision", dtype="fp16")])
    training.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-6)
    few_pixels = images(2, side=16)  # products in float16 are slow where they are emulated
    before = training.model.head.weight.detach().clone()  # type: ignore[union-attr,operator]
    training.step(few_pixels)
    assert torch.equal(training.model.head.weight, before)  # type: ignore[arg-type,union-attr]
    for _ in range(8):
        training.step(few_pixels)
        if not torch.equal(training.model.head.weight, before):  # type: ignore[arg-type,union-attr]
            return
    pytest.fail("every step was skipped")


def test_tf32_is_on_until_the_training_closes() -> None:
    before = switches()
    training = training_of("convnet")
    use_tf32(training)
    assert switches() == ["tf32"] * 3
    training.close()
    assert switches() == before


def test_tf32_that_was_already_on_is_said_to_change_nothing() -> None:
    first, second = training_of("convnet"), training_of("convnet")
    use_tf32(first)
    use_tf32(second)
    assert first.notes == []
    assert "changed nothing" in second.notes[0]
    second.close()
    assert switches() == ["tf32"] * 3
    first.close()


def test_nothing_sets_the_older_switches_of_tf32() -> None:
    """Trap: once fp32_precision was set, merely reading them raises."""
    old = {"allow_tf32", "set_float32_matmul_precision", "get_float32_matmul_precision"}
    sources = list(Path(advisor.__file__).parent.rglob("*.py"))
    trees = [ast.parse(source.read_text()) for source in sources]
    used = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "fp32_precision" in used
    assert not used & old


def test_under_fake_tensors_gradients_are_taken_as_finite_and_the_scale_as_it_began() -> None:
    with FakeTensorMode():
        training = training_of("convnet")
        apply_settings(training, [use("precision", dtype="fp16")])
        assert isinstance(training.step(images(2)), FakeTensor)
        assert training.gradient_scaler is not None
        assert training.gradient_scaler.get_scale() == 2.0**16
        assert len(training.optimizer.state) == len(list(training.model.parameters()))


def test_a_model_in_16_bits_is_refused_before_a_trial() -> None:
    facts = facts_of("convnet", parameter_dtypes=("bfloat16", "float32"))
    verdict = Precision().applicable({"dtype": "bf16"}, facts, cpu())
    assert "parameters of bfloat16" in verdict.reason
    assert Precision().applicable({"dtype": "tf32"}, facts, gpu((8, 0))).applicable


class TestOnACpu:
    """Trap: only a measurement tells whether a CPU has 16-bit arithmetic; 'yes' alone promises what may be refused."""

    @pytest.mark.parametrize("dtype", ["bf16", "fp16"])
    def test_before_a_measurement_it_is_said_that_one_will_be_made(self, dtype: str) -> None:
        verdict = Precision().applicable({"dtype": dtype}, None, cpu())
        assert verdict.applicable
        assert "measures whether this CPU only emulates it" in verdict.reason

    def test_after_it_nothing_is_left_to_say(self) -> None:
        facts = facts_of("convnet", matmul_flops_per_second={"float32": 1e11, "bfloat16": 2e11})
        assert Precision().applicable({"dtype": "bf16"}, facts, cpu()) == Verdict.yes()

    def test_a_gpu_is_known_by_its_compute_capability(self) -> None:
        assert Precision().applicable({"dtype": "bf16"}, None, gpu((9, 0))) == Verdict.yes()


def test_tf32_of_trainings_that_are_open_at_once_ends_with_the_last() -> None:
    before = switches()
    first, second = training_of("convnet"), training_of("convnet")
    use_tf32(first)
    use_tf32(second)
    first.close()
    assert switches() == ["tf32"] * 3
    second.close()
    assert switches() == before
