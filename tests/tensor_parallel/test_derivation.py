"""How blocks are sliced is found from what they compute, in one process, and refused where it would be wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel import _derivation
from advisor.methods.tensor_parallel._collectives import in_threads
from advisor.methods.tensor_parallel._derivation import Derivation, derive
from advisor.methods.tensor_parallel._vocabulary import slice_vocabulary
from advisor.training.structure import find_blocks
from tests.tensor_parallel.models import (
    HIDDEN,
    VOCABULARY,
    Block,
    InlineBlock,
    Model,
    WidthBlock,
    build,
    loss_of,
    tokens,
)


def derived(kind: str, degree: int = 2) -> Derivation:
    model = build(kind)
    return derive(model, find_blocks(model), loss_of(kind), degree)


def derived_from(block: Callable[[], nn.Module], degree: int = 2) -> Derivation:
    model = Model(block)
    return derive(model, list(model.blocks), lambda model: model(tokens()), degree)


def test_a_packed_projection_is_sliced_by_heads_within_each_of_its_parts() -> None:
    attention, mlp = derived("gpt2").plans[0].regions
    half = HIDDEN // 2
    for rank, rows in enumerate(attention.rows[0]):
        expected = torch.cat(
            [torch.arange(part + rank * half, part + (rank + 1) * half) for part in (0, HIDDEN, 2 * HIDDEN)]
        )
        assert torch.equal(rows, expected)
    assert [str(size) for size in attention.sizes] == ["attn.split_size"]
    assert (mlp.entries, mlp.exit) == (("mlp.c_fc",), "mlp.c_proj")


def test_heads_that_are_interleaved_in_a_packed_projection_stay_together() -> None:
    attention = derived("neox").plans[0].regions[0]
    assert torch.equal(attention.rows[0][0], torch.arange(3 * HIDDEN // 2))


def test_a_module_that_reads_its_width_from_its_input_is_given_that_of_its_part() -> None:
    attention, mlp = derived("by width").plans[0].regions
    assert (attention.around, attention.narrow, mlp.narrow) == ("attention", True, False)
    assert {str(size) for size in attention.sizes} == {"attention.heads", "attention.width"}
    assert derived("by width").no_sequence == ""
    peeking = derived_from(lambda: WidthBlock(peek=True)).plans[0]
    assert [region.exit for region in peeking.regions] == ["mlp.2"], "nothing else may read what it is given"


def test_norms_of_single_heads_get_a_part_of_their_gradient() -> None:
    assert derived("qwen3").plans[0].partial == ("self_attn.q_norm.weight", "self_attn.k_norm.weight")
    assert derived("llama").plans[0].partial == ()


def test_sizes_in_a_configuration_are_divided_in_a_copy_that_is_the_modules_own() -> None:
    plan = derived("phi3").plans[0]
    assert "self_attn.config.num_attention_heads" in {str(size) for region in plan.regions for size in region.sizes}
    assert plan.whole_share < 0.02


def test_groups_of_heads_that_the_degree_does_not_divide_leave_attention_whole_and_say_how_much_that_is() -> None:
    found = derived("llama", 4)
    model = build("llama")
    block = model.model.layers[0]
    left = sum(one.numel() for name, one in block.named_parameters() if not name.startswith("mlp"))
    assert found.whole_share == pytest.approx(left / sum(one.numel() for one in block.parameters()))
    assert any("4 ranks need the same outputs of self_attn.k_proj" in reason for reason in found.reasons)
    assert [region.exit for region in found.plans[0].regions] == ["mlp.down_proj"]


class Held(nn.Module):
    """A block around torch's own attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.attention = nn.MultiheadAttention(HIDDEN, 4, batch_first=True)
        self.up, self.down = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        read = self.norm(hidden)
        hidden = hidden + self.attention(read, read, read)[0]
        return hidden + self.down(self.up(hidden).relu())


def test_what_stays_whole_is_said_with_its_reason() -> None:
    bare = derived_from(Held)
    assert any("nn.MultiheadAttention keeps its projections as bare parameters" in each for each in bare.reasons)
    assert 0.45 < bare.whole_share < 0.55
    experts = derived("mixtral")
    assert any("experts" in reason and "gate_up_proj" in reason for reason in experts.reasons)
    assert experts.whole_share > 0.85
    biased = derived("t5")
    assert any("its code holds sizes that cannot be divided by 2" in reason for reason in biased.reasons)
    assert 0.4 < biased.whole_share < 0.6


