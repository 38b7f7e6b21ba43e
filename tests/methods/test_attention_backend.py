"""Choosing the kernel of attention: it is used in the backward pass too, comes back, and is refused with a reason."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.tiny import adamw, cpu, facts_of, gpu, text, training_of

MATH = use("attention_backend", kernel="math")
FLASH = use("attention_backend", kernel="flash")


def flags() -> tuple[bool, ...]:
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.cudnn_sdp_enabled(), cuda.math_sdp_enabled()


class Kernels(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts calls of the fused kernel and of softmax, which only plain operators call."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = self.plain = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        self.fused += name.startswith("aten._scaled_dot_product_flash_attention_for_cpu.")
        self.plain += name.startswith(("aten._softmax.", "aten._safe_softmax."))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("recompute", [(), (use("checkpoint", every=1),)], ids=["kept", "recomputed"])
def test_one_kernel_computes_all_attention_in_both_passes(recompute: tuple[MethodSetting, ...]) -> None:
    for chosen, expected in ((MATH, "plain"), (FLASH, "fused")):
        training = training_of("gpt2", dropout=0.0)
        apply_settings(training, [chosen, *recompute])
        with Kernels() as kernels:
            training.step(text(2))
        training.close()
        passes = 2 if recompute else 1
        assert getattr(kernels, expected) == 4 * passes
        assert {kernels.fused, kernels.plain} == {0, 4 * passes}


def test_the_choice_holds_until_the_training_closes() -> None:
    before = flags()
    training = training_of("gpt2")
    apply_settings(training, [MATH])
    assert flags() == (False, False, False, True)
    training.close()
    assert flags() == before


def test_a_kernel_that_torch_chooses_by_itself_changes_nothing_and_a_note_says_so() -> None:
    for dropout, chosen, other in ((0.0, FLASH, MATH), (0.1, MATH, None)):
        training = training_of("gpt2", dropout=dropout)
        apply_settings(training, [chosen])
        for _ in range(2):
            training.step(text(2))
        training.close()
        assert training.notes == [f"{chosen.words} changed nothing: torch chooses this kernel by itself"]
        if other is not None:
            training = training_of("gpt2", dropout=dropout)
            apply_settings(training, [other])
            training.step(text(2))
            training.close()
            assert training.notes == []


def test_a_step_for_which_the_kernel_does_not_suit_is_refused_with_torchs_reason() -> None:
    training = training_of("gpt2", dropout=0.1)
    apply_settings(training, [FLASH])
    with pytest.raises(MethodRefusedError, match=r"every attention of the model.*: .*non-zero dropout"):
        training.step(text(2))
    training.close()


@pytest.mark.parametrize(
    "words",
    [
        "No available kernel. Aborting execution.",
        "No viable backend for scaled_dot_product_attention was found.",
        "Invalid backend",  # where torch prefers cuDNN, as on Hopper, and then comes to the kernels of plugins
    ],
)
def test_whatever_torch_says_when_no_kernel_suits_is_a_refusal(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def choice(*_: Any, **__: Any) -> int:
        raise RuntimeError(words)

    training = training_of("gpt2")
    apply_settings(training, [FLASH])
    monkeypatch.setattr(torch, "_fused_sdp_choice", choice)
    with pytest.raises(MethodRefusedError, match="this kernel must suit every attention"):
        training.step(text(2))
    training.close()


def test_attention_inside_torchs_own_module_is_computed_by_the_kernel_too() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
    training = Training(layer, compute_loss=lambda model, x: model(x).square().mean(), build_optimizer=adamw)
    apply_settings(training, [MATH])
    with Kernels() as kernels:
        training.step(torch.randn(2, 4, 16))
    training.close()
    assert kernels.plain == 1
    assert training.notes == []  # calls inside are not seen, so there is no note


def test_it_is_judged_by_the_hardware_and_by_what_the_model_calls() -> None:
    verdict = judge([MATH], facts=facts_of("convnet"), hardware=cpu())
    assert "ConvNet never calls" in verdict.reason
    assert judge([MATH], facts=facts_of("convnet", function_counts={}), hardware=cpu()).applicable  # nothing is known
    torchs_own = facts_of("convnet", function_counts={"multi_head_attention_forward": 1})
    assert judge([MATH], facts=torchs_own, hardware=cpu()).applicable
    for kernel in ("efficient", "cudnn"):
        chosen = use("attention_backend", kernel=kernel)
        assert "NVIDIA" in judge([chosen], facts=None, hardware=cpu()).reason
        with pytest.raises(MethodRefusedError, match="NVIDIA"):
            apply_settings(training_of("gpt2"), [chosen])
    assert "16-bit" in judge([FLASH], facts=None, hardware=gpu((8, 0))).reason
    assert "use efficient" in judge([FLASH], facts=None, hardware=gpu((7, 5))).reason
    assert judge([use("attention_backend", kernel="efficient")], facts=None, hardware=gpu((7, 5))).applicable


def test_trainings_that_are_open_at_once_may_be_closed_in_any_order() -> None:
    """Trap: what the first leaves behind when it closes is not what the second found."""
    before = flags()
    first, second = training_of("gpt2"), training_of("gpt2")
    apply_settings(first, [FLASH])
    apply_settings(second, [MATH])
    first.close()
    assert flags() == (False, False, False, True)
    second.close()
    assert flags() == before
