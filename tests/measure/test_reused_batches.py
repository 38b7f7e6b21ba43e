"""Batches that several steps are made on are given back as they were, whatever a loss writes to them."""

from __future__ import annotations

import torch

from advisor.measure.batches.reused import ReusedBatches


def masked(batch: dict[str, torch.Tensor]) -> None:
    """What a loss of masked tokens does to its batch."""
    batch["tokens"][:, ::2] = 103


def batch_of(samples: int) -> dict[str, torch.Tensor]:
    return {"tokens": torch.arange(6 * samples).reshape(samples, 6)}


def test_what_a_step_overwrites_is_put_back() -> None:
    reused, batch = ReusedBatches(), batch_of(4)
    reused.keep([batch])
    masked(batch)
    reused.restore()
    assert torch.equal(batch["tokens"], batch_of(4)["tokens"])


def test_so_is_a_smaller_batch_that_takes_turns_with_a_larger_one() -> None:
    """Trap: a ladder's smaller batch was masked anew in each of its turns, until nothing but masks was left."""
    reused, larger, smaller = ReusedBatches(), batch_of(8), batch_of(4)
    reused.keep([larger])
    reused.keep_too([smaller])
    for _ in range(3):
        for batch, samples in ((larger, 8), (smaller, 4)):
            masked(batch)
            reused.restore()
            assert torch.equal(batch["tokens"], batch_of(samples)["tokens"])


def test_batches_that_are_kept_anew_replace_those_before() -> None:
    reused, first, second = ReusedBatches(), batch_of(4), batch_of(4)
    reused.keep([first])
    reused.keep([second])
    masked(first)
    reused.restore()
    assert not torch.equal(first["tokens"], batch_of(4)["tokens"]), "nobody reads it any more"