def test_a_model_of_which_nothing_can_be_sliced_is_refused_with_the_reasons() -> None:
    found = derived("gpt2", 3)
    with pytest.raises(MethodRefusedError, match=r"100 % .* which 3 ranks cannot share evenly"):
        found.require(sequence=False)


class Twice(Block):
    """A block that calls one linear layer twice."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden) + self.down(self.up(hidden))


def test_a_layer_that_is_called_twice_or_tied_or_watched_is_not_sliced() -> None:
    twice = derived_from(Twice).plans[0]
    assert "up.weight" not in twice.slices
    assert any("called more than once" in reason for reason in twice.reasons)
    model = Model(Block)
    model.blocks[0].up.weight = model.blocks[1].up.weight
    model.blocks[0].attention.out.register_forward_hook(lambda module, args, output: None)
    first = derive(model, list(model.blocks), lambda model: model(tokens()), 2).plans[0]
    assert first.regions == ()
    assert any("tied" in reason for reason in first.reasons)


@pytest.mark.parametrize("kind", ["inline", "inline, guessing"])
def test_code_that_reads_the_number_of_tokens_where_it_is_split_is_refused_also_where_no_shape_tells(kind: str) -> None:
    found = derived(kind)
    found.require(sequence=False)
    assert found.plans[0].whole_share < 0.03
    with pytest.raises(MethodRefusedError, match=r"needs all tokens .*use sequence=False"):
        found.require(sequence=True)


def test_a_number_of_tokens_that_the_degree_does_not_divide_is_refused_for_a_sequence() -> None:
    found = derived("vit, 17 tokens")
    found.require(sequence=False)
    with pytest.raises(MethodRefusedError, match="17 tokens and 2 ranks"):
        found.require(sequence=True)


class Skipping(Model):
    """Uses what the first block returned once more."""

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        first = self.blocks[0](self.embedding(given))
        return nn.functional.cross_entropy(
            self.head(self.norm(self.blocks[1](first) + first)).flatten(0, 1), given.flatten()
        )


def test_a_sequence_is_not_split_between_blocks_whose_outputs_something_else_uses() -> None:
    model = Skipping(Block)
    found = derive(model, list(model.blocks), lambda model: model(tokens()), 2)
    found.require(sequence=False)
    with pytest.raises(MethodRefusedError, match="something else than the next block uses"):
        found.require(sequence=True)


def test_a_loss_on_what_routers_return_is_refused_for_a_sequence_alone() -> None:
    model = build("mixtral")
    model.config.output_router_logits = True
    found = derive(model, find_blocks(model), loss_of("mixtral"), 2)
    found.require(sequence=False)
    with pytest.raises(MethodRefusedError, match="uses what a block returns or computes"):
        found.require(sequence=True)


def test_a_loss_on_what_a_region_computes_is_refused() -> None:
    class Penalized(Model):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            seen: list[torch.Tensor] = []
            hook = self.blocks[0].attention.core.register_forward_hook(lambda *call: seen.append(call[-1]))
            loss = super().forward(given)
            hook.remove()
            return loss + seen[0].square().mean()

    model = Penalized(Block)
    found = derive(model, list(model.blocks), lambda model: model(tokens()), 2)
    assert not any(plan.regions for plan in found.plans)
    with pytest.raises(MethodRefusedError, match=r"attention\.qkv: the loss reads them, or what they compute"):
        found.require(sequence=False)


def test_a_sequence_is_split_only_between_blocks_that_follow_on_each_other() -> None:
    class Pausing(Model):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            hidden = self.norm(self.blocks[1](self.blocks[0](self.embedding(given))))
            return self.head(self.blocks[3](self.blocks[2](hidden))).square().mean()

    model = Pausing(Block, layers=4)
    assert derive(model, list(model.blocks), lambda model: model(tokens()), 2).runs == (range(2), range(2, 4))


@pytest.mark.parametrize("kind", ["by hand", "gpt2", "phi3", "t5"])
def test_the_model_is_left_as_it_was(kind: str) -> None:
    model = build(kind)
    model.train()
    next(model.children()).eval()
    first = next(model.parameters())
    first.requires_grad_(False)
    torch.manual_seed(5)
    before = _everything(model)
    derive(model, find_blocks(model), loss_of(kind), 2)
    after = _everything(model)
    assert before.keys() == after.keys()
    for name, value in before.items():
        same = torch.equal(value, after[name]) if isinstance(value, torch.Tensor) else value == after[name]
        assert same, name


def test_what_a_forward_pass_writes_and_draws_is_undone() -> None:
    class Writing(Model):
        def __init__(self) -> None:
            super().__init__(Block)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, given: torch.Tensor) -> torch.Tensor:
            self.calls.add_(1)
            return super().forward(given) + 0 * torch.rand(1)

    model = Writing()
    before = _everything(model)
    derive(model, list(model.blocks), lambda model: model(tokens()), 2)
    assert torch.equal(before["random numbers"], torch.get_rng_state())
    assert float(model.calls) == 0.0


def _everything(model: nn.Module) -> dict[str, Any]:
    found: dict[str, Any] = {"random numbers": torch.get_rng_state()}
    for name, module in model.named_modules():
        found[f"{name} class"] = type(module)
        found |= {f"{name}.{key}": value for key, value in vars(module).items() if type(value) in (int, bool, str)}
        found[f"{name} hooks"] = [len(vars(module)[key]) for key in sorted(vars(module)) if key.endswith("_hooks")]
        found[f"{name} own"] = sorted(key for key in vars(module) if key == "forward")
        if hasattr(module, "config"):
            found[f"{name} config"] = (id(module.config), str(module.config))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        found[f"{name} value"] = tensor.detach().clone()
        found[f"{name} of"] = (id(tensor), tensor.requires_grad, tensor.grad is None)
    return found


def test_blocks_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[nn.Module] = []
    plan = _derivation._plan

    def counted(block: nn.Module, *args: Any) -> Any:
        looked.append(block)
        return plan(block, *args)

    monkeypatch.setattr(_derivation, "_plan", counted)
    model = Model(Block, layers=5)
    found = derive(model, list(model.blocks), lambda model: model(tokens()), 2)
    assert len(looked) == 1
    assert len({id(one) for one in found.plans}) == 1
    looked.clear()
    numbered = Model(Block, layers=3)
    for number, block in enumerate(numbered.blocks):
        block.layer_idx = number
    other = numbered.blocks[2].attention
    other.heads, other.size = 2, HIDDEN // 2
    derive(numbered, list(numbered.blocks), lambda model: model(tokens()), 2)
    assert looked == [numbered.blocks[0], numbered.blocks[2]]
    looked.clear()
    mixed = Model(Block, layers=2)
    mixed.blocks.append(InlineBlock())
    derive(mixed, list(mixed.blocks), lambda model: model(tokens()), 2)
    assert len(looked) == 2


def test_a_block_that_evaluates_past_its_own_layers_is_sliced_so_that_it_does_not() -> None:
    """The derivation compares outputs without gradients, too: torch's encoder layer then takes another path."""
    found = derived_from(lambda: nn.TransformerEncoderLayer(HIDDEN, 4, 64, batch_first=True))
    assert [region.exit for region in found.plans[0].regions] == ["linear2"]
    assert 0.4 < found.whole_share < 0.6


