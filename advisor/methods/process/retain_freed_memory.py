"""Keep the memory that a step frees for the next one, as a caching allocator does on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Method, Stage, Verdict
from advisor.methods.process import glibc
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["RetainFreedMemory"]

_NAME = "retain_freed_memory"

_SURPLUS = 1.5
"""Multiple of a step's need above which free memory goes back to the system."""

_FEWEST_STEPS = 4
"""Gaps need more steps than these to add up to a surplus again; until then, the steps need more."""


class RetainFreedMemory(Method):
    """Has glibc serve blocks of every size from its heap and never shorten it, for the whole process.

    By default large blocks are mappings of their own: freeing one gives its pages back to the system, and the next step
    takes them again, each zeroed by the kernel at its first write. On a GPU torch caches memory; on a CPU it leaves
    that to the C library. What was allocated before stays where it is.

    Blocks of changing sizes leave gaps, and glibc before 2.38 does not even fill the gap of an aligned block with
    another of its size (bug 14581). So when half again as much is held as a step needs, all that is free goes back
    once.

    The setting cannot be fully undone: glibc adjusts its thresholds to what a program frees only until one is set. When
    the training closes, they get the values at which the adjustment ends, and what is free goes back. For a new
    process, the environment variables ``MALLOC_MMAP_MAX_=0`` and ``MALLOC_TRIM_THRESHOLD_=-1`` do the same.
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
    avoids_page_faults = True
    stage = Stage.PARALLELIZE  # Before methods allocate.
    citation = "The GNU C Library manual, Malloc Tunable Parameters"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only for tensors in the host's memory, and only with glibc's allocator."""
        return _judge(hardware.device, on_cpu=hardware.kind is DeviceKind.CPU)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the setting, and check that it has an effect."""
        from advisor.training.process_setting import hold, is_held

        require(_judge(str(training.device), on_cpu=training.device.type == "cpu"))
        if glibc.keeps_by_environment():
            training.notes.append(f"{_NAME} changed nothing: this process was started so that it keeps what it frees")
            return
        on = is_held(_NAME)
        hold(
            training,
            _NAME,
            True,
            read=lambda: on,
            write=lambda on: glibc.keep_freed_memory() if on else glibc.usual_again(),
        )
        training.after_step.append(_Surplus(training))
        if not on and glibc.gives_back():
            training.notes.append(
                f"{_NAME} changed nothing: what torch frees here goes back to the system whatever glibc is told (it "
                "keeps what the main thread frees, and torch must take its memory from it)"
            )


class _Surplus:
    """Gives back free memory after a step if blocks of changing sizes have left too many gaps."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._largest_batch = 0
        self._needed_bytes = 0
        self._steps = 0

    def __call__(self) -> None:
        held_bytes = glibc.resident_bytes()
        self._steps += 1
        micro_batch = self._training.micro_batch or 0
        if micro_batch > self._largest_batch:
            self._largest_batch, self._steps = micro_batch, 1
        too_much = held_bytes > _SURPLUS * self._needed_bytes
        if self._steps == 1 or (too_much and self._steps <= _FEWEST_STEPS):
            # What is held after the first steps of a larger batch, or after free memory went back, is what steps need:
            # otherwise each would give back what the next takes again.
            self._needed_bytes = max(self._needed_bytes, held_bytes)
        elif too_much:
            glibc.trim()
            self._steps = 0


def _judge(device: str, *, on_cpu: bool) -> Verdict:
    if not on_cpu:
        return Verdict.no(
            f"it is about the host's memory, and the training's is on {device}, where torch keeps it already"
        )
    reason = glibc.why_no_mallopt()
    return judged(not reason, reason)
