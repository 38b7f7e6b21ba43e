from __future__ import annotations

import random

import numpy
import torch

from advisor.measure.batches import make_batches, tokens_per_sample


def make_batch(size: int) -> dict[str, object]:
    return {"torch": torch.randn(size), "numpy": numpy.random.rand(), "python": random.random()}


def test_batches_are_distinct_and_the_same_every_time() -> None:
    first = make_batches(make_batch, 4, 2, seed=0)
    random.random()
    torch.randn(1)
    again = make_batches(make_batch, 4, 2, seed=0)
    for kind in ("torch", "numpy", "python"):
        assert str(first[0][kind]) == str(again[0][kind])
        assert str(first[1][kind]) == str(again[1][kind])
        assert str(first[0][kind]) != str(first[1][kind])


def test_another_seed_makes_other_batches() -> None:
    assert make_batches(make_batch, 4, 1, seed=0)[0]["python"] != make_batches(make_batch, 4, 1, seed=1)[0]["python"]


def test_tokens_of_a_sample() -> None:
    tokens = torch.zeros(4, 128, dtype=torch.long)
    assert tokens_per_sample({"attention_mask": torch.ones(4, 3), "input_ids": tokens}) == 128
    assert tokens_per_sample((tokens, tokens)) == 128
    assert tokens_per_sample({"pixel_values": torch.zeros(4, 3, 8, 8), "labels": tokens[:, 0]}) is None
    assert tokens_per_sample((torch.zeros(4, 16), tokens[:, 0])) is None
