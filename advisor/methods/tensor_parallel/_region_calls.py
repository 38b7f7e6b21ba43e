"""What the modules of one region share while it is called: what its entries read, and whose masks are drawn."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from advisor.errors import MethodRefusedError
from advisor.methods.tensor_parallel._collectives import ALL_REDUCE, REDUCE_SCATTER, Ranks
from advisor.methods.tensor_parallel._linear import PRODUCTS, as_products_read
from advisor.methods.tensor_parallel._own_masks import OwnDraws
from advisor.methods.tensor_parallel._region_functions import Enter, Gather, Leave, ScatterSum
from advisor.methods.tensor_parallel._region_products import GatheredAgain
from advisor.methods.tensor_parallel._selective_contexts import hidden, is_kept
from advisor.training.unsaved import Unsaved

__all__ = ["Entered", "GatherAround", "RegionCalls", "Tokens"]


class Tokens:
    """Which dimension is split where a sequence is.

    Args:
        dim: That of the tokens in what blocks are given.
        dims: How many dimensions that has; a tensor with fewer has samples and tokens flattened into the first.
    """

    def __init__(self, dim: int, dims: int) -> None:
        self._dim = dim
        self._dims = dims
        self._count: int | None = None

    @classmethod
    def of(cls, hidden: torch.Tensor) -> Tokens:
        """Those of what a block is given: its second dimension, or the first of two."""
        return cls(1 if hidden.dim() > 2 else 0, hidden.dim())

    def dim(self, tensor: torch.Tensor) -> int:
        """The dimension to split or to gather of a tensor."""
        return self._dim if tensor.dim() == self._dims else 0

    def count(self, own: torch.Tensor) -> None:
        """Note how many tokens of all samples this rank has."""
        self._count = own.numel() // own.size(-1)

    def require_all(self, own: torch.Tensor) -> None:
        """Require that a tensor has all of the rank's own tokens: ranks that send unlike shapes end in gloo.

        Raises:
            MethodRefusedError: It has others, as what an expert is given.
        """
        if self._count is not None and own.numel() != self._count * own.size(-1):
            raise MethodRefusedError(
                "sequence=True gathers the tokens of all ranks for a layer, but it reads only some of the rank's own, "
                "as an expert does; use sequence=False"
            )


class Entered:
    """What one tensor became that entries read.

    Args:
        source: The tensor as it was.
        whole: What the entries are to compute with.
        own: This rank's part of it; ``None`` where the sequence is not split.
        again: Gathers it in the backward pass.

    Attributes:
        given: What a module around the entries is given for it.
    """

    def __init__(
        self, source: torch.Tensor, whole: torch.Tensor, own: torch.Tensor | None, again: GatheredAgain | None
    ) -> None:
        self._source = weakref.ref(source)
        self.whole = self.given = whole
        self.own = own
        self.again = again

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is the one that was entered."""
        return self._source() is tensor

    def narrow(self, parts: int) -> None:
        """Give a module around the entries the first of so many parts of the features, to read their number from."""
        features = self.whole.detach()
        self.given = features.narrow(-1, 0, features.size(-1) // parts)

    def is_given(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the given one, in this or another shape."""
        base = self.given if self.given is self.whole else self.given._base
        same = tensor is self.given or (base is not None and tensor._base is base)
        return same and tensor.numel() == self.given.numel() and tensor.size(-1) == self.given.size(-1)

    def as_given(self, tensor: torch.Tensor) -> torch.Tensor:
        """The features that the entries are to compute with, in the shape of a tensor that is the given one."""
        if self.given is self.whole:
            return tensor
        return self.whole.reshape(*tensor.shape[:-1], -1)


class RegionCalls(Unsaved):
    """One region as it is called.

    Args:
        ranks: The ranks that share it.
        entries: How many entries it has.
        tokens: How the sequence is split outside of it; ``None`` where it is not.
        around: Whether a module around the entries gathers for them.
        narrow: Into how many parts the features are cut of which that module is given one; 1: all.
        draws: Draws own masks inside; ``None`` where something outside does.
    """

    def __init__(
        self,
        ranks: Ranks,
        entries: int,
        tokens: Tokens | None,
        *,
        around: bool,
        narrow: int = 1,
        draws: OwnDraws | None,
    ) -> None:
        self._ranks = ranks
        self._entries = entries
        self._tokens = tokens
        self._around = around
        self._narrow = narrow
        self._draws = draws
        self._called = 0
        self._entered: Entered | None = None
        self.only_entries_read = True

    @property
    def parked(self) -> torch.Generator | None:
        """The generator that recomputation must put back."""
        return None if self._draws is None else self._draws.parked

    def around(self, hidden: torch.Tensor) -> torch.Tensor:
        """All tokens, for a module around the entries."""
        self._called = 0
        self._entered = entered = self._gathered(hidden)
        if self._narrow > 1:
            entered.narrow(self._narrow)
        return entered.given

    def enter(self, inputs: torch.Tensor, *, training: bool) -> tuple[torch.Tensor, Entered | None]:
        """What an entry is to read, and what it is to keep in its place if its input was gathered."""
        if self._called == 0 and training and self._draws is not None:
            self._draws.start()
        self._called += 1
        if self._around:
            found = self._entered
            if found is not None and not found.is_given(inputs):
                self.only_entries_read = False
                found = None
            whole = inputs if found is None else found.as_given(inputs)
        else:
            found = self._entered
            if found is None or not found.is_of(inputs):
                found = self._entered = self._gathered(inputs)
            whole = found.whole
        if self._called >= self._entries:
            self.reset()
        return whole, found

    def is_sum_kept(self) -> bool:
        """Whether this is a recomputation in which :meth:`leave` returns what was kept, whatever it is given."""
        return is_kept(ALL_REDUCE if self._tokens is None else REDUCE_SCATTER)

    def leave(self, own: torch.Tensor, *, training: bool) -> torch.Tensor:
        """The sum of what the ranks' exits computed: all of it, or the own tokens."""
        if training and self._draws is not None:
            self._draws.stop()
        left: torch.Tensor = (
            Leave.apply(own, self._ranks)  # type: ignore[no-untyped-call]
            if self._tokens is None
            else ScatterSum.apply(own, self._tokens.dim(own), self._ranks)  # type: ignore[no-untyped-call]
        )
        return left

    def reset(self) -> None:
        """Nothing is left over from a call, whole or broken off."""
        self._called = 0
        self._entered = None

    def _gathered(self, read: torch.Tensor) -> Entered:
        if self._tokens is None:
            entered = Enter.apply(read, self._ranks)  # type: ignore[no-untyped-call]
            return Entered(read, entered, None, None)
        dim = self._tokens.dim(read)
        self._tokens.require_all(read)
        own = as_products_read(read)  # Half as much to send.
        left_out = is_kept(*PRODUCTS)
        with hidden():
            whole = Gather.apply(own, dim, self._ranks, left_out)  # type: ignore[no-untyped-call]
        return Entered(read, whole, own, GatheredAgain(self._ranks, dim, left_out=left_out))


class GatherAround(Unsaved):
    """A forward pre-hook that gathers the tokens for a module around a region's entries.

    Args:
        calls: The region.
        places: Which arguments are the hidden states: positions and keywords.
    """

    def __init__(self, calls: RegionCalls, places: tuple[int | str, ...]) -> None:
        self._calls = calls
        self._places = places

    def __call__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments with all tokens."""
        whole = None
        positional, named = list(args), dict(kwargs)
        for place in self._places:
            holder: Any = positional if isinstance(place, int) else named
            if whole is None:
                whole = self._calls.around(holder[place])
            holder[place] = whole
        return tuple(positional), named
