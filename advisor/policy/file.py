"""The policy file: a policy, the evidence for it, and where it was measured, as YAML with a schema version."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import yaml

from advisor.errors import MethodRefusedError, OptionError, PolicyError
from advisor.files import write_whole
from advisor.hardware.mesh import Mesh
from advisor.methods.compose import validate_setting
from advisor.methods.setting import MethodSetting, ParameterValue
from advisor.policy.evidence import ComparisonEvidence, CostEvidence, Evidence
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
    "policy_document",
    "policy_from",
    "policy_line",
    "policy_source",
    "write_policy_file",
]

SCHEMA = 1
"""Version of the file's layout. Files of another version are refused."""

_END = "..."
"""YAML's mark of the end of a document."""
_SAYS_ITS_END = "# The last line is three dots: a file without them was cut off."


class PolicyFile(msgspec.Struct, frozen=True, kw_only=True):
    """A policy with its evidence and fingerprints; both are absent in a file written by hand.

    Attributes:
        policy: The policy.
        baseline: What the evidence compares it with, if not with plain training.
        sample_dims: Where a batch has its samples, if not in the default place.
        reduction: How the loss of a batch follows from those of its micro-batches, if not as by default.
        model_size: Arguments of ``build_model`` and ``make_batch`` that it is for, where no evidence says them.
        evidence: Why it was chosen.
        fingerprints: What the evidence is valid for.
    """

    policy: Policy
    baseline: Policy | None = None
    sample_dims: SampleDims | None = None
    reduction: Reduction | None = None
    model_size: dict[str, int | float] | None = None
    evidence: Evidence | None = None
    fingerprints: Fingerprints | None = None

    @property
    def size(self) -> dict[str, int | float]:
        """The size of the model that it is for; empty for the model as it is."""
        measured_at = None if self.evidence is None else self.evidence.model_size
        return measured_at or self.model_size or {}


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
    model_size: dict[str, int | float] | None = None
    evidence: Evidence | None = None
    fingerprints: Fingerprints | None = None


