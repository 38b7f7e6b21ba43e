"""The user's code in a process that runs several trials: imported once, it is for each of them as for the first.

A GPU's worker and the ranks of a group import the user's file in their first trial. What its top level sets would hold
in that trial alone, and a generator that it keeps would go on from where the trial before stopped: other batches for
each policy, and losses that do not compare. A trial that is forked for itself begins after the import in any case.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import sys
import types
from collections.abc import Iterable, Iterator
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


class ImportedCode:
    """The user's code in this process, and the state of its generators after the import."""

    def __init__(self) -> None:
        self._states: dict[object, list[tuple[RandomSource, Any]]] = {}

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
            self._states[identity] = [(one, one.get_state()) for one in _generators_in(scopes)]
        for generator, state in self._states[identity]:
            generator.set_state(state)


def _file_of(module: Any) -> str:
    # Not by getattr: some modules import others when they are asked for what they lack.
    file = vars(module).get("__file__") if isinstance(module, types.ModuleType) else None
    return file if isinstance(file, str) else ""


def _generators_in(scopes: Iterable[dict[str, Any]]) -> list[RandomSource]:
    """The generators in the globals of modules: by themselves, in collections, helper objects, loaders and closures."""
    found: dict[int, RandomSource] = {}
    seen: set[int] = set()
    level: list[Any] = [value for scope in {id(one): one for one in scopes}.values() for value in list(scope.values())]
    for _ in range(_DEPTH):
        deeper: list[Any] = []
        for value in itertools.islice((one for one in level if not isinstance(one, _HOLD_NONE)), _MOST):
            if id(value) in seen:
                continue
            seen.add(id(value))
            if (source := source_of(value)) is not None:
                found[id(value)] = source
            elif is_container(value) or isinstance(value, tuple):
                deeper += [child for _, child in itertools.islice(children_of(value), _MOST_OF_ONE)]
            elif type(value).__module__.startswith("torch.utils.data"):
                deeper += vars(value).values()
            deeper += enclosed(value)
        level = deeper
    return list(found.values())


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
