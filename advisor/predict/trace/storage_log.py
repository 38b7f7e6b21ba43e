"""The births and deaths of every tensor storage, in order: also of fake tensors, which have sizes but no memory."""

from __future__ import annotations

import functools
import weakref
from typing import Any, NamedTuple

import torch

from advisor.measure.memory.operator_mode import OperatorMode
from advisor.measure.memory.storages import StorageSet, is_in, tensors_in, view_bytes
from advisor.predict.trace.fake_device import device_asked_for, device_of
from advisor.predict.trace.in_place import changes_only_values
from advisor.predict.trace.recurrent import with_workspace
from advisor.predict.trace.scratch import Call, call_of
from advisor.predict.workspace.call import WorkspaceCall, described
from advisor.predict.workspace.operators import has_workspace
from advisor.predict.workspace.products import PRODUCTS
from advisor.training.memory_side import Side, current_side

__all__ = ["LoggedCall", "StorageLog"]

_WHOLE_INSIDE = ("all_gather_into_tensor.default", "reduce_scatter_tensor.default")
"""Collectives for which gloo takes memory for the whole tensor: to gather into, and to sum in.

Source: ``AsyncAllgatherWork`` and ``ProcessGroupGloo::reduce_scatter_tensor_coalesced`` in
``torch/csrc/distributed/c10d/ProcessGroupGloo.cpp`` of PyTorch.
"""

_LAYER_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward.default


class LoggedCall(NamedTuple):
    """A call that allocates workspace on CUDA.

    Attributes:
        begin: Index of the event that would be the first of its results.
        births: Index of the event of each result's birth; ``None`` for one that is no new storage.
        call: The call.
    """

    begin: int
    births: tuple[int | None, ...]
    call: WorkspaceCall


