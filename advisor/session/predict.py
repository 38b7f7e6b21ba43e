"""One prediction from request to answer: nothing of the model is trained, and nothing is kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from advisor.errors import MethodRefusedError, NothingPredictedError, OptionError, PolicyError, WorkloadError
from advisor.methods.compose import judge
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.predict.outlook import Outlook, outlook_of
from advisor.predict.prediction import CudaDevice, MemoryPrediction
from advisor.problem.detect import detect_hardware
from advisor.problem.hardware import Hardware
from advisor.problem.profile_hardware import find_profile, hardware_of
from advisor.problem.units import format_bytes
from advisor.problem.workload import WorkloadSource
from advisor.session.limits import CUDA_CONTEXT_BYTES, memory_budget
from advisor.trial.outcome import Outcome
from advisor.trial.runner import Runner, RunnerEvent, RunnerEventKind
from advisor.trial.spec import TrialKind, TrialResult, TrialSpec

__all__ = ["PredictRequest", "run_prediction"]

_TIME_LIMIT_SECONDS = 300.0
"""A trace takes seconds. A model file that loads a data set may take minutes; one that waits forever is ended."""

_MEASURE_IT = "Measure it: `momadvise --goal faster MODEL` makes short real runs."


class PredictRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to predict.

    Attributes:
        source: The workload.
        policy_file: The policy to apply; ``None`` for plain training.
        batch: The micro-batch to look at; ``None`` for the policy's, or else the workload's ``BATCH_SIZE``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``None`` for the best there is.
        profile: Name of a GPU's profile, to predict for that instead of a device of this machine.
        memory_limit_bytes: What the training may take; ``None`` for what is free.
        seed: Of the model and its batches.
    """

    source: WorkloadSource
    policy_file: Path | None = None
    batch: int | None = None
    device: str | None = None
    profile: str | None = None
    memory_limit_bytes: int | None = None
    seed: int = 0


def run_prediction(request: PredictRequest, tell: Callable[[str], None]) -> Outlook:
    """Predict the memory of a policy on a device.

    Args:
        request: What to predict.
        tell: Hears what is being done, in a few words.

    Raises:
        UserError: A mistake that the user can fix.
        NothingPredictedError: A step cannot be followed without running it.
    """
    if request.batch is not None and request.batch < 1:
        raise OptionError(f"--batch >= 1 must hold, but got {request.batch}.")
    policy = _policy(request)
    if request.profile is not None and request.device is not None:
        raise OptionError(
            f"Either a device of this machine or a profile can be predicted for, but got --device {request.device} "
            f"and --profile {request.profile}. Keep one."
        )
    hardware = (
        detect_hardware(request.device) if request.profile is None else hardware_of(find_profile(request.profile))
    )
    verdict = judge(policy.methods, facts=None, hardware=hardware, accumulation_steps=policy.accumulation_steps)
    if not verdict.applicable:
        raise MethodRefusedError(f"{verdict.reason} (on {hardware.name})")
    limit = request.memory_limit_bytes or memory_budget(hardware, None).limit_bytes
    prediction = _prediction(request, policy, hardware, limit, tell)
    batch, batch_from = _batch(request, policy, prediction)
    return outlook_of(
        prediction,
        workload=request.source.name,
        policy=msgspec.structs.replace(policy, micro_batch=batch),
        device=hardware.name,
        limit_bytes=limit,
        batch_from=batch_from,
        notes=(*_standing_notes(request, hardware), *((verdict.reason,) if verdict.reason else ())),
    )


def _standing_notes(request: PredictRequest, hardware: Hardware) -> tuple[str, ...]:
    """What nobody has checked where the device is not here."""
    if request.profile is None:
        return ()
    notes = [
        f"Predicted for {hardware.name} from a trace on this machine's CPU, never checked on that GPU. The model's "
        "code ran here: what it decides by torch.cuda.is_available(), it decided as on a machine without one."
    ]
    if request.memory_limit_bytes is None:
        notes.append(
            f"Of its {format_bytes(hardware.memory_bytes)} (published), {format_bytes(CUDA_CONTEXT_BYTES)} are left "
            "for the CUDA context and its libraries: an assumption, as they depend on the driver."
        )
    return tuple(notes)


def _policy(request: PredictRequest) -> Policy:
    """The policy, at the batch that is asked for as far as that is known before the model's file was read."""
    if request.policy_file is None:
        return Policy(micro_batch=request.batch or 1)
    policy = load_policy_file(request.policy_file).policy
    if policy.gpu_count > 1:
        raise PolicyError(
            f"A prediction is of one device, but {request.policy_file} is for {policy.gpu_count}. "
            "Predict a policy with gpu_count: 1, or measure this one with `momadvise --gpus`."
        )
    return policy if request.batch is None else msgspec.structs.replace(policy, micro_batch=request.batch)


def _batch(request: PredictRequest, policy: Policy, prediction: MemoryPrediction) -> tuple[int, str]:
    """The batch to look at, and where it comes from."""
    if request.batch is not None:
        return request.batch, "--batch"
    if request.policy_file is not None:
        return policy.micro_batch, "of the policy"
    if prediction.own_batch is not None:
        return prediction.own_batch, "BATCH_SIZE"
    return policy.micro_batch, "no BATCH_SIZE is stated"


def _prediction(
    request: PredictRequest, policy: Policy, hardware: Hardware, limit_bytes: int, tell: Callable[[str], None]
) -> MemoryPrediction:
    stands_for = None
    if request.profile is not None:
        assert hardware.compute_capability is not None, "a profile to predict for is one of a GPU"
        stands_for = CudaDevice(compute_capability=hardware.compute_capability)
    spec = TrialSpec(
        kind=TrialKind.PREDICT,
        workload=request.source,
        policy=policy,
        device=hardware.device if stands_for is None else "cpu",
        stands_for=stands_for,
        memory_limit_bytes=limit_bytes,
        seed=request.seed,
        at_own_batch=request.batch is None and request.policy_file is None,
        measure_seconds=_TIME_LIMIT_SECONDS,
        time_limit_seconds=_TIME_LIMIT_SECONDS,
    )

    def hear(event: RunnerEvent) -> None:
        if event.kind is RunnerEventKind.WORKER_STARTING:
            tell("starting")
        elif event.kind is RunnerEventKind.PROGRESS:
            tell(event.text)

    with tempfile.TemporaryDirectory(prefix="momadvise-predict-") as folder:
        with Runner(Path(folder), on_event=hear) as runner:
            result = runner.run(spec)
            printed = runner.tail_of_log(result.key)
    if result.prediction is None:
        raise _why_not(result, printed)
    return msgspec.structs.replace(
        result.prediction, notes=(*result.prediction.notes, *_new(result.notes, result.prediction.notes))
    )


def _new(notes: tuple[str, ...], known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(note for note in notes if note not in known)


def _why_not(result: TrialResult, printed: str) -> Exception:
    """What to raise for a trial without a prediction."""
    match result.outcome:
        case Outcome.OK:
            rule = "A prediction follows one step of the training on tensors without values"
            return NothingPredictedError(f"{rule}, but {result.reason}. {_MEASURE_IT}")
        case Outcome.FAILED:
            return WorkloadError(result.reason, result.traceback_text)
        case Outcome.REFUSED:
            return MethodRefusedError(result.reason)
    text = f"The model must be loaded and traced, but that ended as {result.outcome.value}: {result.reason}."
    return NothingPredictedError(text + (f"\nThe last lines that it printed:\n{printed}" if printed else ""))
