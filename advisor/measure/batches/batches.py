"""Batches made beforehand on the host, the same in every process: the seed belongs to the batch's index."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

from advisor.errors import WorkloadError
from advisor.training.batch import tree as batch_trees
from advisor.workload.batch_layout import SampleDims

__all__ = ["make_batches", "make_one", "pinned", "seed_everything", "share_of", "tokens_per_sample"]


def seed_everything(seed: int) -> None:
    """Seed the generators that a user's code draws from: ``random``, torch, and numpy if it is loaded."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    if torch.version.cuda is not None or torch.version.hip is not None:
        torch.manual_seed(seed)
    else:  # without the list of stack traces that it makes longer with every call, for GPUs that will never be there
        torch.default_generator.manual_seed(seed)


def make_batches(
    make_batch: Callable[..., Any],
    size: int,
    count: int,
    seed: int,
    model_size: Mapping[str, int | float] | None = None,
    *,
    first: int = 0,
) -> list[Any]:
    """Make ``count`` distinct batches of ``size`` samples, numbered from ``first`` on.

    Batch ``i`` is made after seeding with ``seed * 1000 + i``. What the user's function raises is raised.
    """
    batches = []
    for index in range(first, first + count):
        seed_everything(seed * 1000 + index)
        batches.append(make_batch(size, **(model_size or {})))
    return batches


def make_one(make_batch: Callable[[int], Any], size: int, seed: int, number: int = 0) -> Any:
    """Batch ``number``, alone."""
    return make_batches(make_batch, size, 1, seed, first=number)[0]


def share_of(batch: Any, rank: int, ranks: int, samples: int, dims: SampleDims | None = None) -> Any:
    """One rank's share of a batch that every rank has made, so that together they train on what one process would.

    It is a copy, so that the rest can be freed; for a single rank it is the batch itself.

    Raises:
        WorkloadError: The batch cannot be cut.
    """
    assert samples % ranks == 0, f"{samples} samples cannot be shared equally by {ranks} ranks"
    if ranks == 1:
        return batch
    shares = batch_trees.split(batch, samples // ranks, dims)
    if len(shares) != ranks:
        raise WorkloadError(
            f"{ranks} devices must share a batch of {samples} samples, but no part of it has an entry of its own for "
            "each sample; train on one device"
        )
    return batch_trees.map_tensors(shares[rank], torch.Tensor.clone)


def pinned(batch: Any, pin: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.pin_memory) -> Any:
    """The batch in page-locked memory, as a ``DataLoader`` with ``pin_memory=True`` hands it out.

    From pageable memory a copy to the device blocks the host, whatever ``non_blocking`` asks for. Mappings that are no
    ``dict`` become one, as when the batch is moved to the device.
    """

    def on_host(tensor: torch.Tensor) -> torch.Tensor:
        return pin(tensor) if tensor.device.type == "cpu" and tensor.layout == torch.strided else tensor

    return batch_trees.map_tensors(batch, on_host)


def tokens_per_sample(batch: Any, dims: SampleDims | None = None) -> int | None:
    """Tokens of one sample: the length of ``input_ids``, else of the first integer matrix; else ``None``."""
    matrices = {
        leaf.path: leaf.shape[1 - dim]
        for leaf in batch_trees.leaves_of(batch)
        if isinstance(leaf.value, torch.Tensor)
        and not leaf.value.is_floating_point()
        and leaf.shape is not None
        and len(leaf.shape) == 2
        and isinstance(dim := 0 if dims is None else dims.get(leaf.path), int)
    }
    if "input_ids" in matrices:
        return matrices["input_ids"]
    return next((tokens for tokens in matrices.values() if tokens > 1), None)