class StorageLog(OperatorMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that numbers storages in the order of their birth, and logs how they grow, shrink and die.

    What an operator allocates and frees before it returns is not seen, except for what gloo takes.

    Args:
        device: Type of the device whose storages are followed. A fake tensor says where it would be.
        stands_for_another: Whether tensors of this device stand for those of a device that is not there. Then tensors
            for the host (:mod:`advisor.training.memory_side`), and what operators make of these alone, are left out.

    Attributes:
        events: ``(number, bytes)``: positive as a storage is born or grows, negative as it shrinks or dies.
        operators: The operator that each storage came from.
        calls: ``(index of the first event after it, call, batch)`` of operators that allocate workspace on a CPU.
        workspace_calls: Calls that do so on CUDA, where it is the device or stood for.
        uses_host: Whether anything was made for the host.
        products: For the forward and the backward pass, which have a thread each on CUDA, the index of the first event
            after their first product of matrices.
        moved: Index of the first event after the model was moved to its device.
    """

    def __init__(self, device: torch.device, *, stands_for_another: bool = False) -> None:
        super().__init__()
        self.events: list[tuple[int, int]] = []
        self.operators: list[str] = []
        self.calls: list[tuple[int, Call, int]] = []
        self.workspace_calls: list[LoggedCall] = []
        self.products: dict[bool, int] = {}
        self.moved = 0
        self.device = device.type
        self.stands_for_another = stands_for_another
        self.uses_host = False
        self._on_host: StorageSet = weakref.WeakValueDictionary()
        self._sizes: dict[int, int] = {}
        self._numbers: dict[int, int] = {}
        self._known: StorageSet = weakref.WeakValueDictionary()
        self._deaths: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._ignored: StorageSet = weakref.WeakValueDictionary()

    def ignore(self, tree: Any) -> None:
        """Leave out the storages behind the tensors of ``tree``."""
        for tensor in tensors_in(tree):
            self._ignored[tensor.untyped_storage()._cdata] = tensor.untyped_storage()

    def begin_with(self, tree: Any) -> None:
        """Begin anew with the storages behind the tensors of ``tree``, in order; all others are left out."""
        kept = {tensor.untyped_storage()._cdata for tensor in tensors_in(tree)}
        self._ignored.update({key: one for key, one in self._known.items() if key not in kept})
        self._known.clear()
        for known in (self._deaths, self._numbers, self._sizes, self.events, self.operators, self.calls):
            known.clear()
        self.workspace_calls.clear()
        self.products.clear()
        self.add(tree, "to")

    def add(self, tree: Any, operator: str = "") -> list[int]:
        """Log the new storages behind the tensors of ``tree``; return the numbers of all that are followed."""
        own = (tensor for tensor in tensors_in(tree) if device_of(tensor).type == self.device)
        numbers = [self._see(tensor.untyped_storage(), operator) for tensor in own]
        return [number for number in numbers if number is not None]

    def look_again(self) -> None:
        """Notice storages that were resized in place, as sharded parameters are: no operator says so."""
        for key, storage in self._known.items():
            self._resize(self._numbers[key], storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (device := device_asked_for(func, args)) is not None:
            return device
        if changes_only_values(func, args):
            return None if isinstance(args[0], (list, tuple)) else args[0]
        name = getattr(func, "__name__", "")
        if (called := call_of(name, args)) is not None:
            self.calls.append((len(self.events), *called))
        result = with_workspace(func, args, _as_laid_out(func, func(*args, **(kwargs or {}))))
        if self.stands_for_another and self._is_of_host(args):
            for tensor in tensors_in(result):
                storage = tensor.untyped_storage()
                if not is_in(self._known, storage) and not is_in(self._ignored, storage):
                    self._on_host[storage._cdata] = self._ignored[storage._cdata] = storage
                    self.uses_host = True
        elif has_workspace(name) and (self.device == "cuda" or self.stands_for_another):
            begin = len(self.events)
            births = tuple(self._born(tensor, name) for tensor in tensors_in(result))
            self.workspace_calls.append(LoggedCall(begin, births, described(func, args, kwargs, result)))
        else:
            self.add(result, name)
            if name in _WHOLE_INSIDE and self.device == "cpu" and not self.stands_for_another:
                self._note_inside(name, max(view_bytes([args[0]]), view_bytes([result])))
            if name in PRODUCTS:
                self.products.setdefault(torch._C._current_graph_task_id() != -1, len(self.events))
        return result

    def _note_inside(self, operator: str, size: int) -> None:
        """An operator takes memory beside its results, and frees it."""
        number = len(self.operators)
        self.operators.append(f"inside {operator}")
        self.events += [(number, size), (number, -size)]

    def _born(self, tensor: torch.Tensor, operator: str) -> int | None:
        """The index of the event of a result's birth, if it is a new storage."""
        place = len(self.events)
        self.add(tensor, operator)
        return place if len(self.events) > place else None

    def _is_of_host(self, args: tuple[Any, ...]) -> bool:
        """Whether an operator's results are for the host: by declaration, or because all its arguments are."""
        side = current_side()
        if side is not None:
            return side is Side.HOST
        if not self.uses_host:
            return False
        given = [tensor.untyped_storage() for tensor in tensors_in(args)]
        return bool(given) and all(is_in(self._on_host, storage) for storage in given)

    def _see(self, storage: torch.UntypedStorage, operator: str) -> int | None:
        key = storage._cdata
        if is_in(self._known, storage):
            number = self._numbers[key]
            self._resize(number, storage.nbytes())
            return number
        if is_in(self._ignored, storage):
            return None
        number = len(self.operators)
        self.operators.append(operator)
        self._numbers[key] = number
        self._sizes[number] = 0
        self._known[key] = storage
        self._deaths[number] = weakref.ref(storage, functools.partial(self._forget, number))
        self._resize(number, storage.nbytes())
        return number

    def _resize(self, number: int, size: int) -> None:
        growth = size - self._sizes[number]
        if growth:
            self._sizes[number] = size
            self.events.append((number, growth))

    def _forget(self, number: int, _reference: weakref.ref[torch.UntypedStorage]) -> None:
        del self._deaths[number]
        self._resize(number, 0)


def _as_laid_out(func: Any, result: Any) -> Any:
    """The result as kernels lay it out: the input's gradient of layer normalization is contiguous.

    torch's function for tensors without values gives it the layout of the gradient that it comes from.

    Source: ``layer_norm_backward_cuda`` in ``aten/src/ATen/native/cuda/layer_norm_kernel.cu`` of PyTorch, and
    ``layer_norm_backward_cpu`` in ``aten/src/ATen/native/layer_norm.cpp``.
    """
    if func is not _LAYER_NORM_BACKWARD or result[0] is None or result[0].is_contiguous():
        return result
    return (torch.empty_like(result[0], memory_format=torch.contiguous_format), *result[1:])
