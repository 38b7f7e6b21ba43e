"""The policy file: a policy, the evidence for it, and where it was measured, as YAML with a schema version."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import msgspec
import yaml

from advisor.errors import MethodRefusedError, OptionError, PolicyError
from advisor.files import write_whole
from advisor.hardware.mesh import Mesh
from advisor.methods.compose import validate_setting
from advisor.methods.setting import MethodSetting, ParameterValue
from advisor.policy.fingerprints import Fingerprints
from advisor.policy.policy import Policy
from advisor.text.paths import path_of
from advisor.text.printable import quoted, shown
from advisor.text.ranges import whole
from advisor.text.yaml_file import read_yaml, why_invalid
from advisor.workload.batch_layout import SampleDims
from advisor.workload.identity import Identity, ModelIdentity
from advisor.workload.reduction import Reduction

__all__ = [
    "SCHEMA",
    "ComparisonEvidence",
    "CostEvidence",
    "Evidence",
    "PolicyFile",
    "load_policy_file",
    "policy_line",
    "policy_source",
    "write_policy_file",
]

SCHEMA = 1
"""Version of the file's layout. Files of another version are refused."""


class CostEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an iteration costs, and at which price.

    Attributes:
        latency_seconds: Median time of an iteration.
        usd_per_iteration: Price x devices x time.
        gpu_count: Devices that train together.
        usd_per_hour: Price of an hour of one device.
        price_source: Where the price comes from.
        price_date: Date of the price, as its source states it.
        joules_per_iteration: Energy of all devices, where it was measured.
    """

    latency_seconds: float
    usd_per_iteration: float
    gpu_count: int
    usd_per_hour: float
    price_source: str
    price_date: str
    joules_per_iteration: float | None = None


class ComparisonEvidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A policy's training compared with the reference run: same seed, same batches.

    Attributes:
        steps: Steps of both.
        loss_drift: Largest difference of the smoothed loss curves, relative.
        final_loss_ratio: Mean of the last losses relative to the reference run's.
        learned: How far the reference run's own loss fell.
        gradient_error: Relative L2 error of the first gradient, if it could be compared.
        gradient_cosine: Cosine of the angle between the two gradients.
        reference: The policy of the reference run.
        observed_fidelity: The best class whose tolerances these values meet.
    """

    steps: int
    loss_drift: float
    final_loss_ratio: float
    learned: float
    gradient_error: float | None = None
    gradient_cosine: float | None = None
    reference: str
    observed_fidelity: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why this policy was chosen: measured values only.

    Attributes:
        goal: The goal it was chosen for.
        date: Date of the measurement, ISO format.
        samples_per_second: Throughput measured by the search.
        relative_spread: Half the width of its 95 % confidence interval, relative.
        peak_bytes: Peak device memory (reserved on CUDA, live tensor storage on CPU).
        memory_limit_bytes: The limit that it had to stay below.
        fidelity: How far training may differ from plain training.
        loss_drift: Largest relative difference of the first losses from plain training, when measured.
        comparison: Its comparison with the reference run, when measured.
        not_compared: Why there is no comparison.
        speedup_over_baseline: Samples per second over the baseline's, from turns in fresh processes, and the ends of
            its 95 % interval: value, low, high.
        baseline_samples_per_second: Plain training at the user's own batch.
        baseline_batch: That batch.
        confirmed_samples_per_second: Throughput of the emitted wrapper in a fresh process, when it was run.
        confirmed_peak_bytes: Its peak.
        tie: Whether the gain over the baseline is inside the noise.
        trials: Policies that were measured.
        cost: What an iteration costs, when that was the goal.
        why: The reasons, in sentences.
        model_size: ``bigger``: the arguments of ``build_model`` and ``make_batch`` that it was measured with.
        parameter_count: ``bigger``: parameters of the model at that size.
        floor_samples_per_second: ``bigger``: the throughput that it had to keep.
    """

    goal: str
    date: str
    samples_per_second: float
    relative_spread: float
    peak_bytes: int
    memory_limit_bytes: int
    fidelity: str
    loss_drift: float | None = None
    comparison: ComparisonEvidence | None = None
    not_compared: str | None = None
    speedup_over_baseline: tuple[float, float, float] | None = None
    baseline_samples_per_second: float | None = None
    baseline_batch: int | None = None
    confirmed_samples_per_second: float | None = None
    confirmed_peak_bytes: int | None = None
    tie: bool
    trials: int
    cost: CostEvidence | None = None
    why: list[str]
    model_size: dict[str, int | float] | None = None
    parameter_count: int | None = None
    floor_samples_per_second: float | None = None


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its evidence and fingerprints; both are absent in a file written by hand.

    Attributes:
        policy: The policy.
        baseline: What the evidence compares it with, if not with plain training.
        sample_dims: Where a batch has its samples, if not in the default place.
        reduction: How the loss of a batch follows from those of its micro-batches, if not as by default.
        evidence: Why it was chosen.
        fingerprints: What the evidence is valid for.
    """

    policy: Policy
    baseline: Policy | None = None
    sample_dims: SampleDims | None = None
    reduction: Reduction | None = None
    evidence: Evidence | None = None
    fingerprints: Fingerprints | None = None


