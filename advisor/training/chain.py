"""Run several consecutive blocks of a model as one, although the model calls them one by one.

A model calls its blocks in a loop, so no place treats several of them at once (to recompute them from one input, say).
So every block is put into a :class:`ChainLink`: when the model calls the first link of a segment, the whole segment
runs, and the calls of its other links pass their input through. Each such call is checked: it must come in order, on
the very tensor that the segment returned, unmodified, with the same further arguments, and with no random number drawn
in between. Nothing else, in the loss or outside it, may use the output of a block inside a segment, because that is the
output of the whole segment. The first pass looks for every such use; later ones for those that get a gradient.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper

from advisor.errors import MethodRefusedError
from advisor.training.block_call import NO_CHAIN, BlockCall, as_returned, remembered
from advisor.training.other_uses import OtherUses
from advisor.training.out_of_memory import is_out_of_memory
from advisor.training.random_state import DRAWN_BETWEEN, drawn_so_far
from advisor.training.saved.graph import graph_nodes
from advisor.training.structure import TransparentWrapper, unwrapped

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["Chain", "ChainLink", "Runner", "Segment"]

_USED_ELSEWHERE = "what a block returns is also used by something else than the next block"

Runner = Callable[[Sequence[nn.Module], torch.Tensor, BlockCall], torch.Tensor]
"""``(blocks, hidden, call) -> hidden``: runs the blocks of a segment, each by ``call.run(block, hidden)``.

It decides what to keep for the backward pass. It is called under the first block's autocast state, and must draw the
same random numbers as the blocks, in the same order.
"""


@dataclass(frozen=True)
class Segment:
    """Blocks ``start`` to ``stop - 1``, which ``run`` runs as one.

    Attributes:
        always: Whether to do so without gradients too, because ``run`` changes the outcome, not only what is kept.
    """

    start: int
    stop: int
    run: Runner
    always: bool = False


class Chain:
    """The blocks of a model, each in a :class:`ChainLink`, and the segments that they run in.

    Blocks outside segments run unmodified. Under ``no_grad`` all do, unless their segment has ``always``. The model is
    changed in place; each forward pass must call every segment completely.

    Attributes:
        segments: The segments, which must not overlap; may be replaced between two forward passes.
    """

    def __init__(self, training: Training, blocks: Sequence[nn.Module]) -> None:
        assert len({id(block) for block in blocks}) == len(blocks) > 0, "a chain has blocks, each once"
        self.segments: tuple[Segment, ...] = ()
        # Weak, because a cycle would keep the model's memory until the next garbage collection.
        self._links = [weakref.ref(link) for link in _put_into_links(training.model, blocks, self)]
        self._pending: _Pending | None = None
        self._runs = 0
        # In checked passes: graph node of a block's output inside a segment -> the only node that may use it.
        self._users: dict[Any, Any] | None = None
        self._uses = OtherUses()
        self._checked: tuple[Segment, ...] = ()
        training.forward_contexts.append(self._forward)
        training.after_forward.append(self._check_users)

    def call(self, link: ChainLink, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The output of a link that the model calls.

        Raises:
            MethodRefusedError: The model does not call the blocks of a segment as a chain.
        """
        number = link._number
        segment = next((each for each in self.segments if each.start <= number < each.stop), None)
        if segment is None or not (segment.always or torch.is_grad_enabled()):
            return link._block(*args, **kwargs)
        if self._links[number]() is not link:
            raise self._refused("a copy of the model cannot be trained: copy it before methods are applied", rule="")
        read = BlockCall.read(link._block, args, kwargs)
        if read is None:
            raise self._refused(f"block {number} takes no tensor as its first argument")
        hidden, call = read
        with self._uses.looking_away():
            if number == segment.start:
                hidden, values = self._run(segment, hidden, call)
            else:
                hidden, values = self._passed(number, hidden, call)
        if self._users is not None and number < segment.stop - 1:
            self._uses.watch(hidden)
        return as_returned(hidden, values)

    def _run(self, segment: Segment, hidden: torch.Tensor, call: BlockCall) -> tuple[torch.Tensor, int]:
        self._require_all_called()
        self._runs += 1
        before = drawn_so_far(hidden.device)
        blocks = [link._block for each in self._links[segment.start : segment.stop] if (link := each()) is not None]
        try:
            output = segment.run(blocks, hidden, call)
        except (RuntimeError, TypeError, ValueError) as error:
            if self._users is None or len(blocks) == 1 or is_out_of_memory(error):
                raise
            # The model trained without methods, so it passes its blocks other arguments than this chain does.
            raise self._refused(
                f"called so, on the first one's further arguments, blocks {segment.start} to {segment.stop - 1} raised "
                f"{type(error).__name__}: {error}"
            ) from error
        if len(blocks) > 1:
            after = drawn_so_far(hidden.device)
            output = output[...]
            self._pending = _Pending(segment, output, call, None if after == before else after)
        return output, call.values

    def _passed(self, number: int, hidden: torch.Tensor, call: BlockCall) -> tuple[torch.Tensor, int]:
        """Check the call of a block that already ran; returns its input as a view, and among how many values."""
        pending = self._pending
        if pending is None or number != pending.next:
            missed = "the first of its segment" if pending is None else f"block {pending.next}"
            raise self._refused(f"block {number} is called before {missed}")
        if not pending.is_output(hidden):
            raise self._refused(f"block {number} is not called on what the block before it returned, unchanged")
        if not pending.is_rest(call.rest()):
            raise self._refused(f"block {number} is called with other arguments than the block before it")
        if pending.drawn is not None and pending.drawn != drawn_so_far(hidden.device):
            raise self._refused(DRAWN_BETWEEN, rule="")
        output = hidden[...]
        if output.grad_fn is not None:
            _require_only_use(hidden, output)
            if self._users is not None:
                self._users[hidden.grad_fn] = output.grad_fn
        pending.is_output = remembered(output)
        pending.next += 1
        if pending.next == pending.stop:
            self._pending = None
        return output, pending.values

    def _check_users(self, loss: torch.Tensor) -> None:
        """Check once per set of segments that the loss uses no output meant only for the next block."""
        users, self._users = self._users, None
        if not users:
            return
        for node in graph_nodes([loss]):
            if any(users.get(following, node) is not node for following, _ in node.next_functions):
                raise self._refused(_USED_ELSEWHERE)
        self._checked = self.segments

    def _require_all_called(self) -> None:
        if self._pending is not None:
            raise self._refused(f"block {self._pending.next} is not called after the block before it")

    def _refused(self, seen: str, rule: str = f"{NO_CHAIN}, but ") -> MethodRefusedError:
        self._pending = None  # The next call starts a new segment.
        return MethodRefusedError(rule + seen)

    @contextlib.contextmanager
    def _forward(self) -> Generator[None, None, None]:
        self._pending = None
        checking = self._checked is not self.segments
        self._users = {} if checking else None
        self._uses = OtherUses()
        before = self._runs
        try:
            with self._uses if checking else contextlib.nullcontext():
                yield
        except BaseException:
            self._users = None  # It holds the graph.
            raise
        self._require_all_called()
        if self._uses.found:
            raise self._refused(f"{_USED_ELSEWHERE} ({self._uses.found})")
        # Later a batch may be without targets, or the blocks are frozen for a while.
        if self.segments and checking and self._runs == before:
            raise self._refused("the model calls no block where it holds them: it keeps them in a list of its own")


