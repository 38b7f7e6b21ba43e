"""Recomputation that the compiler plans: less is kept as the budget falls, and the gradients stay right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._functorch.config
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.kernels import _compile as compiled
from advisor.methods.kernels._compile import KeepRandom, drawing_operators
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.contract.observe import observe, relative_error
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import adamw

BUDGETS = (0.75, 0.5, 0.25, 0.1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.wide = nn.Linear(32, 128)
        self.narrow = nn.Linear(128, 32)
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(nn.functional.gelu(self.wide(self.norm(x))))
        return x + self.dropout(torch.sin(self.narrow(hidden)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(3)))
        self.head = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(x)).square().mean()


def run(budget: float | None) -> tuple[torch.Tensor, dict[str, torch.Tensor], int]:
    """Loss, gradients, and the bytes that the compiled blocks save, without the parameters."""
    torch.manual_seed(0)
    training = Training(Net(), compute_loss=lambda model, x: model(x), build_optimizer=adamw)
    apply_settings(training, [] if budget is None else [use("compile_budget", budget=budget)])
    try:
        torch.manual_seed(1)
        loss = training.forward(torch.randn(64, 32))
        held = saved_bytes(loss, training.model)
        training.backward(loss)
    finally:
        training.close()
    gradients = {name: p.grad.clone() for name, p in training.model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients, held


def saved_bytes(loss: torch.Tensor, model: nn.Module) -> int:
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    storages: dict[int, int] = {}
    seen: set[Any] = set()
    waiting = [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
        for tensor in getattr(node, "saved_tensors", ()):
            storage = tensor.untyped_storage()
            if storage._cdata not in own:
                storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


@pytest.mark.slow
def test_with_kernels_a_smaller_budget_keeps_less_and_the_gradients_stay_right() -> None:
    plain_loss, plain, _ = run(None)
    held = []
    for budget in (BUDGETS[0], BUDGETS[-1]):
        loss, gradients, bytes_held = run(budget)
        assert torch.allclose(loss, plain_loss, rtol=1e-5)
        assert relative_error(gradients, plain) < 1e-4
        held.append(bytes_held)
    assert held[-1] < 0.7 * held[0]


@pytest.mark.slow
def test_a_compiler_that_would_draw_dropout_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeepRandom, "__call__", lambda self, graph: None)
    monkeypatch.setattr(KeepRandom, "uuid", lambda self: "keeps nothing")
    with pytest.raises(MethodRefusedError, match="draw random numbers again in the backward pass"):
        run(0.1)


def test_torch_draws_dropout_again_unless_it_is_told_to_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: the loss is right, and the gradients are not those of this loss."""
    plain_loss, plain, _ = run(None)
    with quick_compiler():
        loss, gradients, _ = run(0.1)
        assert torch.allclose(loss, plain_loss, rtol=1e-5)
        assert relative_error(gradients, plain) < 1e-4
        torch._dynamo.reset_code_caches()
        monkeypatch.setattr("tests.methods.quick_compiler.keep_random", lambda graph: None)
        loss, gradients, _ = run(0.1)
        assert torch.allclose(loss, plain_loss, rtol=1e-5)
        assert relative_error(gradients, plain) > 0.1


def test_each_smaller_budget_keeps_less_of_a_transformer(monkeypatch: pytest.MonkeyPatch) -> None:
    with quick_compiler():
        held = [observe("gpt2", [use("compile_budget", budget=b)], monkeypatch).held_bytes for b in (0.5, 0.1)]
        free = observe("gpt2", [use("compile", scope="blocks")], monkeypatch).held_bytes
    assert held[1] < 0.75 * held[0]
    assert held[0] < 0.75 * free


def test_the_budget_holds_while_blocks_are_compiled_and_at_no_other_time(monkeypatch: pytest.MonkeyPatch) -> None:
    config = torch._functorch.config
    seen = []

    def backend(graph: torch.fx.GraphModule, inputs: Any, *, budgeted: bool) -> Any:
        seen.append((config.activation_memory_budget, config.enable_autograd_cache, budgeted))
        return graph.forward

    before = config.activation_memory_budget, config.enable_autograd_cache
    monkeypatch.setattr(compiled, "BACKEND", backend)
    run(0.25)
    assert set(seen) == {(0.25, False, True)}
    assert (config.activation_memory_budget, config.enable_autograd_cache) == before


def test_it_is_refused_where_torch_has_no_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._functorch.config, "activation_memory_budget")
    with pytest.raises(MethodRefusedError, match="activation_memory_budget"):
        run(0.5)


def test_operators_that_draw_are_found_and_attention_only_where_it_drops_out() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention.default
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.call_function(attention, (x, x, x))
    assert drawing_operators(graph) == []
    graph.call_function(attention, (x, x, x, 0.5))
    graph.call_function(attention, (x, x, x), {"dropout_p": 0.5})
    assert len(drawing_operators(graph)) == 2


@pytest.mark.parametrize("kernel", ["efficient", "cudnn"])
def test_the_backward_pass_of_attention_on_cuda_draws_nothing_anew(kernel: str) -> None:
    """Trap: torch says that it does, although it is given the seed of the forward pass; on a CPU it is another one."""
    operator = getattr(torch.ops.aten, f"_scaled_dot_product_{kernel}_attention_backward").default
    assert torch.Tag.nondeterministic_seeded in operator.tags
    graph = torch.fx.Graph()
    graph.call_function(operator, (0.1,) * len(operator._schema.arguments))
    assert drawing_operators(graph) == []


def test_only_operators_that_draw_are_marked_as_kept() -> None:
    x = torch.randn(4)
    graph = make_fx(lambda x: torch.dropout(x, 0.5, True).sin())(x).graph
    KeepRandom()(graph)
    marked = [str(node.target) for node in graph.nodes if "recompute" in node.meta]
    assert marked == drawing_operators(graph)
    assert len(marked) == 1