class _MeshOnDisk(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    tensor: int = 1
    pipeline: int = 1


class _PolicyOnDisk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The policy as people read and write it: methods as a mapping."""

    methods: dict[str, dict[str, ParameterValue]] = {}
    micro_batch: int
    accumulation_steps: int = 1
    gpu_count: int = 1
    mesh: _MeshOnDisk = _MeshOnDisk()
    settled: dict[str, str] = {}


class _FileOnDisk(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, rename={"schema_version": "schema"}):
    schema_version: int
    policy: _PolicyOnDisk
    baseline: _PolicyOnDisk | None = None
    sample_dims: SampleDims | None = None
    reduction: Reduction | None = None
    evidence: Evidence | None = None
    fingerprints: Fingerprints | None = None


_FIELDS: dict[str, tuple[str, ...]] = {
    "$": ("schema", "policy", "baseline", "sample_dims", "reduction", "evidence", "fingerprints"),
    "$.reduction": Reduction.__struct_fields__,
    "$.policy": _PolicyOnDisk.__struct_fields__,
    "$.policy.mesh": _MeshOnDisk.__struct_fields__,
    "$.baseline": _PolicyOnDisk.__struct_fields__,
    "$.baseline.mesh": _MeshOnDisk.__struct_fields__,
    "$.evidence": Evidence.__struct_fields__,
    "$.evidence.comparison": ComparisonEvidence.__struct_fields__,
    "$.evidence.cost": CostEvidence.__struct_fields__,
    "$.fingerprints": Fingerprints.__struct_fields__,
    "$.fingerprints.identity": Identity.__struct_fields__,
    "$.fingerprints.identity.model": ModelIdentity.__struct_fields__,
}


def load_policy_file(path: str | os.PathLike[str]) -> PolicyFile:
    """Read and validate a policy file.

    Raises:
        PolicyError: Not there, not YAML, another schema version, an unknown field, method, parameter or value.
    """
    path = path_of(path, "A policy file", PolicyError)
    raw = read_yaml(path, what="A policy file", error=PolicyError)
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise PolicyError(
            f"A policy file must have `schema: {SCHEMA}` at its top, but {shown(path)} has {quoted(found)}. "
            "Tune again with this version of momadvise to get a file it understands."
        )
    try:
        on_disk = msgspec.convert(raw, _FileOnDisk)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{shown(path)}: {_explained(why_invalid(error, raw))}") from None
    return PolicyFile(
        policy=_policy(on_disk.policy, path),
        baseline=None if on_disk.baseline is None else _policy(on_disk.baseline, path),
        sample_dims=on_disk.sample_dims,
        reduction=on_disk.reduction,
        evidence=on_disk.evidence,
        fingerprints=on_disk.fingerprints,
    )


def _policy(on_disk: _PolicyOnDisk, path: Path) -> Policy:
    counts = {field: getattr(on_disk, field) for field in ("micro_batch", "accumulation_steps", "gpu_count")}
    degrees = msgspec.structs.asdict(on_disk.mesh)
    for field, value in (counts | {f"mesh.{axis}": degree for axis, degree in degrees.items()}).items():
        try:
            whole(value, field)
        except OptionError as error:
            raise PolicyError(f"{shown(path)}: {error}") from None
    mesh = Mesh(**degrees)
    if on_disk.gpu_count % mesh.model_degree:
        raise PolicyError(
            f"{shown(path)}: the degrees of a mesh must divide gpu_count, but a mesh of tensor {mesh.tensor} and "
            f"pipeline {mesh.pipeline} needs a multiple of {mesh.model_degree} GPUs, and gpu_count is "
            f"{on_disk.gpu_count}; the rest of the GPUs divide the batch."
        )
    settings = tuple(MethodSetting(name=name, parameters=values) for name, values in sorted(on_disk.methods.items()))
    if strangers := sorted(set(on_disk.settled) - set(on_disk.methods)):
        raise PolicyError(
            f"{shown(path)}: settled must name methods of the policy, but {shown(strangers[0])} is none of them; "
            "add the method or leave that line out."
        )
    try:
        for setting in settings:
            validate_setting(setting)
    except MethodRefusedError as error:
        raise PolicyError(f"{shown(path)}: {error}") from None
    return Policy(
        methods=settings,
        micro_batch=on_disk.micro_batch,
        accumulation_steps=on_disk.accumulation_steps,
        gpu_count=on_disk.gpu_count,
        mesh=mesh,
        settled=on_disk.settled,
    )


def _explained(message: str) -> str:
    """Append the valid field names to msgspec's message about an unknown one."""
    if "unknown field" not in message:
        return message
    where = message.rsplit("`", 2)[-2] if " - at `" in message else "$"
    valid = _FIELDS.get(where)
    return f"{message}. The fields there are: {', '.join(valid)}." if valid else message


def policy_source(file: PolicyFile, *, header: str) -> str:
    """The text of a policy file.

    Args:
        file: What it says.
        header: Comment lines for people (without the leading ``#``).
    """
    comment = "".join(f"# {line}".rstrip() + "\n" for line in header.splitlines())
    return comment + yaml.safe_dump(_document(file), sort_keys=False, allow_unicode=True, width=110)


def policy_line(file: PolicyFile) -> str:
    """The text of a policy file on one line, for a command that passes it on; without what is not known."""
    document = _document(file)
    if "evidence" in document:
        document["evidence"] = {name: value for name, value in document["evidence"].items() if value is not None}
    line = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf)
    return line.removesuffix("\n")


