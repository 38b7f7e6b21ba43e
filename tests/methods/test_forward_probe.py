"""What one forward pass tells about the blocks: whether they are a chain, and why not."""

from __future__ import annotations

import re
import weakref

import pytest
import torch

from advisor.methods.compose import judge
from advisor.methods.setting import use
from advisor.training.forward_probe import ChainProbe, FunctionCounts
from advisor.training.structure import find_blocks
from tests.methods.test_chain import (
    Loop,
    Looping,
    another_mask_each,
    asking_for_shapes_and_moving_nowhere,
    drawing_between,
    halting_on_a_copy,
    hidden_batch,
    logging_between,
    numbering,
    plain_loop,
    scaling_between,
    skipping_last,
    skipping_second,
    summing_all,
    using_first_twice,
)
from tests.methods.tiny import MODELS, cpu, facts_of, training_of
from tests.pipeline_parallel import other_chains  # noqa: F401  # It adds its models.
from tests.pipeline_parallel.staged_models import batch_of, build, loss_of

USED_ELSEWHERE = "what a block returns is also used by something else than the next block"


def watched(loop: Loop, dropout: float = 0.0) -> str:
    model = Looping(loop, dropout=dropout)
    chain = ChainProbe(find_blocks(model))
    with chain.watching():
        model(hidden_batch())
    return chain.reason


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_of_both_models_are_a_chain(name: str) -> None:
    training = training_of(name)
    chain = ChainProbe(find_blocks(training.model))
    with chain.watching():
        training.forward(MODELS[name][1](2))
    assert chain.reason == ""


def test_a_hidden_state_by_keyword() -> None:
    def by_keyword(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            hidden = block(mask=model.mask, hidden_states=hidden)
        return hidden

    assert watched(by_keyword) == ""


@pytest.mark.parametrize(
    ("loop", "reason"),
    [
        (skipping_second, "the 4 blocks are not each called once, in their order"),
        (skipping_last, "the 4 blocks are not each called once, in their order"),
        (scaling_between, "block 1 (Block) is not called on what the block before it returned"),
        (another_mask_each, "block 1 (Block) is called with other arguments than the block before it"),
        (numbering, "block 1 (Block) is called with other arguments than the block before it"),
        (summing_all, f"{USED_ELSEWHERE} (add)"),
        (using_first_twice, f"{USED_ELSEWHERE} (tanh)"),
        (logging_between, f"{USED_ELSEWHERE} (cat)"),
        (halting_on_a_copy, f"{USED_ELSEWHERE} (detach)"),
    ],
)
def test_why_blocks_are_no_chain(loop: Loop, reason: str) -> None:
    assert watched(loop) == reason


def test_asking_for_shapes_and_moving_nowhere_is_no_use() -> None:
    assert watched(asking_for_shapes_and_moving_nowhere) == ""


def test_what_the_last_block_of_a_stage_returns_may_be_used() -> None:
    def by_stages(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
        middle = model.blocks[1](model.blocks[0](hidden))
        return model.blocks[3](model.blocks[2](middle)) + middle  # type: ignore[no-any-return]

    model = Looping(by_stages)
    for stages, used in ((None, True), ([range(4)], True), ([range(2), range(2, 4)], False)):
        chain = ChainProbe(find_blocks(model), stages)
        with chain.watching():
            model(hidden_batch())
        assert chain.reason.startswith(USED_ELSEWHERE) is used


def test_what_reads_a_block_in_auxiliary_logging_is_refused_before_any_trial() -> None:
    model = Looping(logging_between)
    chain = ChainProbe(find_blocks(model))
    with chain.watching():
        model(hidden_batch())
    facts = facts_of("convnet", chain_length=0, chain_reason=chain.reason)
    verdict = judge([use("sqrt_checkpoint")], facts=facts, hardware=cpu())
    assert not verdict.applicable
    assert USED_ELSEWHERE in verdict.reason


def test_a_block_without_a_hidden_state() -> None:
    model = Looping(lambda model, hidden: model.blocks[0](None, hidden))
    chain = ChainProbe(find_blocks(model))
    with pytest.raises(TypeError), chain.watching():
        model(hidden_batch())
    assert chain.reason == "block 0 (Block) takes no tensor as its first argument"


def test_numbers_drawn_between_blocks_matter_where_blocks_draw_too() -> None:
    assert "draws random numbers between" in watched(drawing_between, dropout=0.1)
    assert watched(drawing_between) == watched(plain_loop, dropout=0.1) == ""


def test_blocks_that_the_user_compiles_are_no_chain_and_run_all_the_same() -> None:
    """Trap: they are compiled with their hooks, which ask what no compiler can trace."""
    model = Looping(plain_loop)
    for block in model.blocks:
        block.compile(backend="aot_eager", fullgraph=True)
    chain = ChainProbe(find_blocks(model))
    with chain.watching(), FunctionCounts():
        model(hidden_batch())
    assert chain.reason == "the 4 blocks are not each called once, in their order"


def test_no_blocks_are_no_chain() -> None:
    assert "no repeated blocks were found" in ChainProbe([]).reason


def test_watching_keeps_no_hidden_state() -> None:
    seen: list[weakref.ref[torch.Tensor]] = []

    def noting(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
        for block in model.blocks:
            hidden = block(hidden)
            seen.append(weakref.ref(hidden))
        assert [reference() is None for reference in seen] == [True, True, True, False]
        return hidden

    with torch.no_grad():
        assert watched(noting) == ""


def test_functions_are_counted_inside_of_modules_too() -> None:
    with FunctionCounts() as functions:
        Looping(plain_loop)(hidden_batch())
    assert functions.counts["linear"] == 4
    assert functions.counts["square"] == 1


@pytest.mark.parametrize("kind", ["layer by layer", "between blocks", "returns weights", "collects weights"])
def test_blocks_that_are_no_chain_can_be_in_stages_of_a_pipeline(kind: str) -> None:
    chain = watched_chain(kind)
    assert chain.reason
    assert not chain.staged_reason


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("starts anew", r"block 2 \(Block\) is not called on what is computed from what the block before it returned"),
        ("returns a dict", "Block returns a dict, and no tensor first"),
    ],
)
def test_other_blocks_cannot(kind: str, reason: str) -> None:
    assert re.search(reason, watched_chain(kind).staged_reason)


def watched_chain(kind: str) -> ChainProbe:
    model, batch = build(kind), batch_of(kind)
    chain = ChainProbe(find_blocks(model))
    with chain.watching():
        loss_of(kind)(model, batch)
    return chain
