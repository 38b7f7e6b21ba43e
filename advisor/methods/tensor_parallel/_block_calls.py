"""How a model calls its blocks: each call once, and which blocks follow on each other."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from advisor.methods.tensor_parallel._linear import is_linear
from advisor.training.block_call import BlockCall
from advisor.training.other_uses import NumberedUses, tensors_in

__all__ = ["Call", "Calls", "calls_of", "first_tensor", "replaced_first", "structure_keys", "undisturbed"]


@dataclass(frozen=True)
class Call:
    """One call of a block, copied before the block ran.

    Attributes:
        hidden: The hidden states.
        place: Where they belong: position 0, or a keyword.
        args: All positional arguments.
        kwargs: All keyword arguments.
    """

    hidden: torch.Tensor
    place: int | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def run(
        self, block: Callable[..., Any], hidden: torch.Tensor, others: list[torch.Tensor] | None = None
    ) -> torch.Tensor:
        """What a block returns for hidden states: its first tensor.

        Args:
            block: The block.
            hidden: The hidden states, which are not written to.
            others: To this, the tensors are added that the block is given besides and that need a gradient.
        """
        args, kwargs = copy.deepcopy((self.args, self.kwargs))  # A cache would grow.
        args, kwargs = _with_hidden(args, kwargs, self.place, hidden.clone())
        if others is not None:
            others += [each for each in tensors_in((args, kwargs)) if each.is_leaf and each.requires_grad]
        returned = first_tensor(block(*args, **kwargs))
        assert returned is not None, "calls_of refuses blocks that return no tensor"
        return returned


@dataclass
class Calls:
    """What one forward pass showed.

    Attributes:
        of_block: The first call of each block; ``None`` where it was not called, or not on a tensor.
        follows: Whether each block is called once, on the very tensor that the block before it returned.
        used_elsewhere: Whether something else than the next block uses what a block returns or computes.
        used_inside: Names in a block of the linear layers of whose outputs something else uses what was made.
        read: Names in a block of parameters that something else reads.
    """

    of_block: list[Call | None]
    follows: list[bool]
    used_elsewhere: bool = False
    used_inside: set[str] = field(default_factory=set)
    read: set[str] = field(default_factory=set)

    @property
    def runs(self) -> list[range]:
        """Numbers of consecutive blocks, each called on what the one before it returned."""
        starts = [number for number, follows in enumerate(self.follows) if not follows]
        stops = [*starts[1:], len(self.follows)]
        return [range(start, stop) for start, stop in zip(starts, stops, strict=True)]


def calls_of(model: nn.Module, blocks: Sequence[nn.Module], run: Callable[[nn.Module], Any]) -> Calls:
    """Run a model once and see how it calls its blocks. It is left as it was.

    Of blocks that are alike only the first computes; the others hand on what they are given. What a block returns is
    cut out of the graph: gradients then show what else depends on it, or on what a block computes inside.

    Args:
        model: The model.
        blocks: Its blocks in their order.
        run: Runs the model on a batch and returns its loss, or its outputs.
    """
    watch = _Watch(blocks)
    with undisturbed(model), torch.enable_grad():
        with watch.watching():
            outputs = run(model)
        calls = Calls(watch.calls, watch.follows)
        watch.note_uses(outputs, calls)
    return calls


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Generator[None, None, None]:
    """Evaluate, without a cache of keys and values; afterwards everything is as before."""
    training = [module for module in model.modules() if module.training]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    configs: list[Any] = [getattr(module, "config", None) for module in model.modules()]
    caching = [config for config in configs if getattr(config, "use_cache", False) is True]
    model.eval()
    for config in caching:
        config.use_cache = False
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module in training:
            module.training = True
        for config in caching:
            config.use_cache = True
        with torch.no_grad():
            for buffer, before in buffers:
                if buffer.shape == before.shape and not torch.equal(buffer, before):
                    buffer.copy_(before)


def first_tensor(output: Any) -> torch.Tensor | None:
    """The hidden states that a block returns: a tensor, or the first of a tuple."""
    if isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def replaced_first(output: Any, hidden: torch.Tensor) -> Any:
    """The same output with other hidden states."""
    if isinstance(output, tuple | list):
        return type(output)((hidden, *output[1:]))
    return hidden


def structure_keys(blocks: Sequence[nn.Module]) -> list[Hashable]:
    """For each block what slicing can tell apart: classes, shapes of parameters, plain attributes.

    An attribute that counts up by one from each block of a class to the next (``layer_idx``) is left out.
    """
    plain = [_plain_attributes(block) for block in blocks]
    of_class: dict[type, list[int]] = {}
    for number, block in enumerate(blocks):
        of_class.setdefault(type(block), []).append(number)
    running: dict[type, set[tuple[str, str]]] = {}
    for kind, numbers in of_class.items():
        held = [plain[number] for number in numbers]
        running[kind] = {
            place
            for place, first in held[0].items()
            if type(first) is int and [one.get(place) for one in held] == list(range(first, first + len(held)))
        }
    return [
        (
            tuple((name, type(module)) for name, module in block.named_modules()),
            tuple((name, tuple(one.shape), one.dtype, one.requires_grad) for name, one in block.named_parameters()),
            tuple((place, value) for place, value in values.items() if place not in running[type(block)]),
        )
        for block, values in zip(blocks, plain, strict=True)
    ]


def _with_hidden(
    args: tuple[Any, ...], kwargs: dict[str, Any], place: int | str, hidden: torch.Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(place, int):
        return (hidden, *args[1:]), kwargs
    return args, {**kwargs, place: hidden}


def _plain_attributes(block: nn.Module) -> dict[tuple[str, str], Any]:
    return {
        (name, key): value
        for name, module in block.named_modules()
        for key, value in sorted(vars(module).items())
        if type(value) in (int, bool, float, str) and key != "training"
    }


class _Watch:
    """Hooks on blocks, and stubs in the place of those that are like an earlier one."""

    def __init__(self, blocks: Sequence[nn.Module]) -> None:
        self._blocks = blocks
        self.calls: list[Call | None] = [None] * len(blocks)
        self.follows = [False] * len(blocks)
        self._counts = [0] * len(blocks)
        self._returned: list[torch.Tensor | None] = [None] * len(blocks)
        self._outputs: dict[Hashable, Any] = {}
        self._given: dict[int, torch.Tensor] = {}
        self._cuts: list[tuple[str, torch.Tensor]] = []
        self._keys = structure_keys(blocks)
        self._uses = NumberedUses()

    @contextlib.contextmanager
    def watching(self) -> Generator[None, None, None]:
        before = [vars(block).get("forward") for block in self._blocks]
        for number, block in enumerate(self._blocks):
            block.forward = self._watched(number, block, block.forward)
        try:
            with self._uses:
                yield
        finally:
            for block, forward in zip(self._blocks, before, strict=True):
                if forward is None:
                    del block.forward
                else:
                    block.forward = forward

    def _watched(self, number: int, block: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._uses.looking_away():
                output = called(args, kwargs)
                returned = first_tensor(output)
                if returned is not None:
                    self._uses.watch(number, returned)
            return output

        def called(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            self._counts[number] += 1
            read = BlockCall.read(_Signature(block, forward), args, kwargs)
            if read is None or not read[0].is_floating_point():
                return forward(*args, **kwargs)
            hidden, place = read[0], read[1].place
            self._uses.note(read[1].rest())
            before = self._returned[number - 1] if number else None
            if self._counts[number] == 1:
                kept = _copied((args, kwargs), hidden)
                self.calls[number] = Call(hidden.detach().clone(), 0 if place is None else place, *kept)
                self.follows[number] = hidden is before and self._counts[number - 1] == 1
            else:
                self.follows[number] = False
                if number + 1 < len(self.follows):
                    self.follows[number + 1] = False
            if not self.follows[number]:
                self._uses.note(hidden)
            return self._output(number, forward, hidden, args, kwargs)

        return watched

    def _output(
        self, number: int, forward: Callable[..., Any], hidden: torch.Tensor, args: tuple[Any, ...], kwargs: Any
    ) -> Any:
        key = self._keys[number], hidden.shape, tuple(sorted(kwargs)), len(args)
        output = self._outputs.get(key)
        if output is None:
            given = hidden.detach().requires_grad_()
            self._given[number] = given
            call = self.calls[number]
            assert call is not None, "it was noted just before"
            args, kwargs = _with_hidden(args, kwargs, call.place, given.clone())
            with self._cutting(self._blocks[number]):
                output = forward(*args, **kwargs)
            found = first_tensor(output)
            if found is None:
                self.calls[number] = None
                return output
            if found.shape == hidden.shape:
                self._outputs[key] = output
        else:
            found = hidden
        leaf = found.detach().clone().requires_grad_()
        self._returned[number] = leaf
        return replaced_first(output, leaf)

    @contextlib.contextmanager
    def _cutting(self, block: nn.Module) -> Generator[None, None, None]:
        """Cut the outputs of linear layers out of the graph: what depends on one directly then has a gradient."""

        def cut(name: str) -> Any:
            def hook(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
                leaf = output.detach().requires_grad_()
                self._cuts.append((name, leaf))
                return leaf.clone()

            return hook

        linears = [(name, module) for name, module in block.named_modules() if is_linear(module)]
        hooks = [module.register_forward_hook(cut(name)) for name, module in linears]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def note_uses(self, outputs: Any, calls: Calls) -> None:
        """Note what uses a block besides the next one: the outputs, or anything else that was called in the pass."""
        inner = {number for number, follows in enumerate(self.follows[1:]) if follows}
        calls.used_elsewhere = bool(self._uses.used & inner)
        loss = getattr(outputs, "loss", None)
        found = [loss] if isinstance(loss, torch.Tensor) else torch.utils._pytree.tree_leaves(outputs)
        found = [each for each in found if isinstance(each, torch.Tensor) and each.requires_grad]
        parameters = {
            one: name for block in self._blocks for name, one in block.named_parameters() if one.requires_grad
        }
        leaves = [*(leaf for _, leaf in self._cuts), *parameters, *self._given.values()]
        if not found or not leaves:
            return
        total = torch.stack([each.float().sum() for each in found]).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
        used = {id(leaf) for leaf, gradient in zip(leaves, gradients, strict=True) if gradient is not None}
        calls.used_elsewhere |= bool(used)
        calls.used_inside = {name for name, leaf in self._cuts if id(leaf) in used}
        calls.read = {name for one, name in parameters.items() if id(one) in used}


class _Signature(nn.Module):
    """A block whose forward function is replaced, with the names of the arguments that it has."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = forward


def _copied(values: Any, hidden: torch.Tensor) -> Any:
    """A copy, whose tensors need a gradient where they did, except the hidden states."""

    def copied(each: Any) -> Any:
        if not isinstance(each, torch.Tensor):
            return each
        return each.detach().clone().requires_grad_(each.requires_grad and each is not hidden)

    return copy.deepcopy(torch.utils._pytree.tree_map(copied, values))
