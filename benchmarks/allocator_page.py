"""The page of ``benchmarks.allocator_prediction``: its cases, their errors, and the targets they are held to."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from advisor.methods.setting import MethodSetting, use

__all__ = ["AIMS", "BATCHES", "POLICIES", "Case", "errors_of", "page"]

BATCHES = (4, 12)
_WORST = 5
_SHOWN = 0.00005
"""Smaller errors are 0.00%."""
AIMS = {"allocated": (0.002, 0.02), "reserved": (0.005, 0.03)}
"""Targets for the median and the worst relative error, on the device and by ``--profile``."""

POLICIES: dict[str, tuple[MethodSetting, ...]] = {
    "plain": (),
    "bf16": (use("precision", dtype="bf16"),),
    "checkpoint": (use("checkpoint", every=1),),
    "selective": (use("selective_checkpoint", recompute="attention"),),
    "chunked loss": (use("chunked_cross_entropy", chunks=8),),
    "fused": (use("fused_optimizer"),),
    "bf16, 8-bit": (use("adam_8bit"), use("precision", dtype="bf16")),
    "expandable": (use("expandable_segments"),),
    "compression": (use("compress_activations", bits=4),),
}


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One model under one policy at one batch.

    Attributes:
        model: Name of the workload.
        policy: Name of the policy.
        batch: Samples.
        why_not: Why there are no values; empty if there are.
        allocated: Peak of allocated bytes in a timed trial.
        reserved: Peak of reserved bytes there.
        on_device: What is predicted on the device: ``(allocated, reserved)``.
        by_profile: What is predicted on a CPU.
        device: Where it was measured.
        versions: Package -> version.
    """

    model: str
    policy: str
    batch: int
    why_not: str = ""
    allocated: int = 0
    reserved: int = 0
    on_device: tuple[int, int] | None = None
    by_profile: tuple[int, int] | None = None
    device: str
    versions: dict[str, str]


def page(cases: Sequence[Case]) -> str:
    """The errors as a Markdown page."""
    first = cases[0]
    used = ", ".join(f"{package} {version}" for package, version in first.versions.items())
    parts = ["# Predicted memory against torch's allocator", _EXPLANATION, f"On {first.device}, with {used}."]
    for title, side in (("On the device", "on_device"), ("By `--profile`, on a CPU", "by_profile")):
        rows = []
        for label, members in _groups(cases):
            errors = [errors_of(case, side) for case in members if getattr(case, side) is not None]
            if errors:
                rows.append(
                    f"| {label} | {len(errors)} | {_cells([a for a, _ in errors])} | {_cells([r for _, r in errors])} |"
                )
        known = [case for case in cases if getattr(case, side) is not None]
        worst: list[str] = []
        for place, kind in enumerate(("allocated", "reserved")):
            found = ((errors_of(case, side)[place], case) for case in known)
            off = sorted((pair for pair in found if abs(pair[0]) >= _SHOWN), key=lambda pair: -abs(pair[0]))[:_WORST]
            named = "; ".join(f"{error:+.2%} {case.model}, {case.policy}, batch {case.batch}" for error, case in off)
            worst.append(f"Largest errors, {kind}: {named or 'none'}.")
        parts += [f"## {title}", "\n".join([*_HEAD, *rows]), *worst]
    if without := list(_without(cases)):
        parts += ["## Rows without a prediction", "\n".join(without)]
    return "\n\n".join(parts) + "\n"


_EXPLANATION = """\
`python -m benchmarks.allocator_prediction` compares what `momadvise predict` says with the peaks of timed trials, on
models that are not examples of this project. Allocated memory is what live blocks occupy, including the workspaces of
cuBLAS; reserved memory is what the allocator took from the device. An error is (predicted - measured) / measured; a
median is of magnitudes.

Workspaces inside kernels are derived from torch's source and computed from shapes, strides and types: partial results
of reductions, parts of gradients in attention, copies for convolutions and normalizations, and the sorted indices of an
embedding's gradient. Not predicted are the workspaces of cuDNN's plans and of cuBLASLt, which a software GPU does not
have either (so for convolutional networks they are missing on both sides), the indices sorted by an index put (five
times the indices), temporary storage of scans (a few KiB), and partial results of sums over more than 2 GiB, which
torch splits.

A prediction starts from a model that was moved to the device: parameters and buffers in the order of `Module.to`, in
segments of fixed size even where later segments expand, and nothing that the host did before.

`gpt2`, `convnext` and `swin` were added when all but four rules had been written. `convnext` and `swin` showed that
these four were missing: depthwise convolutions in channels-last format are cuDNN's; a roll over several dimensions
allocates for each; a linear layer on any contiguous input is one product that includes its bias; and the input gradient
of a layer normalization is contiguous. The rules follow torch's source; no number is fitted.

Every row was measured and predicted with the same rules. A model has at most 18 rows, nine policies at two batches; the
end of the page gives the reason for every missing one. Where a compressed step does not simply grow with the batch (the
coded chunks of some convolutional networks), reserved memory is not predicted.

The file of `roberta` expands its mask over positions. Whether a mask per token is expanded at all depends on its
values, and on a software GPU every mask holds."""

_HEAD = (
    "| | cases | allocated: median | lowest | highest | reserved: median | lowest | highest |",
    "|---|---|---|---|---|---|---|---|",
)


def _without(cases: Sequence[Case]) -> Iterator[str]:
    """A line for each model and policy that lacks a value at a batch, with the reason."""
    known = {(case.model, case.policy, case.batch): case.why_not for case in cases}
    for model, policy in itertools.product(dict.fromkeys(case.model for case in cases), POLICIES):
        reasons: dict[str, list[str]] = {}
        for batch in BATCHES:
            if why_not := known.get((model, policy, batch), "not measured"):
                reasons.setdefault(why_not, []).append(str(batch))
        for why_not, batches in reasons.items():
            yield f"- {model}, {policy}, batch {' and '.join(batches)}: {why_not}"


def _groups(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    keys: tuple[Callable[[Case], str], ...] = (lambda case: case.model, lambda case: case.policy)
    for key in keys:
        for name in dict.fromkeys(map(key, cases)):
            yield name, [case for case in cases if key(case) == name]
    yield "**all**", list(cases)


def errors_of(case: Case, side: str) -> tuple[float, float]:
    """Of allocated and of reserved memory, relative to what was measured."""
    allocated, reserved = getattr(case, side)
    return allocated / case.allocated - 1, reserved / case.reserved - 1


def _cells(errors: Sequence[float]) -> str:
    return f"{statistics.median(map(abs, errors)):.2%} | {min(errors):+.2%} | {max(errors):+.2%}"
