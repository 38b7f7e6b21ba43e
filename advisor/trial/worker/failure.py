"""Map exceptions to outcomes: by type, and by the allocator's message where the type is not specific enough."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import torch.distributed as dist

from advisor.errors import DeviceOutOfMemoryError, FewerSamplesError, MethodRefusedError, StageLostError, WorkloadError
from advisor.text.units import format_bytes
from advisor.training import out_of_memory
from advisor.trial.outcome import Outcome
from advisor.trial.result import Result
from advisor.trial.spec import Trial
from advisor.workload.traceback_text import user_traceback

__all__ = ["AllocatorRefusals", "DivergedError", "at_batch", "failed_result", "is_out_of_memory", "is_secondary"]

_R = TypeVar("_R", bound=Result)

_PERHAPS_MEMORY = ("unable to find an engine to execute this computation", "CUBLAS_STATUS_NOT_INITIALIZED")
"""Errors of cuDNN and cuBLAS that may mean they got no workspace: the allocator's counter decides."""
_NCCL_REFUSED = "'out of memory'"
_TRANSPORTS = ("gloo/", "NCCL Last Error", "NCCL operation timed out", "NCCL communicator was aborted")
"""In messages of a plain ``RuntimeError``: the source path in each of gloo's, and words of NCCL's from torch 2.15 on.

Source: ``torch/csrc/distributed/c10d/nccl2`` of PyTorch.
"""
_AT_BATCH = "failed_at_batch"
"""Attribute of an exception: the micro-batch, where it is not the trial's own."""
_ROOM_ON_DEVICE = 256 * 2**20
_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Not the trial's fault: with free space it may succeed."""


class DivergedError(Exception):
    """A loss became NaN or infinite."""


class AllocatorRefusals:
    """Whether the CUDA allocator has refused memory since this was created."""

    def __init__(self, device: torch.device, count: Callable[[torch.device], int] | None = None) -> None:
        self._device = device
        self._count = count or _refusals
        self._before = self._count(device)

    def grown(self) -> bool:
        """Whether the counter has grown."""
        return self._count(self._device) > self._before


def _refusals(device: torch.device) -> int:
    return int(torch.cuda.memory_stats(device).get("num_ooms", 0)) if device.type == "cuda" else 0


def failed_result(
    spec: Trial[_R],
    error: BaseException,
    *,
    refusals: AllocatorRefusals | None = None,
    free_device_bytes: Callable[[], int] | None = None,
) -> _R:
    """Make the result of a trial that raised."""
    device = torch.device(spec.device)
    free = free_device_bytes or (lambda: int(torch.cuda.mem_get_info(device)[0]))
    memory = _memory_outcome(error, device, free, refusals)
    if memory is not None:
        outcome, cause = memory
        if isinstance(cause, DeviceOutOfMemoryError):
            reason = str(cause)  # names the limit and the value
        elif outcome is Outcome.OUT_OF_MEMORY:
            reason = f"memory must stay within {format_bytes(spec.memory_limit_bytes)}, but: {_first_line(cause)}"
        else:
            reason = f"host memory ran out: {_first_line(cause)}"
        return spec.ended(outcome, reason)
    full = next((cause for cause in _chain(error) if isinstance(cause, OSError) and cause.errno in _FULL), None)
    if full is not None:
        where = f"{full.filename}: " if full.filename else ""
        return spec.ended(Outcome.LOST, f"the disk is full: {where}{full.strerror}")
    if isinstance(error, DivergedError):
        return spec.ended(Outcome.DIVERGED, str(error), failed_at=vars(error).get(_AT_BATCH))
    if isinstance(error, FewerSamplesError):
        return spec.ended(Outcome.REFUSED, str(error), most_samples=error.made)
    if isinstance(error, MethodRefusedError):
        return spec.ended(Outcome.REFUSED, str(error))
    if isinstance(error, WorkloadError):
        failed_at = vars(error).get(_AT_BATCH)
        return spec.ended(Outcome.FAILED, str(error), traceback_text=error.traceback_text, failed_at=failed_at)
    if isinstance(error, SystemExit):
        reason = f"the model's code called sys.exit({error.code!r}); a model must not end its process"
        return spec.ended(Outcome.FAILED, reason, traceback_text=user_traceback(error))
    reason, batch = f"{type(error).__name__}: {_first_line(error)}", vars(error).get(_AT_BATCH)
    if batch is not None:
        reason = f"{reason} (at batch {batch})"
    return spec.ended(Outcome.FAILED, reason, traceback_text=user_traceback(error), failed_at=batch)


def at_batch(error: BaseException, micro_batch: int) -> None:
    """Have the result of a failure say the batch, where it is not the trial's own."""
    vars(error)[_AT_BATCH] = micro_batch


def is_out_of_memory(error: BaseException, device: torch.device, refusals: AllocatorRefusals | None = None) -> bool:
    """Whether the device's memory, or the limit, was exceeded."""
    memory = _memory_outcome(error, device, lambda: 0, refusals)
    return memory is not None and memory[0] is Outcome.OUT_OF_MEMORY


def is_secondary(error: BaseException) -> bool:
    """Whether an exception only says that another rank disconnected or failed.

    It may still be the cause, if the network itself failed.
    """
    return any(
        isinstance(cause, dist.DistError | ConnectionError | StageLostError)
        or (isinstance(cause, RuntimeError) and any(words in str(cause) for words in _TRANSPORTS))
        for cause in _chain(error)
    )


def _memory_outcome(
    error: BaseException,
    device: torch.device,
    free_device_bytes: Callable[[], int],
    refusals: AllocatorRefusals | None,
) -> tuple[Outcome, BaseException] | None:
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return Outcome.HOST_OUT_OF_MEMORY, cause
        if out_of_memory.is_of_cpu_allocator(cause):
            on_device = device.type == "cpu"
        elif out_of_memory.is_of_cuda_runtime(cause):
            # Also raised for pinned host memory; then the device itself still has room.
            on_device = _is_full(free_device_bytes)
        elif out_of_memory.is_of_device(cause) or _is_of_nccl(cause) or _is_hidden_refusal(cause, refusals):
            on_device = True
        else:
            continue
        return (Outcome.OUT_OF_MEMORY if on_device else Outcome.HOST_OUT_OF_MEMORY), cause
    return None


def _is_full(free_device_bytes: Callable[[], int]) -> bool:
    """Whether the device is full; one without room for a context cannot even be queried."""
    try:
        return free_device_bytes() < _ROOM_ON_DEVICE
    except RuntimeError:
        return True


def _is_of_nccl(error: BaseException) -> bool:
    from_nccl = isinstance(error, dist.DistBackendError) or (isinstance(error, RuntimeError) and "NCCL" in str(error))
    return from_nccl and _NCCL_REFUSED in str(error)


def _is_hidden_refusal(error: BaseException, refusals: AllocatorRefusals | None) -> bool:
    if refusals is None or not isinstance(error, RuntimeError):
        return False
    return any(words in str(error) for words in _PERHAPS_MEMORY) and refusals.grown()


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and its causes: the user's code may have wrapped the one that matters."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
