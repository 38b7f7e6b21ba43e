"""One prediction from request to answer, without training the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from advisor.errors import MethodRefusedError, NothingPredictedError, OptionError, WorkloadError
from advisor.files import PrivateFolder
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.profile_hardware import find_profile, hardware_of
from advisor.hardware.profiles import Profile
from advisor.hardware.rates import DeviceRates
from advisor.methods.compose import judge
from advisor.policy.file import PolicyFile, load_policy_file
from advisor.policy.policy import Policy
from advisor.predict.policy_outlook import EXPANDABLE_SEGMENTS, Outlook, outlook_of
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.session.policy_checks import as_measured
from advisor.session.prediction_cache import PredictionCache
from advisor.session.setup.limits import CUDA_CONTEXT_BYTES, memory_budget
from advisor.session.sliced_policy import with_plan
from advisor.text.printable import shown
from advisor.text.ranges import whole
from advisor.text.units import format_bytes
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from advisor.workload.sizes import size_words
from advisor.workload.workload import Stated, WorkloadSource

__all__ = ["PredictRequest", "run_prediction"]

_TIME_LIMIT_SECONDS = 300.0
"""A trace takes seconds. A model file that loads a data set may take minutes; one that blocks is ended."""


class PredictRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to predict.

    Attributes:
        source: The model, without what is stated beside it.
        stated: The sizes of its samples; ``None`` for those that the policy was measured at, or usual ones.
        policy_file: The policy to apply; ``None`` for plain training.
        batch: The micro-batch to look at; ``None`` for the policy's, or else the workload's ``BATCH_SIZE``.
        profile: Name of a GPU's profile, to predict for that instead of a device of this machine.
    """

    source: WorkloadSource
    stated: Stated = Stated()
    policy_file: Path | None = None
    batch: int | None = None
    device: str | None = None
    profile: str | None = None
    memory_limit_bytes: int | None = None
    seed: int = 0

    def check(self) -> None:
        """Check the request's own values.

        Raises:
            OptionError: An option is outside its rule.
        """
        if self.batch is not None:
            whole(self.batch, "--batch")
        if self.profile is not None and self.device is not None:
            raise OptionError(
                f"Either a device of this machine or a profile can be predicted for, but got --device "
                f"{shown(self.device)} and --profile {shown(self.profile)}. Keep one."
            )


def run_prediction(request: PredictRequest, tell: Callable[[str], None]) -> Outlook:
    """Predict the memory of a policy on a device.

    Raises:
        UserError: A mistake that the user can fix.
        NothingPredictedError: A step cannot be traced without running it.
    """
    request.check()
    file = None if request.policy_file is None else load_policy_file(request.policy_file)
    known = None if file is None else file.fingerprints
    source = as_measured(request.source, request.stated, known)
    request = msgspec.structs.replace(request, source=source, stated=source.stated)
    policy, size = _policy(request, file)
    profile, which = (None, "") if request.profile is None else find_profile(request.profile)
    hardware = detect_hardware(request.device) if profile is None else hardware_of(profile)
    verdict = judge(
        policy.methods,
        facts=None,
        hardware=hardware,
        accumulation_steps=policy.accumulation_steps,
        gpu_count=policy.gpu_count,
        mesh=policy.axes,
    )
    if not verdict.applicable:
        raise MethodRefusedError(f"{verdict.reason} (on {hardware.name})")
    policy, planned = with_plan(
        policy, request.source, size, seed=request.seed, time_limit_seconds=_TIME_LIMIT_SECONDS, tell=tell
    )
    limit, limit_from = _limit(request, hardware)
    ranks = policy.axes.distinct_ranks(policy.gpu_count)
    found = [_traced(_spec(request, policy, size, hardware, limit, rank), hardware, tell) for rank in ranks]
    fullest = max(found, key=lambda one: one.prediction.peak(_batch(request, policy, one.prediction)[0]))
    result, prediction = fullest.result, fullest.prediction
    batch, batch_from = _batch(request, policy, prediction)
    notes = [*filter(None, [which]), *planned, *_notes(request, hardware, profile), *_of_several(policy, fullest.rank)]
    if size:
        notes.append(f"The model is built at the policy's size, {size_words(size)}.")
    if verdict.reason:
        notes.append(verdict.reason)
    if fullest.kept_note:
        notes.append(fullest.kept_note)
    return outlook_of(
        prediction,
        workload=request.source.name,
        policy=msgspec.structs.replace(policy, micro_batch=batch),
        device=hardware.name,
        limit_bytes=limit,
        limit_from=limit_from,
        batch_from=batch_from,
        work=result.work,
        rates=result.device_rates if profile is None else DeviceRates.of_profile(profile),
        notes=(*notes, *(note for note in result.notes if note not in prediction.notes)),
    )


class _Traced(NamedTuple):
    """What was predicted of one rank; ``kept_note`` says when, if that was before."""

    rank: int
    result: PredictResult
    prediction: MemoryPrediction
    kept_note: str


def _traced(spec: PredictTrial, hardware: Hardware, tell: Callable[[str], None]) -> _Traced:
    cache = PredictionCache()
    kept = cache.find(spec, hardware.name)
    if kept is None:
        result, note = _answered(spec, tell), ""
        cache.keep(spec, hardware.name, result)
    else:
        result = kept.result
        note = (
            f"It was traced on {kept.date}, and model, policy, device and versions are what they were "
            f"(delete {cache.path(spec, hardware.name)} to trace again)."
        )
    assert result.prediction is not None, "a trial without a prediction has raised"
    return _Traced(spec.rank, result, result.prediction, note)


