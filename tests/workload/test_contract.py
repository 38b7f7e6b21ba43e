"""A function of the contract that does not take the arguments it is called with is refused before anything runs."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from advisor.errors import WorkloadError
from advisor.workload.contract import check_arguments
from advisor.workload.source import resolve_source

REST = "def build_model(): ...\ndef make_batch(batch_size): ...\n"


def resolved(folder: Path, text: str) -> None:
    path = folder / "m.py"
    path.write_text(text)
    resolve_source(path)


@pytest.mark.parametrize(
    ("wrong", "call"),
    [
        ("build_model(config)", "build_model()"),
        ("make_batch()", "make_batch(batch_size)"),
        ("make_batch(batch_size, length)", "make_batch(batch_size)"),
        ("compute_loss(batch)", "compute_loss(model, batch)"),
        ("compute_loss(batch, model)", "compute_loss(model, batch)"),
        ("compute_loss(model, batch, targets)", "compute_loss(model, batch)"),
        ("build_optimizer()", "build_optimizer(params)"),
        ("build_optimizer(params, lr)", "build_optimizer(params)"),
        ("count_targets(model, batch)", "count_targets(batch)"),
        ("linear_head(model)", "linear_head(model, batch)"),
    ],
)
def test_the_message_shows_the_call_and_the_definition(tmp_path: Path, wrong: str, call: str) -> None:
    with pytest.raises(WorkloadError, match="must accept the call") as caught:
        resolved(tmp_path, f"{REST.replace(f'def {call}: ...', '')}def {wrong}: ...\n")
    said = f"the call {call}, but in {tmp_path / 'm.py'} it is defined as {wrong}. Write def {call}"
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "right",
    [
        "def compute_loss(net, samples, model=None): ...",
        "def compute_loss(model, batch, /, *, weight=1.0): ...",
        "def compute_loss(*args, **kwargs): ...",
        "def make_batch(size, *, length=8): ...",
        "@configured\ndef build_model(config): ...",  # the decorator gives it
        "try:\n    from other import build_model\nexcept ImportError:\n    def build_model(config): ...",
        "def build_model(config): ...\nbuild_model = configured(build_model)",
        "if True:\n    def build_model(config): ...\nelse:\n    def build_model(): ...",
        "def compute_loss(model, model): ...",  # importing it says what is wrong
        "from other import *\nif False:\n    def build_model(config): ...",
        "def helper(): ...\ndef loss(batch, model): ...",
    ],
)
def test_whatever_may_take_the_call_is_left_to_it(tmp_path: Path, right: str) -> None:
    resolved(tmp_path, REST + right if "build_model" not in right else f"{right}\ndef make_batch(batch_size): ...\n")


def test_a_function_that_is_passed_or_imported_is_looked_at_itself() -> None:
    def loss(batch: object) -> None: ...

    with pytest.raises(WorkloadError, match=r"in train:loss it is defined as loss\(batch\)\. Write def loss\(model, b"):
        check_arguments("compute_loss", loss, "train:loss")
    check_arguments("compute_loss", functools.wraps(loss)(lambda *given: loss(given[1])), "train:loss")
    check_arguments("build_model", dict, "builtins")  # its arguments cannot be read