def test_frozen_parameters_change_nothing() -> None:
    model = Model(Block)
    for block in model.blocks:
        block.attention.qkv.weight.requires_grad_(False)
        block.down.requires_grad_(False)
        block.norm1.requires_grad_(False)
    found = derive(model, list(model.blocks), lambda model: model(tokens()), 2)
    found.require(sequence=True)
    assert found.whole_share < 0.03


def test_numbers_of_16_bits_are_compared_in_32() -> None:
    """Sums of gradients over tokens would differ by several percent."""
    for seed in range(4):
        torch.manual_seed(seed)
        block = Block(64, 8).bfloat16()
        model = nn.Sequential(block, Block(64, 8).bfloat16())
        hidden = torch.randn(2, 64, 64).bfloat16()
        found = derive(model, list(model), lambda model, hidden=hidden: model(hidden), 2)
        found.require(sequence=True)
        assert block.up.weight.dtype == torch.bfloat16


def test_dead_features_are_sliced_all_the_same() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(HIDDEN, 64), nn.Linear(64, HIDDEN)
            with torch.no_grad():
                self.up.bias[3:9] = -1e3

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden + self.down(self.up(hidden).relu())

    assert derived_from(Dead).plans[0].whole_share < 0.02


def test_a_vocabulary_that_ranks_cannot_share_is_refused() -> None:
    model = Model(Block)
    refused = in_threads(5, lambda ranks: _refusal(model, model.embedding.weight, ranks))
    assert all(f"there are {VOCABULARY} and 5 ranks; pad the vocabulary" in each for each in refused)
    held = in_threads(2, lambda ranks: _refusal(model, model.norm.weight, ranks))
    assert all("norm is a LayerNorm" in each for each in held)


def _refusal(model: nn.Module, weight: nn.Parameter, ranks: Any) -> str:
    with pytest.raises(MethodRefusedError) as refused:
        slice_vocabulary(model, [weight], ranks)
    return str(refused.value)
