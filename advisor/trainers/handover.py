"""Hand a model, its samples, optimizer and loss over to other processes: as a small model file with a pickle beside it.

Trials run in processes of their own, which find a workload by its file. What a program has built is written there:
``NAME.py`` with the constants of a workload, which takes its functions from the files beside it. The model file
identifies the study, so its text says what measurements depend on: structure, not the values of weights.
"""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from advisor.errors import WorkloadError
from advisor.files import write_whole
from advisor.surroundings import refused
from advisor.text.printable import shown
from advisor.text.ranges import whole_variable
from advisor.text.units import format_bytes
from advisor.workload.code.fingerprint import digest_of
from advisor.workload.function_source import added_paths

if TYPE_CHECKING:
    import torch

__all__ = ["HandedOver", "Handover", "write_handover"]

_PROGRAM, _MODEL, _PARTS = ".program", ".model", ".parts"
"""Endings of the files beside a model file: where the program's modules are, the model, and everything else."""

_MAIN: ContextVar[str] = ContextVar("main", default="")
"""The module, while something is read, that was ``__main__`` where it was written."""

_TEMPLATE = '''"""{name} as {call} was given it. Weights, samples and optimizer are in the files beside this one."""

from advisor.trainers.handover import HandedOver

{constants}

_given = HandedOver(__file__, structure="{structure}")  # of the model, the optimizer and the constants
{functions}
'''


@dataclass(frozen=True, kw_only=True)
class Handover:
    """What a program has built.

    Attributes:
        model: The model.
        samples: Samples of its data, longest first.
        collate: ``(samples) -> batch``.
        build_optimizer: ``(parameters) -> optimizer``.
        compute_loss: ``(model, batch) -> loss``, or ``None`` for the one that the model returns.
    """

    model: torch.nn.Module
    samples: list[Any]
    collate: Callable[[list[Any]], Any]
    build_optimizer: Callable[[Any], Any]
    compute_loss: Callable[[Any, Any], Any] | None = None


