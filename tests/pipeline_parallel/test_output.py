"""What a model returns in the last stage is told to the others as data: nothing of it is run to be read."""

from __future__ import annotations

import io
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers.modeling_outputs import CausalLMOutput

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._output import told_output


class Wire:
    """The rank of the last stage, or another that hears it: what is said is read as data alone."""

    owners = (0, 1)

    def __init__(self, rank: int, content: bytes = b"") -> None:
        self.rank = rank
        self.content = content

    def told(self, value: Any, *, by: int) -> Any:
        if self.rank != by:
            return torch.load(io.BytesIO(self.content), weights_only=True)
        written = io.BytesIO()
        torch.save(value, written)
        self.content = written.getvalue()
        return value


def heard(output: Any) -> Any:
    last = Wire(1)
    assert told_output(output, last) is output  # type: ignore[arg-type]
    return told_output(None, Wire(0, last.content))  # type: ignore[arg-type]


@dataclass
class Scores:
    scores: torch.Tensor


Pair = namedtuple("Pair", "first second")


def test_containers_of_tensors_and_numbers_arrive_as_they_are() -> None:
    found = heard({"a": [torch.arange(3), 2.5, None], "b": (True, "text")})
    assert torch.equal(found["a"][0], torch.arange(3))
    assert found["a"][1:] == [2.5, None]
    assert found["b"] == (True, "text")


def test_an_output_of_transformers_keeps_its_class_and_names() -> None:
    found = heard(CausalLMOutput(loss=torch.tensor(1.0), logits=torch.ones(2, 3)))
    assert isinstance(found, CausalLMOutput)
    assert float(found.loss) == 1.0
    assert found.logits.shape == (2, 3)


@pytest.mark.parametrize("output", [Scores(torch.ones(2)), Pair(1, 2)], ids=["dataclass", "namedtuple"])
def test_what_could_only_be_pickled_is_refused_where_it_is_used(output: Any) -> None:
    found = heard({"kept": torch.ones(2), "other": output})
    assert found["kept"].sum() == 2
    with pytest.raises(MethodRefusedError, match=rf"here is a {type(output).__name__}.*return it in a dict"):
        _ = found["other"].scores
    with pytest.raises(MethodRefusedError, match="which only the last stage has"):
        _ = found["other"][0]