def _document(file: PolicyFile) -> dict[str, Any]:
    document: dict[str, Any] = {"schema": SCHEMA, "policy": _written(file.policy)}
    if file.baseline is not None:
        document["baseline"] = _written(file.baseline)
    if file.sample_dims is not None:
        document["sample_dims"] = dict(file.sample_dims)
    if file.reduction is not None:
        document["reduction"] = {"kind": file.reduction.kind, **msgspec.to_builtins(file.reduction)}
    if file.evidence is not None:
        document["evidence"] = msgspec.to_builtins(file.evidence)
    if file.fingerprints is not None:
        document["fingerprints"] = msgspec.to_builtins(file.fingerprints)
    return document


def _written(policy: Policy) -> dict[str, Any]:
    """A policy as people read it."""
    written: dict[str, Any] = {
        "methods": {setting.name: dict(setting.parameters) for setting in policy.methods},
        "micro_batch": policy.micro_batch,
        "accumulation_steps": policy.accumulation_steps,
        "gpu_count": policy.gpu_count,
    }
    if policy.mesh is not msgspec.UNSET:
        written["mesh"] = msgspec.to_builtins(policy.mesh)
    if policy.settled:
        written["settled"] = dict(policy.settled)
    return written


def write_policy_file(file: PolicyFile, path: Path, *, header: str) -> None:
    """Write a policy file: a reader sees the old file or the new one, never half of one."""
    write_whole(path, policy_source(file, header=header))
