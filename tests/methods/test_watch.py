"""What one forward pass tells about the blocks: whether they are a chain, and why not."""

from __future__ import annotations

import weakref

import pytest
import torch

from advisor.methods.structure import find_blocks
from advisor.methods.watch import ChainWatch, FunctionCounts
from tests.methods.test_chain import (
    Loop,
    Looping,
    another_mask_each,
    drawing_between,
    hidden_batch,
    numbering,
    plain_loop,
    scaling_between,
    skipping_last,
    skipping_second,
)
from tests.methods.tiny import MODELS, training_of


def watched(loop: Loop, dropout: float = 0.0) -> str:
    model = Looping(loop, dropout=dropout)
    chain = ChainWatch(find_blocks(model))
    with chain.watching():
        model(hidden_batch())
    return chain.reason


@pytest.mark.parametrize("name", MODELS)
def test_the_blocks_of_both_models_are_a_chain(name: str) -> None:
    training = training_of(name)
    chain = ChainWatch(find_blocks(training.model))
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
    ],
)
def test_why_blocks_are_no_chain(loop: Loop, reason: str) -> None:
    assert watched(loop) == reason


def test_a_block_without_a_hidden_state() -> None:
    model = Looping(lambda model, hidden: model.blocks[0](None, hidden))
    chain = ChainWatch(find_blocks(model))
    with pytest.raises(TypeError), chain.watching():
        model(hidden_batch())
    assert chain.reason == "block 0 (Block) takes no tensor as its first argument"


def test_numbers_drawn_between_blocks_matter_where_blocks_draw_too() -> None:
    assert "draws random numbers between" in watched(drawing_between, dropout=0.1)
    assert watched(drawing_between) == watched(plain_loop, dropout=0.1) == ""


def test_no_blocks_are_no_chain() -> None:
    assert "no repeated blocks were found" in ChainWatch([]).reason


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
