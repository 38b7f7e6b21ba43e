"""Tracebacks as the user should read them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

import advisor
from advisor.errors import WorkloadError
from advisor.workload.traceback_text import user_traceback

PACKAGE = Path(str(advisor.__file__)).resolve().parent


def ours(place: str, source: str) -> Any:
    """A function whose frames look as if they were in a file of the package."""
    names: dict[str, Any] = {}
    exec(compile(source, str(PACKAGE / place), "exec"), names)
    return names["call"]


CALL = "def call(function, *arguments):\n    return function(*arguments)\n"
WORKER = ours("trial/worker.py", CALL)
METHOD = ours("methods/swap.py", CALL)
RAISE = ours("methods/swap.py", "def call():\n    raise RuntimeError('in a hook')\n")


def text_of(function: Any, *arguments: Any) -> str:
    try:
        function(*arguments)
    except Exception as error:
        # The frame of this test stands for the interpreter's start: below it, the worker is the outermost.
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        return user_traceback(error)
    raise AssertionError("nothing was raised")


def fail() -> None:
    raise ValueError("mine")


def test_it_starts_at_the_users_frame_and_ends_with_the_exception() -> None:
    text = text_of(WORKER, fail)
    assert "trial/worker.py" not in text
    assert text.splitlines()[1].endswith("in fail")
    assert text.endswith("ValueError: mine\n")


def test_frames_of_libraries_that_the_user_called_stay() -> None:
    def user() -> None:
        torch.nn.Linear(2, 1)(torch.zeros(1, 3))

    text = text_of(WORKER, user)
    assert text.index("in user") < text.index("torch/nn/modules")


def test_a_model_of_a_library_stands_for_the_users_first_frame() -> None:
    layer = functools.partial(torch.nn.Linear(2, 1), torch.zeros(1, 3))
    text = text_of(WORKER, METHOD, layer)
    assert "torch/nn/modules/module.py" in text.splitlines()[1]
    assert "torch/nn/modules/linear.py" in text
    assert "methods/swap.py" not in text


def test_how_torch_keeps_its_compiler_out_is_no_part_of_it() -> None:
    @torch._disable_dynamo
    def user() -> None:
        fail()

    text = text_of(WORKER, user)
    assert "in user" in text
    assert "eval_frame.py" not in text
    assert "_compile.py" not in text


def test_frames_of_ours_between_the_users_are_left_out() -> None:
    def user() -> None:
        METHOD(fail)

    text = text_of(WORKER, user)
    assert "in user" in text
    assert "in fail" in text
    assert "methods/swap.py" not in text


def test_modes_that_watch_are_left_out_where_they_passed_a_call_on() -> None:
    mode = "def __torch_dispatch__(function):\n    return function()\ncall = __torch_dispatch__\n"
    watching = ours("measure/live_storage.py", mode)

    def user() -> None:
        watching(functools.partial(torch.nn.functional.multi_margin_loss, torch.zeros(1, 3), torch.zeros(1, 2)))

    text = text_of(WORKER, user)
    assert "in user" in text
    assert "measure/live_storage.py" not in text


def test_modes_that_raised_are_not_hidden() -> None:
    raising = ours(
        "measure/live_storage.py", "def __torch_dispatch__():\n    raise RuntimeError\ncall = __torch_dispatch__\n"
    )
    assert "measure/live_storage.py" in text_of(WORKER, lambda: raising())


def test_a_hook_of_ours_that_raised_is_not_hidden() -> None:
    def user() -> None:
        RAISE()

    assert "methods/swap.py" in text_of(WORKER, user)


@pytest.mark.parametrize("place", ["trial/worker/work.py", "workload/_loading.py", "measure/memory/peak.py"])
def test_an_error_in_a_method_keeps_the_method_and_drops_the_machinery(place: str) -> None:
    assert (PACKAGE / place).parent.is_dir(), "a folder that there is"
    text = text_of(ours(place, CALL), RAISE)
    assert "methods/swap.py" in text
    assert place not in text


def test_causes_are_shown_and_stripped_too() -> None:
    def user() -> None:
        try:
            METHOD(fail)
        except ValueError as error:
            raise WorkloadError("outer") from error

    text = text_of(WORKER, user)
    assert "ValueError: mine" in text
    assert "direct cause" in text
    assert "methods/swap.py" not in text