class HandedOver:
    """The functions of a workload, from what :func:`write_handover` wrote.

    All but the model is read at once: processes are forked from one that has imported the model file, and what reading
    imports takes seconds.

    Args:
        file: The model file.
        structure: A digest of what is in the files beside it. Nothing reads it; it tells model files apart, whose text
            identifies a study.

    Raises:
        WorkloadError: The files beside it are missing, or what they hold cannot be found again.
    """

    def __init__(self, file: str, *, structure: str = "") -> None:
        self._path = Path(file)
        self.structure = structure
        self._parts: dict[str, Any] = _read(self._path, _PARTS)

    def build_model(self) -> torch.nn.Module:
        """The model, with the weights that it had, on the CPU."""
        model: torch.nn.Module = _read(self._path, _MODEL)
        return model

    def make_batch(self, batch_size: int) -> Any:
        """The longest sample, and others drawn from the longest ones, each as often as the batch needs."""
        import torch

        parts = self._parts
        longest, *others = parts["samples"]
        order = torch.randperm(len(others)).tolist() if others else []
        chosen = [longest] + [others[order[i % len(order)]] if order else longest for i in range(batch_size - 1)]
        batch = parts["collate"]([copy.copy(one) for one in chosen])  # Some collators take parts out of samples.
        return dict(batch) if isinstance(batch, Mapping) else batch

    def build_optimizer(self, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """An optimizer of the same class and settings."""
        optimizer: torch.optim.Optimizer = self._parts["build_optimizer"](parameters)
        return optimizer

    def compute_loss(self, model: torch.nn.Module, batch: Any) -> torch.Tensor:
        """The program's own loss."""
        loss: torch.Tensor = self._parts["compute_loss"](model, batch)
        return loss


def write_handover(folder: Path, given: Handover, *, call: str, constants: Mapping[str, Any]) -> Path:
    """Write what was built; the model file is the workload.

    The text of the model file, and so the study, depends on structure: of the model (names, shapes and types of its
    parameters, its modules), the optimizer and the constants, not on the values of weights.

    Args:
        folder: Holds a folder of its own for each structure.
        given: What was built.
        call: The function that the user called.
        constants: Constants of a workload, such as ``BATCH_SIZE``.

    Raises:
        WorkloadError: Something cannot be pickled, or a file cannot be written.
    """
    name = type(given.model).__name__
    structure = _structure(given, constants)
    path = folder / f"{name}-{structure[:8]}" / f"{name}.py"
    roles = ["build_model", "make_batch", "build_optimizer", *(["compute_loss"] if given.compute_loss else [])]
    text = _TEMPLATE.format(
        call=call,
        name=name,
        structure=structure,
        constants="\n".join(f"{constant} = {value!r}" for constant, value in constants.items() if value is not None),
        functions="\n".join(f"{role} = _given.{role}" for role in roles),
    )
    parts = {role: getattr(given, role) for role in ("samples", "collate", "build_optimizer", "compute_loss")}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Of one launch on a machine, one process writes: the others have the same.
        if whole_variable(os.environ, "LOCAL_RANK", default=0, least=0) == 0:
            _check_room(path.parent, given.model)
            write_whole(path.with_suffix(_PROGRAM), json.dumps({"main": _main_module(), "paths": added_paths()}))
            _write(path.with_suffix(_PARTS), parts, call)
            _write(path.with_suffix(_MODEL), given.model, call)
        write_whole(path, text)
    except OSError as error:
        raise refused(error, path.parent) from error
    return path


def _structure(given: Handover, constants: Mapping[str, Any]) -> str:
    """Digest of what measurements depend on."""
    model = given.model
    tensors = [*model.named_parameters(), *model.named_buffers()]
    lines = [f"{name} {tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}" for name, tensor in tensors]
    lines += [f"{name} {_name_of(type(module))}" for name, module in model.named_modules()]
    lines += [f"{name}={value!r}" for name, value in constants.items()]
    lines += [_name_of(given.collate), repr(given.build_optimizer), repr(given.compute_loss)]
    return digest_of(*lines)


def _name_of(thing: Any) -> str:
    named = thing if isinstance(thing, type | FunctionType) else type(thing)
    return f"{named.__module__}.{named.__qualname__}"


def _main_module() -> str:
    """The running program: its module's name under ``python -m``, otherwise its file; empty if it has none."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return str(Path(file).resolve()) if file is not None and Path(file).is_file() else ""


def _check_room(folder: Path, model: torch.nn.Module) -> None:
    needed = sum(one.nbytes for one in (*model.parameters(), *model.buffers()))
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise WorkloadError(
            f"The model's weights are written to a file for the trials, which needs {format_bytes(needed)}, but "
            f"{folder} has {format_bytes(free)} free. Make room, or name another folder with output=."
        )


def _write(path: Path, content: Any, call: str) -> None:
    import torch

    try:
        write_whole(path, lambda file: torch.save(content, file, pickle_module=_Pickles))
    except OSError:
        raise
    except Exception as error:  # Whatever an object raises when it is pickled.
        culprit = _culprit(content) if isinstance(content, dict) else "the model"
        raise WorkloadError(
            f"What {call} takes must be picklable, because trials run in processes of their own, but {culprit} is not: "
            f"{type(error).__name__}: {error}. Define its classes and functions at the top level of a .py file."
        ) from error


def _culprit(parts: Mapping[str, Any]) -> str:
    import torch

    for name, part in parts.items():
        try:
            torch.save(part, io.BytesIO(), pickle_module=_Pickles)
        except Exception:
            return f"its part {name!r}"
    return "something"


def _read(file: Path, suffix: str) -> Any:
    import torch

    path = file.with_suffix(suffix)
    try:
        program = json.loads(file.with_suffix(_PROGRAM).read_text())
    except FileNotFoundError:
        raise WorkloadError(
            f"A model that was handed over needs the files beside it, but {file} is alone. Call "
            "advisor.tune_trainer or advisor.tune_lightning again."
        ) from None
    for folder in reversed(program["paths"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    token = _MAIN.set(program["main"])
    try:
        return torch.load(path, map_location="cpu", weights_only=False, pickle_module=_Pickles)
    finally:
        _MAIN.reset(token)


class _Pickler(pickle.Pickler):
    def reducer_override(self, thing: Any) -> Any:
        """Refuse what another process cannot import."""
        if isinstance(thing, type | FunctionType) and thing.__module__ == "__main__" and not _main_module():
            raise pickle.PicklingError(f"{thing.__qualname__} was defined interactively or with python -c")
        if isinstance(thing, MethodType) and "<locals>" in thing.__func__.__qualname__:
            raise pickle.PicklingError(f"{thing.__func__.__qualname__} is defined inside another function")
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """What was the program's own is in its file, imported under another name."""
        program = _MAIN.get()
        if module != "__main__" or not program:
            return super().find_class(module, name)
        from advisor.workload._loading import imported_module

        found: Any = imported_module(program)
        try:
            for part in name.split("."):
                found = getattr(found, part)
        except AttributeError:
            raise WorkloadError(
                f"What a trainer holds must be defined where other processes find it, but {name} is not defined when "
                f"{shown(program)} is imported. Define it at the top level of that file, above "
                "`if __name__ == '__main__':`."
            ) from None
        return found


_Pickles: Any = SimpleNamespace(__name__="pickle", Pickler=_Pickler, Unpickler=_Unpickler)
"""Stands for the module ``pickle`` in torch's functions."""
