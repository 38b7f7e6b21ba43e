"""Every option of every command, and every argument of the library call: valid, or one line before anything runs."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import advisor
from advisor.command_line import predict_parser, tune_parser, verify_parser
from advisor.errors import UserError
from advisor.session.setup.ranks import launch_identity
from tests.session.command import run_here

from .conftest import EXAMPLES
from .hostile import TEXTS, assert_explains, explained, steering, typed, valid_or_explained, values

MODEL = """\
BATCH_SIZE = 4
SIZES = {"width": [4, 8]}
def build_model(width=4): ...
def make_batch(batch_size): ...
"""

POLICY = "schema: 1\npolicy: {micro_batch: 2}\n"


class Measured(BaseException):
    """Everything was accepted: from here on trials would run."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and a policy, where a trial ends the command."""

    def measure(*arguments: object, **more: object) -> None:
        raise Measured

    for what in ("session.tuning.Tuning.run", "trial.process.runner.Runner.run", "trial.process.follower.follow"):
        monkeypatch.setattr(f"advisor.{what}", measure)
    monkeypatch.setattr("advisor.session.tune.notes_on_load", lambda hardware: [])
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("policy.yaml").write_text(POLICY)
    return tmp_path


def ends_well(folder: Path, *arguments: str, environment: dict[str, str] | None = None) -> str:
    """What the command says: nothing where it would measure, else one line and status 2."""
    try:
        ended = run_here(*arguments, cwd=folder, environment=environment)
    except Measured:
        return ""
    assert not steering(ended.stdout + ended.stderr)
    if ended.returncode == 0:  # --help, --version
        return ""
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.partition(" Add these lines to it:\n")[0].rstrip("\n").split("\n")
    if lines[-1].startswith("Try: momadvise"):
        lines.pop()
    (line,) = lines
    assert line.startswith("momadvise: error: ")
    assert len(line) < 1500
    return line


COMMANDS = {
    "": (tune_parser(), ["model.py"]),
    "predict": (predict_parser(), ["predict", "model.py"]),
    "verify": (verify_parser(), ["verify", "policy.yaml", "model.py"]),
}

NEEDED = {
    "--deadline": ["--iterations=5"],
    "--rdzv-endpoint": ["--nnodes=2"],
    "--node-rank": ["--nnodes=2", "--rdzv-endpoint=host:1"],
}
CHEAPEST = {"--price", "--kwh-price", "--max-latency", "--max-cost", "--deadline", "--iterations"}


def options() -> Iterator[tuple[str, str]]:
    for command, (parser, _) in COMMANDS.items():
        for action in parser._actions:
            if not isinstance(action, argparse._HelpAction | argparse._StoreTrueAction):
                yield command, (action.option_strings or [""])[0]


def arguments_of(command: str, option: str, text: str) -> list[str]:
    before = COMMANDS[command][1]
    if not option:
        return [*before[:-1], text]
    goal = ["--goal=bigger"] if option == "--min-throughput" else []
    if option in CHEAPEST:
        goal = ["--goal=cheapest", "--price=1"]
    return [*before, *goal, *NEEDED.get(option, ()), f"{option}={text}"]


OPTIONS = sorted(set(options()))


@pytest.mark.parametrize(("command", "option"), OPTIONS)
@pytest.mark.parametrize("text", ["9" * 400, "9" * 5000, "-1", "nan", "a\x1b[31m\udcff\nb", "~nobody-at-all/x"])
def test_an_option_with_a_hostile_value_ends_well(folder: Path, command: str, option: str, text: str) -> None:
    ends_well(folder, *arguments_of(command, option, text))


@settings(max_examples=EXAMPLES * 2)
@given(one=st.sampled_from(OPTIONS), text=typed)
def test_any_option_with_any_value_ends_well(folder: Path, one: tuple[str, str], text: str) -> None:
    command, option = one
    ends_well(folder, *arguments_of(command, option, text))