def _policy(request: PredictRequest, file: PolicyFile | None) -> tuple[Policy, dict[str, int | float]]:
    """The policy at the requested batch, as far as that is known before the model file is read; and the model's size.

    The size is empty for the model's own.
    """
    if file is None:
        return Policy(micro_batch=request.batch or 1), {}
    policy = file.policy if request.batch is None else msgspec.structs.replace(file.policy, micro_batch=request.batch)
    return policy, file.size


def _limit(request: PredictRequest, hardware: Hardware) -> tuple[int, str]:
    """The memory limit and its source; the user may ask about more memory than there is."""
    if request.memory_limit_bytes is not None:
        return request.memory_limit_bytes, "--memory-limit"
    limit = memory_budget(hardware, None).limit_bytes
    return limit, "what may be taken now" if request.profile is None else "what the GPU has for it"


def _batch(request: PredictRequest, policy: Policy, prediction: MemoryPrediction) -> tuple[int, str]:
    if request.batch is not None:
        return request.batch, "--batch"
    if request.policy_file is not None:
        return policy.micro_batch, "the policy's"
    if prediction.own_batch is not None:
        return prediction.own_batch, "BATCH_SIZE"
    return policy.micro_batch, "no BATCH_SIZE is stated"


def _spec(
    request: PredictRequest,
    policy: Policy,
    size: dict[str, int | float],
    hardware: Hardware,
    limit_bytes: int,
    rank: int,
) -> PredictTrial:
    stands_for = None
    if request.profile is not None:
        assert hardware.compute_capability is not None, "a profile to predict for is one of a GPU"
        assert hardware.multiprocessors is not None, "likewise"
        stands_for = CudaDevice(
            compute_capability=hardware.compute_capability, multiprocessors=hardware.multiprocessors
        )
        # A CPU has no expandable segments; the replay simulates them in any case.
        methods = tuple(setting for setting in policy.methods if setting.name != EXPANDABLE_SEGMENTS)
        policy = msgspec.structs.replace(policy, methods=methods)
    return PredictTrial(
        workload=request.source,
        policy=policy,
        model_size=size,
        device=hardware.device if stands_for is None else "cpu",
        stands_for=stands_for,
        allocator_limit_bytes=limit_bytes if hardware.kind is DeviceKind.CUDA else None,
        counts_work=stands_for is None and policy.gpu_count == 1,  # of several nobody knows how long they wait
        measures_rates=stands_for is None,
        memory_limit_bytes=limit_bytes,
        seed=request.seed,
        at_own_batch=request.batch is None and request.policy_file is None,
        # What was predicted is kept until that changes. Of several ranks, which one process traces, it is not asked.
        identifies=policy.gpu_count == 1,
        rank=rank,
        measure_seconds=_TIME_LIMIT_SECONDS,
        time_limit_seconds=_TIME_LIMIT_SECONDS,
    )


def _answered(spec: PredictTrial, tell: Callable[[str], None]) -> PredictResult:
    """Trace in a worker."""
    with PrivateFolder("predict") as folder, Runner(folder, tell=tell) as runner:
        result = runner.run(spec)
        printed = runner.tail_of_log(result.key)
    if result.prediction is None:
        raise _why_not(result, printed, elsewhere=spec.stands_for is not None)
    return result


def _why_not(result: PredictResult, printed: str, *, elsewhere: bool) -> Exception:
    """The error for a trial without a prediction."""
    match result.outcome:
        case Outcome.OK:
            return NothingPredictedError(
                f"A prediction follows one step of the training on tensors without values, but {result.reason}. "
                "Measure it instead: `momadvise --goal faster MODEL` makes short real runs."
            )
        case Outcome.FAILED:
            return WorkloadError(result.reason, result.traceback_text)
        case Outcome.REFUSED if elsewhere:
            # It applies to that GPU, as judged before: the CPU that stands for it refuses.
            return NothingPredictedError(
                f"A policy must be applied here to be predicted, but without the GPU this one cannot: {result.reason}. "
                "Measure it on that GPU, or leave the method out of the policy."
            )
        case Outcome.REFUSED:
            return MethodRefusedError(result.reason)
    text = f"The model must be loaded and traced, but that ended as {result.outcome.value}: {result.reason}."
    return NothingPredictedError(text + (f"\nThe last lines that it printed:\n{printed}" if printed else ""))


def _notes(request: PredictRequest, hardware: Hardware, profile: Profile | None) -> list[str]:
    """Notes on what is not predicted for a device of another machine."""
    notes = []
    if profile is not None:
        notes += [
            f"Predicted for {hardware.name} from a trace on this machine's CPU; not measured on that GPU.",
            "Kernels that a method or a library has for GPUs alone are not followed.",
        ]
    if profile is not None and request.memory_limit_bytes is None:
        notes.append(
            f"Of its {format_bytes(hardware.memory_bytes)} (published), {format_bytes(CUDA_CONTEXT_BYTES)} are left "
            "for the CUDA context and its libraries: an assumption, as that depends on driver and libraries."
        )
    return notes


def _of_several(policy: Policy, rank: int) -> list[str]:
    """Notes on which of several devices it is, and on what is not predicted for them."""
    if policy.gpu_count == 1:
        return []
    devices, stages = policy.gpu_count, policy.axes.pipeline
    label = policy.axes.label(devices)
    mesh = f" ({label})" if label else ""
    if stages == 1:
        which = f"of each of the {devices} devices{mesh}: the first was traced, with the others taken to do the same"
    else:
        stage = rank * stages // devices + 1
        which = (
            f"of the fullest of {devices} devices{mesh}, rank {rank} in stage {stage} of {stages}: one device of each "
            "stage was traced"
        )
    return [
        f"Memory and batch are {which}. What the communication library takes itself is not in it, and no time is "
        "predicted."
    ]
