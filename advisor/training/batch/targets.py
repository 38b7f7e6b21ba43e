"""Count what the loss of a micro-batch averages over, from the batch alone, before anything is computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from advisor.errors import WorkloadError
from advisor.training.batch.tree import IGNORED_TARGET, leaves_of, sample_count
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import THE_BATCH, Reduction

__all__ = ["count_labels", "count_targets", "matches"]


def count_labels(batch: Any, *, causal: bool) -> int | None:
    """The targets among the integer ``labels`` of a batch that a token-level loss averages over; ``None`` without any.

    Labels have at least two dimensions. Where the loss is ``causal``, the first label of a sample is never a target.
    """
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if not isinstance(labels, torch.Tensor) or labels.dim() < 2 or labels.is_floating_point():
        return None
    if causal:
        labels = labels[..., 1:]
    if isinstance(labels, FakeTensor):
        return labels.numel()  # A trace has no values: count each as a target.
    return int((labels != IGNORED_TARGET).sum())


def count_targets(batch: Any, reduction: Reduction, dims: SampleDims | None = None) -> float:
    """The number of targets that the loss averages over.

    Raises:
        WorkloadError: The batch lacks the part that holds the targets.
    """
    if not reduction.targets:
        return float(sample_count(batch, dims))
    parts = [leaf for leaf in leaves_of(batch) if matches(leaf.path or THE_BATCH, reduction.targets)]
    counts = [
        _counted(part.value, reduction, (dims or {}).get(part.path))
        for part in parts
        if isinstance(part.value, torch.Tensor) or reduction.counted == "values"
    ]
    if counts or "*" in reduction.targets:  # a micro-batch may have no boxes
        return float(sum(counts))
    raise WorkloadError(
        f"the loss is a mean over the targets in {reduction.targets!r} of a batch, but this batch has no tensor there; "
        "give batches as make_batch makes them, or pass count_targets"
    )


def matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern."""
    if "*" not in pattern:
        return path == pattern
    return re.fullmatch(re.escape(pattern).replace(r"\*", r"\d+"), path) is not None


def _counted(part: Any, reduction: Reduction, dim: Any = None) -> float:
    """The targets of one part; shifted ones along its last dimension, or its first if the last holds the samples."""
    if reduction.counted == "values":
        # Of each length, the first entry is no target where the next one is predicted.
        values = torch.as_tensor(part).detach().double() - (1.0 if reduction.shifted else 0.0)
        return float(values.numel()) if isinstance(part, FakeTensor) else float(values.sum())
    if reduction.counted == "rows":
        return float(part.size(0) if part.dim() else 1)
    targets = part
    if reduction.shifted:
        targets = part[1:] if dim == part.dim() - 1 else part[..., 1:]
    if isinstance(targets, FakeTensor):
        return float(targets.numel())
    if not reduction.class_weights:
        return float((targets != reduction.ignore_index).sum())
    classes = targets[targets != reduction.ignore_index].flatten().long()
    weights = torch.tensor(reduction.class_weights, dtype=torch.float64, device=classes.device)
    if classes.numel() and not 0 <= int(classes.min()) <= int(classes.max()) < len(weights):
        raise WorkloadError(
            f"a target must be one of the {len(weights)} classes whose weights the loss averages by, or "
            f"{reduction.ignore_index}, but {reduction.targets!r} holds {int(classes.min())} to {int(classes.max())}; "
            "tune again if the classes have changed"
        )
    return float(weights[classes].sum())
