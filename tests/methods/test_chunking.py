"""Long tensors are worked on in chunks, which are heard to begin and to end."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.methods.activations._float8_code import Float8Coder
from advisor.methods.activations._group_code import encode_groups
from advisor.training.chunking import chunks, telling_of_chunks


@pytest.mark.parametrize(("length", "values_each"), [(1, 1), (100, 1), (1000, 8), (3, 5000)])
def test_chunks_cover_everything_once(length: int, values_each: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.training.chunking._ON_CPU", 64)
    cuts = list(chunks(torch.empty(0), length, values_each))
    assert [place for cut in cuts for place in range(cut.start, cut.stop)] == list(range(length))
    assert all((cut.stop - cut.start) * values_each <= max(64, values_each) for cut in cuts)


def test_of_a_fake_tensor_the_first_chunk_says_all() -> None:
    with FakeTensorMode():
        assert list(chunks(torch.empty(0), 2**20)) == [slice(0, 2**15)]


def test_an_accelerator_gets_larger_chunks() -> None:
    with FakeTensorMode():
        (cut,) = chunks(torch.empty(0, device="cuda"), 2**30)
    assert cut == slice(0, 2**22)


@pytest.mark.parametrize("code", ["groups", "float8"])
def test_coding_begins_and_ends_once_whatever_its_size(code: str) -> None:
    heard: list[bool] = []
    flat = torch.zeros(2**17)
    with telling_of_chunks(heard.append):
        encode_groups(flat, bits=4, seed=1) if code == "groups" else Float8Coder(torch.float8_e4m3fn).encode(flat)
    assert heard == [True, False]
    encode_groups(flat, bits=4, seed=1)
    assert len(heard) == 2, "nobody listens any more"
