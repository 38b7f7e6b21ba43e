"""The pipeline that processes the tensors saved by autograd; methods add stages to it.

torch applies only the innermost pair of saved-tensor hooks, so two methods' hooks do not combine. Here one pair sends
each tensor through the stages in order: first another format, then another place.
"""

from __future__ import annotations

import abc
import contextlib
import enum
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from advisor.text.units import format_bytes
from advisor.training.saved.delicate_operators import DelicateOperatorWatch, saved_by_known_function
from advisor.training.saved.graph import graph_nodes
from advisor.training.saved.packed_tensors import DelayedTensor, KeptRange, PassedTensor, SavedTensor, storage_range
from advisor.training.saved.uncompiled import uncompiled

__all__ = ["Encoded", "Place", "SavedTensorPipeline", "SavedTensorStage"]

_TELLING_SHARE = 0.01
"""Hidden bytes, as a share of the saved bytes, that are worth a note."""


class Place(enum.IntEnum):
    """Where in the pipeline a stage stands."""

    FORMAT = 1
    HOST = 2


@dataclass(frozen=True)
class Encoded:
    """A stage's result: the flat tensor left on the device for the next stage, if any, and how to undo it."""

    left: torch.Tensor | None
    restore: Callable[[Any], torch.Tensor]


class SavedTensorStage(abc.ABC):
    """One processing step, the only one in its place; ``exact`` if it restores the same bits."""

    place: ClassVar[Place]
    exact: ClassVar[bool]

    def begin(self) -> None:  # noqa: B027
        """Called when a forward pass begins. Graphs of earlier passes may still be alive."""

    @abc.abstractmethod
    def accepts(self, tensor: torch.Tensor) -> bool:
        """Whether to process a tensor, given as autograd saves it."""

    @abc.abstractmethod
    def encode(self, flat: torch.Tensor) -> Encoded | None:
        """Process a flat tensor; ``None`` leaves it as it is. Runs without gradients."""


