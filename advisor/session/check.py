"""Check whether a policy file still holds: compare what it was measured for with what is here.

The model is built in a child process, without memory where its code allows it; nothing is trained, unless the wrapper
and plain training are to be measured again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from advisor.decide.policy_status import PolicyCheck, PolicyStatus, moved, status_of
from advisor.errors import MethodRefusedError, OptionError, PolicyError, WorkloadError
from advisor.files import PrivateFolder
from advisor.goal import GoalKind, Preference, Price
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.catalogue import get_method
from advisor.methods.libraries import needed_by
from advisor.policy.file import PolicyFile, load_policy_file
from advisor.policy.fingerprints import Asked, Fingerprints, hardware_facts
from advisor.policy.tune_command import tune_command
from advisor.session.policy_checks import as_measured
from advisor.session.policy_runs import PolicyRuns
from advisor.session.request import picks_of
from advisor.session.setup.limits import memory_budget
from advisor.session.setup.same_model import look_at_model
from advisor.session.setup.versions import versions
from advisor.surroundings import check_working_folder
from advisor.text.printable import shown
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.workload.difference import Difference, Weight
from advisor.workload.source import resolve_source
from advisor.workload.workload import Stated, WorkloadSource

__all__ = ["CheckRequest", "run_check"]

_PICKS = frozenset(("max_latency_seconds", "max_cost_usd", "deadline_seconds"))
"""What picks a point of the frontier, of which at most one may be asked for."""

_OLD = (
    "it does not state which model it was measured for: it was written by hand or by an older version of momadvise. "
    "Tune again to get one that does"
)


class CheckRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to check.

    Attributes:
        source: The model; ``None`` for the one that the policy names.
        global_batch: What would be asked for now, as the next ones, also in ``stated``; ``None`` for what it was then.
        remeasure: Whether to measure the wrapper and plain training again.
        strict: Whether warnings make the policy stale.
    """

    policy_file: Path
    source: WorkloadSource | None = None
    device: str | None = None
    memory_limit_bytes: int | None = None
    global_batch: int | None = None
    stated: Stated = Stated()
    price: Price | None = None
    usd_per_kilowatt_hour: float | None = None
    preference: Preference = Preference()
    remeasure: bool = False
    strict: bool = False
    seed: int = 0


def run_check(request: CheckRequest, tell: Callable[[str], None]) -> PolicyCheck:
    """Compare, and measure if asked to.

    Raises:
        UserError: A mistake that the user can fix.
    """
    check_working_folder()
    file = load_policy_file(request.policy_file)
    known = file.fingerprints
    plain = request.source or _named_source(request.policy_file, known)
    source = as_measured(plain, request.stated, known)
    _check_picks(request, file)
    on_cpu = known is not None and known.hardware.get("kind") == DeviceKind.CPU.value
    hardware = detect_hardware(request.device or ("cpu" if on_cpu else None))
    check = PolicyCheck(
        policy=file.policy,
        workload=source.name,
        device=hardware.title,
        status=PolicyStatus.UNKNOWN,
        strict=request.strict,
        command=_command(source, file, request),
    )
    if known is None or known.identity is None:
        return msgspec.structs.replace(check, reason=_OLD)
    # What is stated otherwise now is told by itself: the model is compared at what was stated then.
    as_then = as_measured(plain, Stated(), known)
    found = _differences(request, file, known, as_then, hardware)
    found += known.identity.changes(source.root)
    if known.identity.model is not None:
        look = look_at_model(source, request.seed, known.identity.model, tell)
        if look.outcome is Outcome.FAILED:
            raise WorkloadError(look.reason, look.traceback_text)
        if look.identity is None:
            reason = f"building the model ended as {look.outcome.value}: {look.reason}. Check again"
            return msgspec.structs.replace(check, reason=reason, differences=tuple(found))
        found += known.identity.model.differences(look.identity)
    check = msgspec.structs.replace(check, differences=_sorted(found), status=status_of(found, strict=request.strict))
    if request.remeasure and check.status is PolicyStatus.HOLDS:
        return _remeasured(check, request, file, source, hardware, tell)
    return check


def _check_picks(request: CheckRequest, file: PolicyFile) -> None:
    picks = picks_of(request.price, request.usd_per_kilowatt_hour, request.preference)
    goal = None if file.evidence is None else file.evidence.goal
    if picks and goal not in (None, GoalKind.CHEAPEST.value):
        raise OptionError(
            f"A price or preference picks among the policies of --goal cheapest, but {shown(request.policy_file)} was "
            f"found with --goal {goal}. Leave it out."
        )


def _named_source(path: Path, known: Fingerprints | None) -> WorkloadSource:
    """The model that a policy names, from the current folder or the policy's: preferably the one that was measured."""
    named = "" if known is None else known.workload.get("model", "")
    fix = f"Name it: momadvise check {shown(path)} MODEL (functions are passed to advisor.check)"
    if not named:
        raise PolicyError(f"A policy is checked with its model, but {shown(path)} names none. {fix}.")
    if named.startswith("hf:"):
        return resolve_source(named)
    found, errors = [], []
    for place in (Path(named), path.parent / named):
        try:
            found += [resolve_source(place)] if place.exists() else []
        except WorkloadError as error:  # another file of this name
            errors.append(error)
    if errors and not found:
        raise errors[0]
    if not found and not named.endswith((".py", ".json")) and all(map(str.isidentifier, named.split("."))):
        return resolve_source(named)  # a module
    if not found:
        raise PolicyError(
            f"A policy is checked with its model, but {shown(path)} names {shown(named)}, which is neither in the "
            f"current folder nor beside the policy. {fix}."
        )
    then = None if known is None else known.workload.get("fingerprint")
    return next((one for one in found if as_measured(one, Stated(), known).fingerprint == then), found[0])


