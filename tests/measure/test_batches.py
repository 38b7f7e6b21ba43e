from __future__ import annotations

import random
from collections import UserDict

import numpy
import pytest
import torch

from advisor.errors import WorkloadError
from advisor.measure.batches.batches import make_batches, pinned, share_of, tokens_per_sample


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


def test_every_tensor_of_a_batch_is_pinned_and_nothing_else_changes() -> None:
    copies: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        copies.append(tensor.clone())
        return copies[-1]

    images, labels = torch.randn(4, 3), torch.arange(4)
    batch = pinned({"images": images, "more": (labels, "name", 7)}, pin)
    assert [id(batch["images"]), id(batch["more"][0])] == [id(copy) for copy in copies]
    assert torch.equal(batch["images"], images)
    assert batch["more"][1:] == ("name", 7)
    tokenized = pinned(UserDict({"input_ids": labels}), pin)
    assert tokenized["input_ids"] is copies[-1]


def test_what_is_not_on_the_host_cannot_be_pinned() -> None:
    elsewhere = torch.empty(2, device="meta")
    assert pinned([elsewhere], lambda tensor: torch.zeros(1))[0] is elsewhere


def test_tokens_of_a_sample() -> None:
    tokens = torch.zeros(4, 128, dtype=torch.long)
    assert tokens_per_sample({"attention_mask": torch.ones(4, 3), "input_ids": tokens}) == 128
    assert tokens_per_sample((tokens, tokens)) == 128
    assert tokens_per_sample({"pixel_values": torch.zeros(4, 3, 8, 8), "labels": tokens[:, 0]}) is None
    assert tokens_per_sample((torch.zeros(4, 16), tokens[:, 0])) is None


def test_sizes_are_arguments_of_the_workloads_function() -> None:
    made = make_batches(lambda size, length: torch.zeros(size, length), 4, 1, seed=0, model_size={"length": 7})
    assert made[0].shape == (4, 7)


def test_ranks_together_have_exactly_the_batch_of_one_process() -> None:
    batch = {"x": torch.randn(6, 3), "more": (torch.arange(6), "name"), "scale": torch.tensor(2.0)}
    shares = [share_of(batch, rank, 3, 6) for rank in range(3)]
    assert torch.equal(torch.cat([share["x"] for share in shares]), batch["x"])
    assert torch.equal(torch.cat([share["more"][0] for share in shares]), torch.arange(6))
    assert all(share["more"][1] == "name" and share["scale"] == 2.0 for share in shares)
    assert all(share["x"].untyped_storage().nbytes() == 2 * 3 * 4 for share in shares)  # nothing of the others is kept


def test_the_batch_of_a_single_rank_is_its_own_and_may_be_anything() -> None:
    batch = object()
    assert share_of(batch, 0, 1, 5) is batch


def test_a_batch_that_cannot_be_cut_cannot_be_shared() -> None:
    with pytest.raises(WorkloadError, match="2 devices must share a batch of 8 samples"):
        share_of(torch.zeros(16, 2), 0, 2, 8, {"": "uncut"})


def test_time_may_come_first() -> None:
    tokens = torch.arange(12).reshape(3, 4)
    assert torch.equal(share_of(tokens, 1, 2, 4, {"": 1}), tokens[:, 2:])
    assert tokens_per_sample(tokens, {"": 1}) == 3
