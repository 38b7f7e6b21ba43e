"""Keep the memory that a step frees for the next one, as a caching allocator does on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.base import Method, Stage, Verdict
from advisor.methods.process.glibc import (
    gives_back,
    keep_freed_memory,
    keeps_by_environment,
    resident_bytes,
    trim,
    usual_again,
    why_no_mallopt,
)
from advisor.methods.use import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RetainFreedMemory"]

_NAME = "retain_freed_memory"

_SURPLUS = 1.5
"""Times as much as a step needs that is held before what is free goes back to the system."""


_FEWEST_STEPS = 4
"""Gaps take more steps than these to add up to a surplus again: before, it is the steps that need more."""


class RetainFreedMemory(Method):
    """Has glibc serve blocks of every size from its heap and never shorten it, for the whole process.

    By default large blocks are mappings of their own: freeing one gives its pages back to the system, and the next
    step takes them again, each page zeroed by the kernel when it is first written to. torch caches memory on a GPU;
    on a CPU it leaves that to the C library. What was allocated before stays where it is, so that applying this to a
    model that is built already is no worse.

    Blocks of changing sizes leave gaps, and glibc before 2.38 does not even fill the gap of an aligned block with
    another of its size (bug 14581). So where half again as much is held as a step needs, all that is free goes back
    to the system once.

    The setting cannot be undone for good: glibc adjusts its thresholds to what a program frees, until one is set.
    When the training closes, they are set to the values at which that adjusting ends, and what is free goes back to
    the system. In a process that starts anew the environment variables ``MALLOC_MMAP_MAX_=0`` and
    ``MALLOC_TRIM_THRESHOLD_=-1`` do the same.
    """

    name = _NAME
    summary = "Keeps freed memory in the process, so that a CPU's steps do not take it from the system page by page."
    fidelity = Fidelity.EXACT
    saves = frozenset()
    cpu_time_ratio = 0.8
    costs = (
        "resident memory: what the fullest moment took stays with the process until the training closes (of gpt2 5 % "
        "more than without it); where batches change in size, up to half again for the gaps between blocks"
    )
    pays = "on CPUs, when tensors are of some hundred KiB or more: nearly always"
    does_not_pay = "where other programs need the memory between two peaks, or large batches of many sizes alternate"
    stage = Stage.PARALLELIZE  # Before methods allocate.
    citation = "The GNU C Library manual, Malloc Tunable Parameters"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only for tensors in the host's memory, and only with glibc's allocator."""
        reason = _not_cpu(hardware.device) if hardware.kind is not DeviceKind.CPU else why_no_mallopt()
        return Verdict.no(reason) if reason else Verdict.yes()

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the setting, and see that it has an effect."""
        from advisor.training.process_setting import hold, is_held

        if reason := _not_cpu(str(training.device)) if training.device.type != "cpu" else why_no_mallopt():
            raise MethodRefusedError(reason)
        if keeps_by_environment():
            training.notes.append(f"{_NAME} changed nothing: this process was started so that it keeps what it frees")
            return
        on = is_held(_NAME)
        hold(
            training,
            _NAME,
            True,
            read=lambda: on,
            write=lambda value: keep_freed_memory() if value else usual_again(),
        )
        training.after_step.append(_Surplus(training))
        if not on and gives_back():
            training.notes.append(
                f"{_NAME} changed nothing: what torch frees here goes back to the system whatever glibc is told (it "
                "keeps what the main thread frees, and torch must take its memory from it)"
            )


class _Surplus:
    """Gives back what is free after a step, where blocks of changing sizes left too many gaps.

    Args:
        training: Whose steps they are.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._largest_batch = 0
        self._needed_bytes = 0
        self._steps = 0

    def __call__(self) -> None:
        held_bytes = resident_bytes()
        self._steps += 1
        micro_batch = self._training.micro_batch or 0
        if micro_batch > self._largest_batch:
            self._largest_batch, self._steps = micro_batch, 1
        too_much = held_bytes > _SURPLUS * self._needed_bytes
        if self._steps == 1 or (too_much and self._steps <= _FEWEST_STEPS):
            # What is held after the first steps of a larger batch, or after all that was free went back, is what these
            # steps need: otherwise a larger batch gives back in every step what its next one takes again.
            self._needed_bytes = max(self._needed_bytes, held_bytes)
        elif too_much:
            trim()
            self._steps = 0


def _not_cpu(device: str) -> str:
    return f"it is about the host's memory, and the training's is on {device}, where torch keeps it already"
