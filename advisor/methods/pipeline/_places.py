"""The places of blocks in a model: of own ones, and of those that are in other stages."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from advisor.methods.pipeline._passage import Passage
from advisor.training.structure import TransparentWrapper, unwrapped

__all__ = ["OtherBlock", "StageLink", "drop_other_blocks", "linked", "parameters_of_blocks", "put_links"]

_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, tuple)


class OtherBlock(nn.Module):
    """In the place of a block of another stage: without parameters, with the plain attributes that models read.

    Those of modules inside of it as well: ``nn.TransformerEncoder`` looks into the attention of its first layer.

    Args:
        block: The block.
        number: Its number in the chain.
        passage: Says what a call returns.
    """

    def __init__(self, block: nn.Module, number: int, passage: Passage) -> None:
        super().__init__()
        self.training = block.training
        self.number = number
        self._passage = passage
        self._first = next(iter(inspect.signature(block.forward).parameters), "")
        self.kind = type(block).__name__
        self._outline = _Outline(block, f"block {number} ({self.kind}) is in another stage of the pipeline")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_outline":  # while it is built or copied
                raise
            return getattr(self._outline, name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the passage says."""
        return self._passage.skip(self.number, args[0] if args else kwargs.get(self._first))


class _Outline:
    """Plain attributes of a module, and outlines of the modules inside of it.

    Args:
        module: The module.
        where: Where the rest is.
    """

    def __init__(self, module: nn.Module, where: str) -> None:
        self._where = where
        for name, value in vars(module).items():
            if isinstance(value, _PLAIN) or callable(getattr(value, "to_dict", None)):
                vars(self)[name] = value
        for name, child in module._modules.items():
            vars(self)[name] = None if child is None else _Outline(child, where)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} is not here: {vars(self).get('_where')}")


class StageLink(TransparentWrapper):
    """Takes the place of an own block and of all wrappers around it, with the names and attributes of the block.

    It must be outermost: a wrapper that recomputes would otherwise find no incoming hidden states when it does.

    Args:
        block: The block, or its outermost wrapper.
        number: Its number in the chain.
        passage: Says what a call returns.
    """

    def __init__(self, block: nn.Module, number: int, passage: Passage) -> None:
        super().__init__(block)  # type: ignore[no-untyped-call]
        self.training = block.training
        self.number = number
        self._passage = passage
        self.be_transparent()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the passage says."""
        return self._passage.call(self.number, linked(self), args, kwargs)


def linked(link: StageLink) -> nn.Module:
    """The block in a link, or its outermost wrapper; an attribute would hide the block's own of that name."""
    block = link._checkpoint_wrapped_module
    assert isinstance(block, nn.Module)
    return block


def drop_other_blocks(model: nn.Module, blocks: Sequence[nn.Module], own: set[int], passage: Passage) -> None:
    """Take the blocks of other stages out of a model, so that their memory is free once nobody else holds them.

    Args:
        model: The model, changed in place.
        blocks: All of its blocks, in order.
        own: Numbers of those that stay.
        passage: Says what calls of the others return.
    """
    others = {id(block): OtherBlock(block, number, passage) for number, block in enumerate(blocks) if number not in own}
    for parent, name, child in list(_places(model)):
        other = others.get(id(unwrapped(child)))
        if other is not None:
            parent.register_module(name, other)


def put_links(model: nn.Module, own: dict[int, nn.Module], passage: Passage) -> None:
    """Put own blocks, with the wrappers that they have now, into links.

    Args:
        model: The model, changed in place.
        own: Number -> own block.
        passage: Says what calls return.
    """
    numbers = {id(block): number for number, block in own.items()}
    links: dict[int, StageLink] = {}
    for parent, name, child in list(_places(model)):
        number = numbers.get(id(unwrapped(child)))
        if number is None or isinstance(parent, ActivationWrapper):
            continue  # The link goes around the outermost wrapper.
        if number not in links:
            links[number] = StageLink(child, number, passage)
        parent.register_module(name, links[number])


def parameters_of_blocks(model: nn.Module) -> set[int]:
    """Identities of the parameters of own blocks."""
    return {id(one) for link in model.modules() if isinstance(link, StageLink) for one in link.parameters()}


def _places(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    for parent in model.modules():
        for name, child in parent._modules.items():  # named_children leaves out duplicates
            if child is not None:
                yield parent, name, child
