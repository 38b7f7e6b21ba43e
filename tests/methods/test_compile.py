"""Compilation: what is compiled, that it is undone, and that it never fails in silence."""

from __future__ import annotations

import copy
import gc
import shutil
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, conflict_between, judge
from advisor.methods.kernels import _compile as compiled
from advisor.methods.kernels._compile import CompiledCall
from advisor.methods.setting import MethodSetting, use
from advisor.training.compiler import why_not_compiled
from advisor.training.structure import find_blocks
from advisor.training.training import Training
from tests.contract.observe import observe, relative_error, samples_for
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import MODELS, ConvNet, adamw, cpu, facts_of, gpu, images, text, training_of

BLOCKS = use("compile", scope="blocks")
MODEL = use("compile", scope="model")


@pytest.fixture
def quick() -> Iterator[None]:
    with quick_compiler():
        yield


def compiled_modules(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if module._compiled_call_impl is not None]


@pytest.mark.usefixtures("quick")
def test_blocks_or_the_whole_model_are_compiled_in_place_until_the_training_closes() -> None:
    for chosen, expected in ((BLOCKS, [f"blocks.{number}" for number in range(4)]), (MODEL, [""])):
        training = training_of("convnet")
        names = list(training.model.state_dict())
        apply_settings(training, [chosen])
        assert compiled_modules(training.model) == expected
        assert list(training.model.state_dict()) == names
        training.close()
        assert compiled_modules(training.model) == []


@pytest.mark.usefixtures("quick")
def test_blocks_that_are_alike_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.utils.counters.clear()
    training = training_of("gpt2")
    apply_settings(training, [BLOCKS])
    training.step(text(2))
    training.close()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert any("use_cache" in note for note in training.notes)  # with its cache, every block is of its own kind


def test_closing_leaves_no_compiled_code_and_no_model_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with quick_compiler(), pytest.MonkeyPatch.context() as patch:
        resets: list[None] = []
        patch.setattr(torch._dynamo, "reset", lambda: resets.append(None))
        training = training_of("convnet")
        apply_settings(training, [BLOCKS])
        training.step(images(2))
        model = weakref.ref(training.model)
        training.close()
        assert resets == [None]
        del training
        gc.collect()
        assert model() is None


@pytest.mark.usefixtures("quick")
def test_a_copy_of_a_compiled_model_is_plain() -> None:
    training = training_of("convnet")
    apply_settings(training, [BLOCKS])
    training.step(images(2))
    assert compiled_modules(copy.deepcopy(training.model)) == []
    training.close()


@pytest.mark.usefixtures("quick")
def test_a_copy_of_a_compiled_model_that_recomputes_runs_its_own_weights() -> None:
    """The trap: an average of the weights silently computed with the live ones in every region."""
    training = training_of("convnet")
    apply_settings(training, [MODEL, use("checkpoint", every=1)])
    training.step(images(2))
    copied = copy.deepcopy(training.model).eval()
    batch = images(2)
    with torch.no_grad():
        before = training.evaluate(lambda model: model(*batch))
        assert torch.allclose(copied(*batch), before, rtol=1e-3)
        for parameter in copied.blocks.parameters():
            parameter.zero_()
        assert not torch.allclose(copied(*batch), before, rtol=1e-3)
        assert torch.allclose(training.evaluate(lambda model: model(*batch)), before, rtol=1e-3)
    training.close()


@pytest.mark.usefixtures("quick")
def test_recomputed_regions_are_compiled_as_pieces_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    recompute = use("checkpoint", every=1)
    training = training_of("convnet")
    apply_settings(training, [MODEL, recompute])
    assert compiled_modules(training.model) == ["", *(f"blocks.{n}._checkpoint_wrapped_module" for n in range(4))]
    training.close()
    assert compiled_modules(training.model) == []
    plain = observe("convnet", [], monkeypatch)
    alone, together = (observe("convnet", [MODEL, *more], monkeypatch) for more in ([], [recompute]))
    assert together.held_bytes < 0.5 * alone.held_bytes
    assert relative_error(together.gradients[0], plain.gradients[0]) < 2e-3
    for name in ("blocks.0.norm.running_mean", "blocks.3.norm.running_var"):
        assert torch.allclose(together.state[name], plain.state[name], atol=1e-3)  # updated once, not twice


@pytest.mark.usefixtures("quick")
def test_swap_moves_what_compiled_blocks_save(monkeypatch: pytest.MonkeyPatch) -> None:
    swap = use("swap", min_bytes=2**20)
    alone, together = (
        observe("convnet", [BLOCKS, *more], monkeypatch, samples=samples_for([swap])) for more in ([], [swap])
    )
    assert together.held_bytes < 0.5 * alone.held_bytes
    assert relative_error(together.gradients[0], alone.gradients[0]) == 0.0


