"""The user's code in a process that runs several trials: imported once, it is for each of them as for the first.

A GPU's worker and the ranks of a group import the user's file in their first trial. What its top level sets would hold
in that trial alone. A generator that it keeps would go on from where the trial before stopped, and so would a counter
that lengthens sequences or picks samples: other batches for each policy, and steps and losses that do not compare. A
trial that is forked for itself begins after the import in any case.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from advisor.training.contents import children_of, enclosed, is_container
from advisor.training.random_state import RandomSource, source_of
from advisor.trial.spec import Trial
from advisor.workload._loading import load_workload
from advisor.workload.reads import is_users, recording_reads

__all__ = ["ImportedCode"]

_DEPTH = 4
_MOST, _MOST_OF_ONE = 10_000, 1_000
"""Values that are looked at, and of one container: a list may be a whole data set."""

_HOLD_NONE = (str, bytes, int, float, complex, torch.Tensor, type(None))

_MOST_ELEMENTS, _MOST_OF_A_TENSOR = 2**20, 2**16
"""Of all tensors that count, such as a running mean, and of one: more are data."""


class ImportedCode:
    """The user's code in this process, and the state of its generators and counters after the import."""

    def __init__(self) -> None:
        self._states: dict[object, tuple[list[tuple[RandomSource, Any]], list[_Counts]]] = {}

    @contextlib.contextmanager
    def held(self, spec: Trial[Any]) -> Iterator[None]:
        """Around a trial: it begins as if the code had just been imported, and its own settings end with it.

        If the code cannot be imported, the trial tries it again, and reports why.
        """
        with contextlib.suppress(Exception, SystemExit):
            self._import(spec)
        with _settings_kept():
            yield

    def _import(self, spec: Trial[Any]) -> None:
        device = torch.device(spec.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # for a model file that asks for the current one
        with recording_reads():
            workload = load_workload(spec.workload)
        identity = (spec.workload.location, spec.workload.fingerprint)
        if identity not in self._states:
            scopes = [inspect.unwrap(one).__globals__ for one in vars(workload).values() if inspect.isfunction(one)]
            scopes += [vars(module) for module in list(sys.modules.values()) if is_users(_file_of(module))]
            held = _held_by(scopes)
            generators = [source for one in held if (source := source_of(one)) is not None]
            self._states[identity] = [(one, one.get_state()) for one in generators], _counts(held)
        generators_then, counts = self._states[identity]
        for generator, state in generators_then:
            generator.set_state(state)
        for one in counts:
            one.restore()


class _Counts:
    """The numbers and small tensors of one holder: a module's globals, a dictionary, an object's attributes, a cell.

    Flags are not among them: what was done once for the process, such as registering something, is still done.
    """

    def __init__(self, items: Callable[[], Mapping[Any, Any]], put: Callable[[Any, Any], None]) -> None:
        self._items, self._put = items, put
        self.numbers = {key: value for key, value in items().items() if _is_number(key, value)}
        self.tensors = {key: value for key, value in items().items() if _is_small_tensor(key, value)}
        self._copies: dict[Any, tuple[torch.Tensor, int]] = {}

    @property
    def elements(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())

    def keep(self, *, tensors: bool) -> None:
        """Keep what they are now."""
        kept = self.tensors if tensors else {}
        self._copies = {key: (value.clone(), value._version) for key, value in kept.items()}

    def restore(self) -> None:
        items = self._items()
        for key, value in self.numbers.items():
            if items.get(key) is not value:  # Members of an enumeration cannot be set, and never change.
                self._put(key, value)
        for key, (copy, version) in self._copies.items():
            own, now = self.tensors[key], items.get(key)
            moved = isinstance(now, torch.Tensor) and (now.device, now.dtype) != (own.device, own.dtype)
            target = now if isinstance(now, torch.Tensor) and moved and now.shape == copy.shape else own
            # What nobody wrote to may be read-only: a file that is mapped, or one number in every place.
            if target is not own or own._version != version:
                with torch.no_grad():
                    target.copy_(copy)
                self._copies[key] = copy, own._version
            if now is not target:
                self._put(key, target)


def _file_of(module: Any) -> str:
    # Not by getattr: some modules import others when they are asked for what they lack.
    file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    return file if isinstance(file, str) else ""


def _held_by(scopes: Iterable[dict[str, Any]]) -> list[Any]:
    """The globals of modules, and what they hold: by themselves, in collections, helper objects, loaders, closures."""
    found: dict[int, Any] = {id(one): one for one in scopes}
    level: list[Any] = [value for scope in found.values() for value in list(scope.values())]
    for _ in range(_DEPTH):
        deeper: list[Any] = []
        for value in itertools.islice((one for one in level if not isinstance(one, _HOLD_NONE)), _MOST):
            if id(value) in found:
                continue
            found[id(value)] = value
            if source_of(value) is not None:
                continue
            if is_container(value) or isinstance(value, tuple):
                deeper += [child for _, child in itertools.islice(children_of(value), _MOST_OF_ONE)]
            elif type(value).__module__.startswith("torch.utils.data"):
                deeper += vars(value).values()
            elif isinstance(value, torch.nn.Module):
                deeper += [value._buffers, *value._modules.values(), *vars(value).values()]
            deeper += enclosed(value)
        level = deeper
    return list(found.values())


def _counts(held: Iterable[Any]) -> list[_Counts]:
    """The counters among them; of tensors, those nearest to the globals of a module."""
    found, elements = [], 0
    for one in held:
        counts = _counts_of(one)
        if counts is not None and (counts.numbers or counts.tensors):
            elements += counts.elements
            counts.keep(tensors=elements <= _MOST_ELEMENTS)
            found.append(counts)
    return found


def _counts_of(holder: Any) -> _Counts | None:
    if isinstance(holder, type):
        of_user = is_users(_file_of(sys.modules.get(holder.__module__)))
        return _Counts(lambda: vars(holder), functools.partial(setattr, holder)) if of_user else None
    if isinstance(holder, types.CellType):
        put = functools.partial(setattr, holder)
        return _Counts(lambda: {"cell_contents": holder.cell_contents}, put)
    if isinstance(holder, types.FunctionType):
        of_user = is_users(holder.__code__.co_filename)
        return _Counts(lambda: vars(holder), vars(holder).__setitem__) if of_user else None
    if not isinstance(holder, dict) and not is_container(holder) and not isinstance(holder, torch.nn.Module):
        return None
    own = holder if isinstance(holder, dict) else getattr(holder, "__dict__", {})
    return _Counts(lambda: own, own.__setitem__) if len(own) <= _MOST_OF_ONE else None


def _is_number(key: Any, value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not str(key).startswith("__")


def _is_small_tensor(key: Any, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.requires_grad or str(key).startswith("__"):
        return False
    if value.layout != torch.strided or value.device.type == "meta" or value.is_inference():
        return False
    return value.numel() <= _MOST_OF_A_TENSOR


@contextlib.contextmanager
def _settings_kept() -> Iterator[None]:
    """Restore the process-wide settings that a trial may change, so that the next one starts like this one.

    The working directory is restored because paths of results and of the workload may be relative to it.
    """
    folder = os.getcwd()
    dtype = torch.get_default_dtype()
    gradients = torch.is_grad_enabled()
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        os.chdir(folder)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