def _differences(
    request: CheckRequest, file: PolicyFile, known: Fingerprints, source: WorkloadSource, hardware: Hardware
) -> list[Difference]:
    """What can be compared without starting the model's code."""
    libraries = needed_by(get_method(setting.name) for setting in file.policy.methods)
    now = Fingerprints(
        workload={"name": source.name, "fingerprint": source.fingerprint},
        hardware=hardware_facts(hardware),
        versions=versions(libraries),
        request=known.request,
        asked=known.asked | _asked_now(request),
    )
    found = known.differences(now, libraries)
    if known.policy not in ("", file.policy.key):
        found.append(Difference(subject="policy", what="methods or batch"))
    needed = file.policy.gpu_count
    if hardware.kind is DeviceKind.CUDA and needed > hardware.device_count:
        found.append(Difference(subject="devices", was=str(needed), now=str(hardware.device_count)))
    return found


def _asked_now(request: CheckRequest) -> Asked:
    """What would be asked for now, as far as it is stated."""
    stated: Asked = {
        "global_batch": request.global_batch,
        "memory_limit_bytes": request.memory_limit_bytes,
        **msgspec.structs.asdict(request.stated),
        **picks_of(request.price, request.usd_per_kilowatt_hour, request.preference),
    }
    return {name: value for name, value in stated.items() if value is not None}


def _sorted(found: list[Difference]) -> tuple[Difference, ...]:
    """What makes it stale comes first."""
    order = list(Weight)
    return tuple(sorted(found, key=lambda one: order.index(one.weight)))


def _remeasured(
    check: PolicyCheck,
    request: CheckRequest,
    file: PolicyFile,
    source: WorkloadSource,
    hardware: Hardware,
    tell: Callable[[str], None],
) -> PolicyCheck:
    """Run the wrapper and the baseline: in turn, or one after the other where that cannot be."""
    if file.evidence is None:
        reason = "--remeasure compares with what was measured, but the policy has no evidence. Tune again instead"
        return msgspec.structs.replace(check, status=PolicyStatus.UNKNOWN, reason=reason)
    limit = memory_budget(hardware, request.memory_limit_bytes).limit_bytes
    with PrivateFolder("check") as folder, Runner(folder, tell=tell) as runner:
        runs = PolicyRuns(file, source, hardware, limit, folder, runner, request.seed)
        runs.probe()  # batches that differ in size are drawn as in the search
        result, plain, beside = runs.beside_baseline(file.policy.global_batch)
    if result.outcome is Outcome.REFUSED:
        raise MethodRefusedError(result.reason)
    if result.measurement is None:
        if result.outcome.is_by_chance:
            reason = f"the wrapper's run ended as {result.outcome.value}: {result.reason}. Check again"
            return msgspec.structs.replace(check, status=PolicyStatus.UNKNOWN, reason=reason)
        words = f"{result.outcome.value}: {result.reason}" if result.reason else result.outcome.value
        found = [Difference(subject="the wrapper's run", was="ok", now=words, weight=Weight.MOVED)]
    else:
        found = moved(file.evidence, result.measurement.memory.peak_bytes, result.speedup)
    notes = list(result.notes)
    if result.speedup is None and beside != file.policy:
        why = "plain training does not run" if plain is None else "both do not fit at once"
        notes.append(f"the speed was not compared: {why}")
    differences = (*check.differences, *found)
    return msgspec.structs.replace(
        check,
        differences=differences,
        status=status_of(differences, strict=request.strict),
        remeasured=True,
        notes=tuple(notes),
    )


def _command(source: WorkloadSource, file: PolicyFile, request: CheckRequest) -> tuple[str, ...]:
    """The command that tunes again, with what is asked for now, and else what was asked for then."""
    then, options = ({}, {}) if file.fingerprints is None else (file.fingerprints.asked, file.fingerprints.options)
    goal = then.get("goal") or (GoalKind.FASTER.value if file.evidence is None else file.evidence.goal)
    now = _asked_now(request) | ({} if request.device is None else {"device": request.device})
    # Settings of the user's own, which the policy keeps, are what the next one is compared with too.
    own = {} if file.baseline is None else {"--from": str(request.policy_file)}
    if goal == GoalKind.CHEAPEST.value and "--gpus" not in options:
        then = {name: value for name, value in then.items() if name != "gpus"}  # they are those that there were
    if _PICKS & now.keys():
        then = {name: value for name, value in then.items() if name not in _PICKS}
    more = {flag: value for flag, value in options.items() if flag != "--device" or request.device is None} | own
    return tune_command(source.typed_here, str(goal), then | now, request.preference, more)
