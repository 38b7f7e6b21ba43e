"""Hand-written training loops in plain PyTorch. Nothing of momadvise is imported here."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.minutes.settings import FIRST_EXECUTABLE_BATCH, Setting

__all__ = ["Loop", "NotApplicableError", "executable_loop", "users_module"]

_NATIVE_RATE = 0.8
"""Fraction of float32's matmul rate that bfloat16 must reach: emulation is far below it."""

_SIDE = 512
_REPETITIONS = 8
_FUSED_OPTIMIZERS = ("Adagrad", "Adam", "AdamW", "SGD")
_EXECUTABLE_STEPS = 2
"""Steps that accelerate's user trains per attempt: the second one has the optimizer state."""


class NotApplicableError(Exception):
    """The setting does not apply here; the message gives the reason."""


def users_module(path: Path) -> ModuleType:
    """The user's file, imported as the user's own script would."""
    sys.path.insert(0, str(path.parent))
    return importlib.import_module(path.stem)


class Loop:
    """Trains the model of a file under one setting.

    Args:
        module: The user's file.
        setting: What to set.
        batch: Samples per step.
        device: Where to train.

    Raises:
        NotApplicableError: The setting does not apply to this model or device.
    """

    def __init__(self, module: ModuleType, setting: Setting, batch: int, device: torch.device) -> None:
        if setting.bf16:
            _require_native_bf16(device)
        self.batch = batch
        self._device = device
        self._bf16 = setting.bf16
        self._channels_last = setting.channels_last
        self._clip: float | None = getattr(module, "MAX_GRAD_NORM", None)
        self._compute_loss: Callable[[Any, Any], torch.Tensor] = getattr(module, "compute_loss", _own_loss)
        self._model: torch.nn.Module = module.build_model().to(device).train()
        if setting.channels_last:
            if not any(parameter.dim() == 4 for parameter in self._model.parameters()):
                raise NotApplicableError("the model has no convolution of images")
            self._model = self._model.to(memory_format=torch.channels_last)
        self._optimizer = _optimizer(module, self._model, fused=setting.fused)
        self._called: Any = torch.compile(self._model) if setting.compiled else self._model

    def step(self, batch: Any) -> torch.Tensor:
        """Make one optimizer step on a batch of CPU tensors."""
        batch = self._moved(batch)
        with torch.autocast(self._device.type, torch.bfloat16) if self._bf16 else contextlib.nullcontext():
            loss = self._compute_loss(self._called, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._clip)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach()

    def _moved(self, batch: Any) -> Any:
        if isinstance(batch, Mapping):
            return {name: self._moved(value) for name, value in batch.items()}
        if isinstance(batch, tuple | list):
            return type(batch)(self._moved(value) for value in batch)
        if self._channels_last and batch.dim() == 4:
            return batch.to(self._device, memory_format=torch.channels_last)
        return batch.to(self._device)


def executable_loop(module: ModuleType, setting: Setting, device: torch.device) -> Loop:
    """The loop at accelerate's batch size, which its user's function finds by training until no attempt fails.

    Raises:
        NotApplicableError: accelerate is not installed, or no batch fits.
    """
    try:
        from accelerate.utils import find_executable_batch_size
    except ImportError:
        raise NotApplicableError("accelerate is not installed") from None

    def train(batch_size: int) -> Loop:
        loop = Loop(module, setting, batch_size, device)
        batch = module.make_batch(batch_size)
        for _ in range(_EXECUTABLE_STEPS):
            loop.step(batch)
        return loop

    found: Loop = find_executable_batch_size(train, starting_batch_size=FIRST_EXECUTABLE_BATCH)()
    return found


def _own_loss(model: Any, batch: Any) -> torch.Tensor:
    """The loss that the model returns, called as docs/how-to.md describes."""
    if isinstance(batch, Mapping):
        output = model(**batch)
    elif isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(batch)
    loss: torch.Tensor = output if isinstance(output, torch.Tensor) else output.loss
    return loss


def _optimizer(module: ModuleType, model: torch.nn.Module, *, fused: bool) -> torch.optim.Optimizer:
    build = getattr(module, "build_optimizer", torch.optim.AdamW)
    optimizer: torch.optim.Optimizer = build(model.parameters())
    if not fused:
        return optimizer
    kind = type(optimizer)
    if kind.__module__.split(".")[0] != "torch" or kind.__name__ not in _FUSED_OPTIMIZERS:
        raise NotApplicableError(f"{kind.__name__} has no fused form")
    taken = inspect.signature(kind).parameters
    options = {name: value for name, value in optimizer.defaults.items() if name in taken}
    made: torch.optim.Optimizer = kind(model.parameters(), **(options | {"fused": True, "foreach": None}))
    return made


def _require_native_bf16(device: torch.device) -> None:
    if device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise NotApplicableError("the GPU does not multiply bfloat16 natively")
    if device.type == "cpu":
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # beside a busy core, several threads would mostly wait for each other
        share = _matmul_seconds(torch.float32) / _matmul_seconds(torch.bfloat16)
        torch.set_num_threads(threads)
        if share < _NATIVE_RATE:
            raise NotApplicableError(f"not native: bf16 is multiplied at {share:.2f} times the rate of float32")


def _matmul_seconds(dtype: torch.dtype) -> float:
    """The fastest of some products of square matrices."""
    left, right = (torch.randn(_SIDE, _SIDE).to(dtype) for _ in range(2))
    times = []
    for _ in range(_REPETITIONS):
        begin = time.perf_counter()
        left @ right
        times.append(time.perf_counter() - begin)
    return min(times)