class Elsewhere(nn.Module):
    """Its loss calls its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.net = ConvNet()

    def forward(self, batch: Any) -> torch.Tensor:
        raise AssertionError("never called")


@pytest.mark.usefixtures("quick")
def test_a_model_that_the_loss_does_not_call_is_not_compiled_and_a_note_says_so() -> None:
    training = Training(Elsewhere(), compute_loss=lambda model, batch: model.net(*batch), build_optimizer=adamw)
    apply_settings(training, [MODEL])
    for _ in range(2):
        training.step(images(2))
    training.close()
    assert [note for note in training.notes if "changed nothing" in note] == [
        "compile model changed nothing: a step does not call what it compiled"
    ]


def test_a_chunked_loss_calls_the_models_parts_so_only_blocks_can_be_compiled_with_it() -> None:
    chunked = use("chunked_cross_entropy", chunks=8)
    assert "scope=blocks" in str(conflict_between([chunked, MODEL]))
    assert conflict_between([chunked, BLOCKS]) is None


@pytest.mark.usefixtures("quick")
def test_a_graph_that_cannot_be_compiled_is_a_refusal_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Any, inputs: Any, *, budgeted: bool) -> Any:
        raise ValueError("no kernel for this\nsecond line")

    monkeypatch.setattr(compiled, "BACKEND", broken)
    training = training_of("convnet")
    apply_settings(training, [BLOCKS])
    with pytest.raises(MethodRefusedError, match=r"but: ValueError: no kernel for this$"):
        training.step(images(2))
    training.close()


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.mark.usefixtures("quick")
def test_more_kinds_of_arguments_than_are_compiled_for_are_a_refusal_and_not_silently_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiled, "_RECOMPILE_LIMIT", 2)
    limit = torch._dynamo.config.recompile_limit
    call = CompiledCall(Doubling(), lambda graph, inputs: graph.forward)
    call(torch.ones(1, 2))
    call(torch.ones(2, 2))
    with pytest.raises(MethodRefusedError, match="FailOnRecompileLimitHit"):
        call(torch.ones(3, 2))
    assert torch._dynamo.config.recompile_limit == limit


@pytest.mark.usefixtures("quick")
def test_a_model_that_is_compiled_already_is_refused() -> None:
    training = training_of("convnet")
    find_blocks(training.model)[1].compile(backend="eager")
    with pytest.raises(MethodRefusedError, match=r"'blocks\.1' is compiled already"):
        apply_settings(training, [BLOCKS])
    wrapped = Training(torch.compile(MODELS["convnet"][0](), backend="eager"), build_optimizer=adamw)
    with pytest.raises(MethodRefusedError, match="'itself' is compiled already"):
        apply_settings(wrapped, [MODEL])


@pytest.mark.usefixtures("quick")
def test_a_compiled_training_sees_that_its_first_step_does_not_count() -> None:
    training = training_of("convnet")
    apply_settings(training, [BLOCKS])
    assert training.settling_steps >= 1
    training.close()


def test_without_a_compiler_it_is_refused_before_and_in_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    reason = why_not_compiled(torch.device("cpu"))
    assert "C++ compiler" in reason
    assert "CXX" in reason
    for chosen in (BLOCKS, use("compile_budget", budget=0.5)):
        verdict = judge([chosen], facts=facts_of("convnet", compiler=reason), hardware=cpu())
        assert verdict.reason == f"{chosen.words}: {reason}"
        with pytest.raises(MethodRefusedError, match="C\\+\\+ compiler"):
            apply_settings(training_of("convnet"), [chosen])


def test_gpus_older_than_volta_are_refused() -> None:
    assert "7.0" in judge([BLOCKS], facts=None, hardware=gpu((6, 1))).reason
    assert judge([BLOCKS], facts=None, hardware=gpu((7, 0))).applicable


@pytest.mark.parametrize("chosen", [BLOCKS, use("compile_budget", budget=0.5)], ids=lambda chosen: chosen.name)
def test_blocks_that_do_not_exist_cannot_be_compiled(chosen: MethodSetting) -> None:
    verdict = judge([chosen], facts=facts_of("convnet", block_count=0), hardware=cpu())
    assert "no repeated blocks" in verdict.reason
    with pytest.raises(MethodRefusedError, match="no repeated blocks"):
        apply_settings(Training(nn.Linear(2, 2), build_optimizer=adamw), [chosen])


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("chosen", [BLOCKS, use("compile_budget", budget=0.5)], ids=lambda chosen: chosen.name)
def test_padded_micro_batches_with_a_chunked_loss_are_weighted_by_their_tokens(chosen: MethodSetting) -> None:
    """The loss of the whole batch is the mean over its tokens, however these lie in the micro-batches."""
    batch = text(8)
    batch["labels"][4:, 8:] = -100  # the second half of the samples has an eighth of the tokens
    gradients = []
    for settings, micro_batch in (([], None), ([chosen, use("chunked_cross_entropy", chunks=8)], 4)):
        training = training_of("gpt2", dropout=0.0, micro_batch=micro_batch)
        apply_settings(training, settings)
        seen: dict[str, torch.Tensor] = {}
        names = {id(parameter): name for name, parameter in training.model.named_parameters()}

        def keep(optimizer: torch.optim.Optimizer, *_: Any, seen: Any = seen, names: Any = names) -> None:
            seen.update({names[id(p)]: p.grad.clone() for group in optimizer.param_groups for p in group["params"]})

        training.optimizer.register_step_pre_hook(keep)
        loss = training.step(batch)
        training.close()
        gradients.append((loss, seen))
    (plain_loss, plain), (loss, measured) = gradients
    assert torch.allclose(loss, plain_loss, rtol=1e-5)
    assert relative_error(measured, plain) < 1e-4


@pytest.mark.slow
def test_torchs_default_compiler_trains_as_plain_training_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    """With kernels. Dropout draws the masks of plain training, also where a region is recomputed."""
    plain = observe("convnet", [], monkeypatch)
    for settings in ([BLOCKS], [BLOCKS, use("checkpoint", every=1)]):
        changed = observe("convnet", settings, monkeypatch)
        assert relative_error(changed.gradients[0], plain.gradients[0]) < 2e-3
        assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(changed.losses, plain.losses, strict=True))


def test_a_module_that_raises_an_error_of_its_own_raises_it() -> None:
    class Raising(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    with quick_compiler(), pytest.raises(KeyError, match="mine"):
        CompiledCall(Raising(), lambda graph, inputs: graph.forward)(torch.ones(1))
