"""Batches made beforehand on the host, the same in every process: the seed belongs to the batch's index."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from advisor.errors import WorkloadError
from advisor.methods import batch as batch_trees

__all__ = ["make_batches", "pinned", "seed_everything", "share_of", "tokens_per_sample"]


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
) -> list[Any]:
    """Make ``count`` distinct batches.

    Args:
        make_batch: The workload's function.
        size: Samples in each.
        count: How many.
        seed: Batch ``i`` is made after seeding with ``seed * 1000 + i``.
        model_size: Further arguments of ``make_batch``.

    Raises:
        Exception: Whatever the user's function raises.
    """
    batches = []
    for index in range(count):
        seed_everything(seed * 1000 + index)
        batches.append(make_batch(size, **(model_size or {})))
    return batches


def share_of(batch: Any, rank: int, ranks: int, samples: int) -> Any:
    """One rank's share of a batch that every rank has made, so that together they train on what one process would.

    Args:
        batch: The global batch.
        rank: Whose share.
        ranks: How many share it equally.
        samples: Samples that were asked for.

    Returns:
        A copy, so that the rest of the batch need not be kept; the batch itself for a single rank.

    Raises:
        WorkloadError: The batch has another number of samples than was asked for.
    """
    assert samples % ranks == 0, f"{samples} samples cannot be shared equally by {ranks} ranks"
    if ranks == 1:
        return batch
    made = batch_trees.sample_count(batch)
    if made != samples:
        raise WorkloadError(
            f"make_batch must return as many samples as it is asked for where several devices share them, but for "
            f"{samples} it returned {made}; make dimension 0 of its tensors batch_size long"
        )
    return tree_map_only(torch.Tensor, torch.Tensor.clone, batch_trees.split(batch, samples // ranks)[rank])


def pinned(batch: Any, pin: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.pin_memory) -> Any:
    """The batch in page-locked memory, as a ``DataLoader`` with ``pin_memory=True`` hands it out.

    From pageable memory a copy to the device blocks the host, whatever ``non_blocking`` asks for.

    Args:
        batch: Mappings that are no ``dict`` become one, as when the batch is moved to the device.
        pin: Copies a tensor of the host into page-locked memory.
    """

    def on_host(tensor: torch.Tensor) -> torch.Tensor:
        return pin(tensor) if tensor.device.type == "cpu" and tensor.layout == torch.strided else tensor

    plain = dict(batch) if isinstance(batch, Mapping) and not isinstance(batch, dict) else batch
    return tree_map_only(torch.Tensor, on_host, plain)


def tokens_per_sample(batch: Any) -> int | None:
    """Tokens of one sample: the length of ``input_ids``, else of the first integer matrix; else ``None``."""
    if isinstance(batch, Mapping) and isinstance(batch.get("input_ids"), torch.Tensor):
        identifiers = batch["input_ids"]
        return int(identifiers.shape[-1]) if identifiers.dim() == 2 else None
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and not leaf.is_floating_point() and leaf.shape[1] > 1:
            return int(leaf.shape[1])
    return None