_FIELDS: dict[str, tuple[str, ...]] = {
    "$": ("schema", "policy", "baseline", "sample_dims", "reduction", "model_size", "evidence", "fingerprints"),
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
        PolicyError: Not there, not YAML, cut off, another schema version, an unknown field, method, parameter or value.
    """
    path = path_of(path, "A policy file", PolicyError)
    written = "A search writes one: momadvise --goal faster MODEL."

    def check(text: str) -> None:
        _require_whole(text, shown(path))

    content = read_yaml(path, what="A policy file", error=PolicyError, missing=written, check=check)
    return policy_from(content, shown(path))


def _require_whole(text: str, origin: str) -> None:
    """Refuse a file that was cut off, which is often valid YAML: what is missing would be taken for a default.

    Raises:
        PolicyError: It says how it ends, and ends otherwise.
    """
    lines = [line.rstrip() for line in text.splitlines()]
    if _SAYS_ITS_END not in lines:
        return  # Written by hand, or by an older version.
    said = [number for number, line in enumerate(lines, start=1) if line and not line.lstrip().startswith("#")]
    ends = [number for number, line in enumerate(lines, start=1) if line.partition(" #")[0].rstrip() == _END]
    if ends and ends[0] == said[-1]:
        return
    if ends:
        after = next(number for number in said if number > ends[0])
        raise PolicyError(
            f"A policy file must end with a line of three dots, but {origin} goes on after it in line {after}. Move "
            "what stands there above the dots."
        )
    parts = [found[1] for line in lines if (found := re.match(r"(\w+):", line))]
    later = [name for name in ("evidence", "fingerprints") if name not in parts]
    missing = f"the end of {parts[-1]}" if parts else "all of its content"
    raise PolicyError(
        f"A policy file must be whole, but {origin} is damaged: it was cut off after line {len(lines)}, so that "
        f"{' and '.join([missing, *later])} {'are' if later else 'is'} missing. Copy it again from the output folder "
        "of its search, get it back from version control (git checkout -- FILE), or tune again: momadvise --goal "
        "faster MODEL. If it is whole, and only a formatter left out the three dots of its last line, write them there."
    )


def policy_from(raw: Any, origin: str) -> PolicyFile:
    """Validate the content of a policy file.

    Args:
        raw: What its YAML says.
        origin: Where that was read, for errors.

    Raises:
        PolicyError: As for :func:`load_policy_file`.
    """
    found = raw.get("schema") if isinstance(raw, dict) else None
    if found != SCHEMA:
        raise PolicyError(
            f"A policy file must have `schema: {SCHEMA}` at its top, but {origin} has {quoted(found)}. "
            "Tune again with this version of momadvise to get a file it understands."
        )
    try:
        on_disk = msgspec.convert(raw, _FileOnDisk)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{origin}: {_explained(why_invalid(error, raw))}") from None
    return PolicyFile(
        policy=_policy(on_disk.policy, origin),
        baseline=None if on_disk.baseline is None else _policy(on_disk.baseline, origin),
        sample_dims=on_disk.sample_dims,
        reduction=on_disk.reduction,
        model_size=on_disk.model_size,
        evidence=on_disk.evidence,
        fingerprints=on_disk.fingerprints,
    )


def _policy(on_disk: _PolicyOnDisk, origin: str) -> Policy:
    counts = {field: getattr(on_disk, field) for field in ("micro_batch", "accumulation_steps", "gpu_count")}
    degrees = msgspec.structs.asdict(on_disk.mesh)
    for field, value in (counts | {f"mesh.{axis}": degree for axis, degree in degrees.items()}).items():
        try:
            whole(value, field)
        except OptionError as error:
            raise PolicyError(f"{origin}: {error}") from None
    mesh = Mesh(**degrees)
    if on_disk.gpu_count % mesh.model_degree:
        raise PolicyError(
            f"{origin}: the degrees of a mesh must divide gpu_count, but a mesh of tensor {mesh.tensor} and "
            f"pipeline {mesh.pipeline} needs a multiple of {mesh.model_degree} GPUs, and gpu_count is "
            f"{on_disk.gpu_count}; the rest of the GPUs divide the batch."
        )
    settings = tuple(MethodSetting(name=name, parameters=values) for name, values in sorted(on_disk.methods.items()))
    if strangers := sorted(set(on_disk.settled) - set(on_disk.methods)):
        raise PolicyError(
            f"{origin}: settled must name methods of the policy, but {shown(strangers[0])} is none of them; "
            "add the method or leave that line out."
        )
    try:
        for setting in settings:
            validate_setting(setting)
    except MethodRefusedError as error:
        raise PolicyError(f"{origin}: {error}") from None
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
    content = yaml.safe_dump(policy_document(file), sort_keys=False, allow_unicode=True, width=110)
    return f"{comment}{_SAYS_ITS_END}\n{content}{_END}\n"


def policy_line(file: PolicyFile) -> str:
    """The text of a policy file on one line, for a command that passes it on; without what is not known."""
    document = policy_document(file)
    if "evidence" in document:
        document["evidence"] = {name: value for name, value in document["evidence"].items() if value is not None}
    line = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=True, width=math.inf)
    return line.removesuffix("\n")


def policy_document(file: PolicyFile) -> dict[str, Any]:
    """What its YAML says."""
    document: dict[str, Any] = {"schema": SCHEMA, "policy": _written(file.policy)}
    if file.baseline is not None:
        document["baseline"] = _written(file.baseline)
    if file.sample_dims is not None:
        document["sample_dims"] = dict(file.sample_dims)
    if file.reduction is not None:
        document["reduction"] = {"kind": file.reduction.kind, **msgspec.to_builtins(file.reduction)}
    if file.model_size:
        document["model_size"] = dict(file.model_size)
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