class ChainLink(TransparentWrapper):
    """Takes the place of a block, or of its outermost wrapper, with its names and attributes, and calls the chain."""

    def __init__(self, block: nn.Module, chain: Chain, number: int) -> None:
        super().__init__(block)  # type: ignore[no-untyped-call]
        self.training = block.training
        self._chain = chain
        self._number = number
        self.be_transparent()

    @property
    def _block(self) -> nn.Module:
        """The block, or its outermost wrapper."""
        block = self._checkpoint_wrapped_module
        assert isinstance(block, nn.Module)
        return block

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the chain."""
        return self._chain.call(self, args, kwargs)


class _Pending:
    """What the calls of a segment's other blocks must look like after it ran. Keeps no tensor alive.

    ``drawn`` is the random state after the segment; ``None`` if it drew no numbers.
    """

    def __init__(self, segment: Segment, output: torch.Tensor, call: BlockCall, drawn: bytes | None) -> None:
        self.next = segment.start + 1
        self.stop = segment.stop
        self.is_output = remembered(output)
        self.is_rest = remembered(call.rest())
        self.values = call.values
        self.drawn = drawn


def _require_only_use(hidden: torch.Tensor, output: torch.Tensor) -> None:
    """Check in every backward pass that ``hidden`` is used for nothing but its view ``output``.

    A loss may begin to use it in a later epoch, long after the checks of the first pass. The gradient of both is one
    tensor then, and a sum otherwise.
    """
    of_output: list[torch.Tensor] = []

    def check(gradient: torch.Tensor) -> None:
        if not of_output or of_output.pop() is not gradient:
            raise MethodRefusedError(f"{NO_CHAIN}, but {_USED_ELSEWHERE}")

    output.register_hook(of_output.append)  # type: ignore[no-untyped-call]
    hidden.register_hook(check)  # type: ignore[no-untyped-call]


def _put_into_links(model: nn.Module, blocks: Sequence[nn.Module], chain: Chain) -> list[ChainLink]:
    numbers = {id(block): number for number, block in enumerate(blocks)}
    links: dict[int, ChainLink] = {}
    for parent in list(model.modules()):
        if isinstance(parent, ActivationWrapper):
            continue  # The link goes around the outermost wrapper.
        for name, child in list(parent._modules.items()):  # named_children leaves out duplicates
            number = None if child is None else numbers.get(id(unwrapped(child)))
            if child is not None and number is not None:
                if number not in links:
                    links[number] = ChainLink(child, chain, number)
                parent.register_module(name, links[number])
    assert len(links) == len(blocks), "every block is held by a module of the model"
    return [links[number] for number in range(len(blocks))]
