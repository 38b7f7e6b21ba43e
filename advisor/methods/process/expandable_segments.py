"""Let segments of the CUDA allocator grow, so that memory is not lost between them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Method, Saves, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["ExpandableSegments"]

_NAME = "expandable_segments"
_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class ExpandableSegments(Method):
    """Sets ``expandable_segments:True`` for the whole process until the training closes.

    What was allocated before stays in segments of the old kind.
    """

    name = "expandable_segments"
    summary = "Has the CUDA allocator grow its segments instead of adding new ones, against fragmentation."
    fidelity = Fidelity.EXACT
    saves = frozenset({Saves.WORKSPACE})
    costs = "a little time whenever memory is mapped, mostly in the first steps"
    pays = "when much more memory is reserved than allocated: with batches of changing sizes, or near the limit"
    does_not_pay = "where reserved and allocated memory are nearly the same"
    stage = Stage.PARALLELIZE  # Before methods allocate.
    citation = "PyTorch documentation, CUDA semantics: memory management"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only for the CUDA allocator."""
        return _judge_device(hardware.device, on_gpu=hardware.kind is DeviceKind.CUDA)

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the setting, after giving back what the allocator holds unused in segments of the old kind."""
        import torch

        from advisor.training.process_setting import hold, is_held

        require(_judge_device(str(training.device), on_gpu=training.device.type == "cuda"))
        backend = torch.cuda.get_allocator_backend()
        if backend != "native":
            raise MethodRefusedError(f"the allocator must be torch's native one, but it is {backend}")
        change = _setter()
        kept = [setting for setting in _settings().split(",") if setting]
        others = [setting for setting in kept if setting.partition(":")[0].strip() != _NAME]
        own = [setting.partition(":")[2].strip() for setting in kept if setting not in others]
        # A torch that cannot tell its settings gives those of the start; another training may have changed them since.
        on = own[-1:] == ["True"] or is_held(_NAME)
        if on and not is_held(_NAME):
            training.notes.append("expandable_segments changed nothing: the allocator was already set so")
            return
        if not on:
            torch.cuda.empty_cache()
        # What is not named goes back to its default, so all other settings are given again.
        hold(training, _NAME, True, read=lambda: on, write=lambda on: change(",".join([*others, f"{_NAME}:{on}"])))


def _settings() -> str:
    """The allocator's settings, as they would be written in the environment."""
    import torch

    if hasattr(torch._C, "_accelerator_getAllocatorSettings"):
        return torch._C._accelerator_getAllocatorSettings()
    return next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), "")


def _setter() -> Callable[[str], None]:
    """Torch's function that changes the settings; its name depends on the version."""
    import torch

    for name in ("_accelerator_setAllocatorSettings", "_cuda_cudaCachingAllocator_set_allocator_settings"):
        if hasattr(torch._C, name):
            return getattr(torch._C, name)  # type: ignore[no-any-return]
    raise MethodRefusedError(
        f"torch {torch.__version__} cannot change its allocator in a running process; set the environment variable "
        f"PYTORCH_CUDA_ALLOC_CONF={_NAME}:True instead"
    )


def _judge_device(device: str, *, on_gpu: bool) -> Verdict:
    return judged(on_gpu, f"it is a setting of the CUDA allocator, but the device is {device}")