class SavedTensorPipeline:
    """Packs tensors saved in a forward pass through stages, and unpacks them in reverse.

    Parameters, buffers, their views, and tensors without a plain floating-point format stay. A tensor saved several
    times, whole or as a view, is stored once, when it is saved, so a later write cannot change it. Writing to a tensor
    that stayed is an error, as without hooks. Messages for the user go to ``notes``.

    Attributes:
        seen_bytes: Bytes saved since the start of the last forward pass, without parameters and buffers.
    """

    def __init__(self, model: Callable[[], torch.nn.Module], notes: list[str]) -> None:
        self.seen_bytes = 0
        self._model = model
        self._notes = notes
        self._stages: list[SavedTensorStage] = []
        self._when_idle: dict[Place, str] = {}
        self._taken: set[Place] = set()
        self._cache: weakref.WeakValueDictionary[tuple[Any, ...], KeptRange] = weakref.WeakValueDictionary()
        self._own_storages: set[int] = set()
        self._seen: dict[int, StorageWeakRef] = {}
        self._exact: dict[int, StorageWeakRef] = {}
        self._delayed: list[DelayedTensor] | None = None
        self._looked_for_hidden = False
        self._approximate = False

    def add(self, stage: SavedTensorStage, when_idle: str) -> None:
        """Add a stage; ``when_idle`` is the note to add, once, if it had nothing to do in a forward pass."""
        assert all(other.place != stage.place for other in self._stages), "each place holds one stage"
        self._stages = sorted((*self._stages, stage), key=lambda each: each.place)
        self._when_idle[stage.place] = when_idle

    @contextlib.contextmanager
    def context(self) -> Generator[None, None, None]:
        """Context for a forward pass."""
        model = self._model()
        self._own_storages = {t.untyped_storage()._cdata for t in (*model.parameters(), *model.buffers())}
        self.seen_bytes = 0
        self._taken.clear()
        for stage in self._stages:
            stage.begin()
        self._approximate = not all(stage.exact for stage in self._stages)
        try:
            with (
                torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack),
                DelicateOperatorWatch(self.delaying) if self._approximate else contextlib.nullcontext(),
            ):
                yield
        finally:
            self._approximate = False
            self._seen.clear()
            self._exact.clear()
        for place in self._when_idle.keys() - self._taken:
            self._notes.append(self._when_idle.pop(place))

    @contextlib.contextmanager
    def delaying(self) -> Generator[list[DelayedTensor], None, None]:
        """Postpone packing what a function saves until it returns; yields these tensors, to be marked if exact."""
        outer, delayed = self._delayed, list[DelayedTensor]()
        self._delayed = delayed
        try:
            yield delayed
        finally:
            self._delayed = outer
        for each in delayed:
            assert each.tensor is not None, "it is decided about once"
            each.decided, each.tensor = self._decide(each.tensor, exact=each.exact), None

    @uncompiled
    def pack(self, tensor: torch.Tensor) -> SavedTensor | PassedTensor | DelayedTensor:
        """The object to keep in the graph for ``tensor``."""
        if self._delayed is None:
            return self._decide(tensor, exact=self._approximate and not saved_by_known_function())
        self._delayed.append(DelayedTensor(tensor))
        return self._delayed[-1]

    @uncompiled
    def unpack(self, packed: SavedTensor | PassedTensor | DelayedTensor) -> torch.Tensor:
        """The tensor again, on its device; an error if it stayed there and was modified in place since."""
        return packed.unpack()

    def look_for_hidden(self, loss: torch.Tensor) -> None:
        """Note, once, the activations that the graph of a loss keeps out of the hooks' sight."""
        if self._looked_for_hidden:
            return
        self._looked_for_hidden = True
        hidden = _hidden_bytes(loss, self._own_storages)
        total = sum(hidden.values())
        if total > _TELLING_SHARE * self.seen_bytes:
            self._notes.append(
                f"{format_bytes(total)} of activations, beside {format_bytes(self.seen_bytes)} that autograd saved, "
                f"stay as they are: {', '.join(sorted(hidden))} keeps them as attributes, where no hook sees them; "
                "use save_for_backward"
            )

    def _decide(self, tensor: torch.Tensor, *, exact: bool) -> SavedTensor | PassedTensor:
        if not _is_plain(tensor):
            return PassedTensor(tensor)
        storage = tensor.untyped_storage()
        if storage._cdata in self._own_storages:
            return PassedTensor(tensor)
        self._see(storage)
        if exact:
            # Others that save it get it too: a second copy in another format would only take more memory.
            self._exact[storage._cdata] = self._seen[storage._cdata]
        exact = storage._cdata in self._exact
        stages = [stage for stage in self._stages if (stage.exact or not exact) and stage.accepts(tensor)]
        if not stages:
            return PassedTensor(tensor)
        start, length = storage_range(tensor)
        # The storage's identity, not its address. The version tells contents before and after a write in place apart,
        # the last entry a range that must stay exact from the same range in another format.
        key = (storage._cdata, tensor._version, tensor.dtype, start, length, all(stage.exact for stage in stages))
        kept = self._cache.get(key)
        if kept is None:
            with torch.no_grad():
                kept = self._encode(tensor.detach().as_strided((length,), (1,), start), stages)
            if not kept.restores:
                return PassedTensor(tensor)
            self._cache[key] = kept
        expired = kept.source.expired()  # type: ignore[no-untyped-call]
        assert not expired, "a range was found for a storage that no longer exists"
        return SavedTensor(kept, tensor, int(tensor.storage_offset()) - start)

    def _encode(self, flat: torch.Tensor, stages: list[SavedTensorStage]) -> KeptRange:
        kept = KeptRange(flat.untyped_storage())
        rest: torch.Tensor | None = flat
        for stage in stages:
            assert rest is not None, "nothing is left for a stage after the one that moves it away"
            encoded = stage.encode(rest)
            if encoded is not None:
                rest = encoded.left
                kept.restores.append(encoded.restore)
                self._taken.add(stage.place)
        kept.left = rest
        return kept

    def _see(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
            self.seen_bytes += storage.nbytes()


def _hidden_bytes(loss: torch.Tensor, known: Collection[int]) -> dict[str, int]:
    """Bytes of tensors that custom autograd functions keep as attributes, by the name of the function's node.

    Each storage in the graph of a loss counts once, and those that are ``known`` do not.
    """
    found: Counter[str] = Counter()
    counted = set(known)
    for node in graph_nodes([loss]):
        for value in getattr(node, "__dict__", {}).values():
            for tensor in value if isinstance(value, list | tuple) else [value]:
                if isinstance(tensor, torch.Tensor) and tensor.layout is torch.strided:
                    storage = tensor.untyped_storage()
                    if storage._cdata not in counted:
                        counted.add(storage._cdata)
                        found[node.name()] += storage.nbytes()
    return found


def _is_plain(tensor: torch.Tensor) -> bool:
    if type(tensor) not in (torch.Tensor, FakeTensor) or tensor.layout is not torch.strided:
        return False  # Other subclasses and sparse tensors have no single storage; parameters stay.
    # Integers are small; the storage of a lazily negated view has other values.
    return tensor.is_floating_point() and not tensor.is_neg() and tensor.numel() > 0