@given(st.lists(typed, min_size=1, max_size=3))
def test_any_arguments_end_well(folder: Path, arguments: list[str]) -> None:
    for verb in ("methods", "hardware", "model.py"):
        ends_well(folder, verb, *arguments)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        (("model.py", "--trials=2.5"), "2.5"),
        (("model.py", "--memory-limit=--"), "memory_limit"),
        (("model.py", "--trials=" + "9" * 400), "99"),
        (("model.py", "--global-batch=" + "9" * 5000), "99"),
        (("model.py", "--time-limit=" + "9" * 400), "99"),
        (("model.py", "--memory-limit=" + "9" * 400 + "GiB"), "99"),
        (("model.py", "--storage=postgresql://u:p@h:abc/d"), "h:abc"),
        (("model.py", "--output=~nobody-at-all"), "~nobody-at-all"),
        (("model.py", "--output=" + "a" * 300), "aaa"),
        (("model.py", "--output=\udcff"), r"\udcff"),
        (("~nobody-at-all.py",), "~nobody-at-all"),
        (("\udcff.py",), r"\udcff"),
        (("hf:\udcff",), r"\udcff"),
        (("model.py", "--\x1b[31m"), r"\x1b[31m"),
        (("model.py", "--goal=cheapest", "--price=inf"), "inf"),
        (("model.py", "--goal=cheapest", "--price=1", "--iterations=" + "9" * 400), "99"),
        (("model.py", "--goal=bigger", "--min-throughput=1e400"), "1e400"),
        (("predict", "model.py", "--batch=" + "9" * 400), "99"),
    ],
)
def test_the_line_has_the_value_in_it(folder: Path, arguments: tuple[str, ...], value: str) -> None:
    assert value in ends_well(folder, *arguments)


def test_what_is_refused_leaves_no_folder(folder: Path) -> None:
    before = set(folder.iterdir())
    for text in ("model.py --seed=1", "model.py --trials=0", "model.py --storage=postgresql://h:abc/d"):
        assert ends_well(folder, *text.split())
    assert set(folder.iterdir()) == before


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "COLUMNS", "LINES", "OMP_NUM_THREADS"])
@pytest.mark.parametrize("text", ["abc", "-1", "2.5", "9" * 5000, "²", "\x1b[31m", ""])
def test_a_variable_with_a_hostile_value_ends_well(folder: Path, name: str, text: str) -> None:
    launch = {"WORLD_SIZE": "2", "RANK": "0"} if name in ("RANK", "LOCAL_RANK") else {}
    said = ends_well(folder, "model.py", environment={**launch, name: text})
    assert bool(said) == (name in ("WORLD_SIZE", "RANK") and text != "")
    assert not said or f"The environment variable {name} must be a whole number" in said
    ends_well(folder, "hardware", environment={name: text})


@given(typed, typed)
def test_a_launch_is_recognized_or_explained(size: str, rank: str) -> None:
    with valid_or_explained(UserError):
        launch_identity({"WORLD_SIZE": size, "RANK": rank})


def test_a_local_rank_that_is_no_number_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "abc")
    model = torch.nn.Linear(1, 1)
    assert "LOCAL_RANK" in explained(lambda: advisor.apply_policy(advisor.Policy(micro_batch=1), model))


ARGUMENTS = sorted(
    name
    for name, parameter in inspect.signature(advisor.tune).parameters.items()
    if name not in ("model", "progress", "wait") and not str(parameter.annotation).startswith("Callable")
)


@settings(max_examples=EXAMPLES * 2)
@given(st.sampled_from(ARGUMENTS), values | st.sampled_from(TEXTS))
def test_any_argument_of_the_library_call_is_valid_or_explained(folder: Path, name: str, value: object) -> None:
    goal = {"goal": "cheapest", "price": 1.0, "iterations": 5} if f"--{name.replace('_', '-')}" in CHEAPEST else {}
    goal = {"goal": "bigger"} if name == "min_throughput" else goal
    with contextlib.suppress(Measured), valid_or_explained(UserError):
        advisor.tune("model.py", **{**goal, name: value}, wait=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("seed", 2**32), ("trials", 2.0), ("trials", True), ("global_batch", 4.0), ("price", float("nan"))],
)
def test_the_library_call_explains_what_it_refuses(folder: Path, name: str, value: object) -> None:
    goal = {"goal": "cheapest"} if name == "price" else {}
    with pytest.raises(UserError) as raised:
        advisor.tune("model.py", **{**goal, name: value})
    assert_explains(str(raised.value))
    assert str(value) in str(raised.value)


@given(values)
def test_the_model_of_a_library_call_is_found_or_explained(folder: Path, value: object) -> None:
    if value is not None and not isinstance(value, str):
        explained(lambda: advisor.tune(value))  # type: ignore[arg-type]


def test_a_library_that_counts_in_its_own_integers_may_say_how_many(folder: Path) -> None:
    import numpy as np

    with pytest.raises(Measured):
        advisor.tune("model.py", trials=np.int64(3), seed=np.int32(1), output=folder / "runs")  # type: ignore[arg-type]
    assert os.path.isdir(folder / "runs")
