"""Check a request against this machine before a study folder is opened."""

from __future__ import annotations

import msgspec

from advisor.goal import Goal, GoalKind, Price
from advisor.hardware.detect import detect_hardware, list_devices
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.profiles import load_profiles, resolve_price
from advisor.search.space.requested_methods import check_requested_on, only_methods
from advisor.search.space.space_file import SearchSpace, load_space
from advisor.search.study.storage import check_opens, check_storage
from advisor.session.budget import TimeBudget
from advisor.session.climb import SHARE_OF_CLIMBING_TRIAL
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import check_preflight, choose_devices
from advisor.session.setup.limits import MemoryBudget, memory_budget
from advisor.session.setup.versions import versions
from advisor.session.study import StudyMarker, study_marker
from advisor.workload.missing_sizes import check_sizes
from advisor.workload.unused_names import notes_on_unused_names

__all__ = ["Preparation", "prepare"]


class Preparation(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request and the machine that it is for.

    Attributes:
        space: The search space, narrowed to the requested methods if there are any.
        hardware: The device, with the least free memory of those that train together.
        budget: The clock, which began with the request.
    """

    request: TuneRequest
    space: SearchSpace
    hardware: Hardware
    gpu_counts: tuple[int, ...]
    memory: MemoryBudget
    price: Price | None
    budget: TimeBudget
    marker: StudyMarker
    notes: tuple[str, ...]

    def goal(self, memory_limit_bytes: int) -> Goal:
        """The requested goal under a study's memory limit."""
        request = self.request
        return Goal(
            kind=request.goal,
            global_batch=request.global_batch,
            fidelity=request.fidelity or self.space.fidelity,
            memory_limit_bytes=memory_limit_bytes,
            gpu_counts=self.gpu_counts,
            machines=request.nodes.count,
            shares_memory=self.hardware.kind is DeviceKind.CPU,
            price=self.price,
            usd_per_kilowatt_hour=request.usd_per_kilowatt_hour,
            preference=request.preference,
            floor=request.floor,
        )


def prepare(request: TuneRequest) -> Preparation:
    """Check a request against this machine.

    Raises:
        UserError: A mistake that the user can fix.
    """
    if request.storage is not None:
        check_storage(request.storage)
    if request.goal is GoalKind.BIGGER:
        check_sizes(request.source)
        budget = TimeBudget(request.time_limit_seconds, share_of_trial=SHARE_OF_CLIMBING_TRIAL)
    else:
        budget = TimeBudget(request.time_limit_seconds)
    space = load_space(request.search_space)
    if request.methods:
        space = only_methods(space, request.methods)
    devices = choose_devices(request, detect_hardware(request.device), list_devices())
    check_preflight(request, space, devices.counts)
    hardware = devices.hardware
    check_requested_on(request.methods, hardware)
    memory = memory_budget(hardware, request.memory_limit_bytes)
    price = None
    if request.goal is GoalKind.CHEAPEST:
        price = resolve_price(request.price, load_profiles().get(hardware.profile or ""), device_name=hardware.name)
    # The resolved device counts: without --gpus they depend on how many devices there are.
    on_devices = msgspec.structs.replace(request, gpu_counts=devices.counts)
    marker = study_marker(on_devices, hardware, versions(space.libraries), space.canonical_text, memory.limit_bytes)
    marker = msgspec.structs.replace(marker, options=request.options_again)
    if request.storage is not None:
        check_opens(request.storage)
    return Preparation(
        request=request,
        space=space,
        hardware=hardware,
        gpu_counts=devices.counts,
        memory=memory,
        price=price,
        budget=budget,
        marker=marker,
        notes=(*notes_on_unused_names(request.source), *devices.notes, *memory.notes),
    )
