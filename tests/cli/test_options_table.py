"""An option has one name, type, default and meaning: in the table, the parser, the help, the call and the request."""

from __future__ import annotations

import enum
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import advisor
from advisor import option_values
from advisor.cli import main
from advisor.command_line import Parser, check_parser, export_parser, predict_parser, tune_parser, verify_parser
from advisor.goal import Preference
from advisor.options import CHECK, EXPORT, GOAL, PREDICT, TUNE, VERIFY, Option, Section, options_of
from advisor.session.request import TuneRequest
from advisor.text.units import parse_duration
from advisor.trial.nodes import Nodes
from advisor.workload.workload import FUNCTIONS, Stated

OPTIONS = (GOAL, *options_of(*TUNE))
IN_LIBRARY = [option for option in OPTIONS if option.in_library]
OF_THE_CALL_ALONE = {"model", "seed", "progress", "wait", *FUNCTIONS}

MODEL = "config.json"
torch = pytest.importorskip("torch")
SIGNATURE = inspect.signature(advisor.tune)
TYPES = typing.get_type_hints(
    advisor.tune, {**vars(advisor.api), "torch": pytest.importorskip("torch"), "Progress": object}
)
MEANINGS = dict(re.findall(r"^    (\w+): (.*(?:\n        .*)*)", inspect.getdoc(advisor.tune) or "", re.MULTILINE))

GIVEN: dict[str, tuple[list[str], dict[str, Any]]] = {
    "goal": (["--goal=bigger", "--min-throughput=20"], {"goal": "bigger", "min_throughput": 20}),
    "min_throughput": (["--goal=bigger", "--min-throughput=0.5x"], {"goal": "bigger", "min_throughput": "0.5x"}),
    "max_latency": (["--goal=cheapest", "--max-latency=200ms"], {"goal": "cheapest", "max_latency": 0.2}),
    "max_cost": (["--goal=cheapest", "--max-cost=0.5"], {"goal": "cheapest", "max_cost": 0.5}),
    "deadline": (
        ["--goal=cheapest", "--deadline=8h", "--iterations=9"],
        {"goal": "cheapest", "deadline": 28800, "iterations": 9},
    ),
    "iterations": (["--goal=cheapest", "--iterations=9"], {"goal": "cheapest", "iterations": 9}),
    "price": (["--goal=cheapest", "--price=2.5"], {"goal": "cheapest", "price": 2.5}),
    "kwh_price": (["--goal=cheapest", "--kwh-price=0.3"], {"goal": "cheapest", "kwh_price": 0.3}),
    "gpus": (["--gpus=4,1,2"], {"gpus": (1, 2, 4)}),
    "nnodes": (["--nnodes=2", "--rdzv-endpoint=first:1"], {"nnodes": 2, "rdzv_endpoint": "first:1"}),
    "rdzv_endpoint": (["--nnodes=2", "--rdzv-endpoint=other:1"], {"nnodes": 2, "rdzv_endpoint": "other:1"}),
    "device": (["--device=cuda:1"], {"device": "cuda:1"}),
    "memory_limit": (["--memory-limit=2GiB"], {"memory_limit": 2**31}),
    "batch": (["--batch=6"], {"batch": 6}),
    "tokens": (["--tokens=64"], {"tokens": 64}),
    "image_size": (["--image-size=64"], {"image_size": 64}),
    "baseline": (["--baseline=own.yaml"], {"baseline": Path("own.yaml")}),
    "from_": (["--from=ds_config.json"], {"from_": "ds_config.json"}),
    "global_batch": (["--global-batch=64"], {"global_batch": 64}),
    "fidelity": (["--fidelity=exact"], {"fidelity": "exact"}),
    "search_space": (["--search-space=all"], {"search_space": "all"}),
    "methods": (["--methods=swap,ddp"], {"methods": ["swap", "ddp"]}),
    "sampler": (["--sampler=tpe"], {"sampler": "tpe"}),
    "storage": (["--storage=study.journal"], {"storage": "study.journal"}),
    "trials": (["--trials=3"], {"trials": 3}),
    "time_limit": (["--time-limit=5m"], {"time_limit": 300.0}),
    "wait_idle": (["--wait-idle=5m"], {"wait_idle": 300.0}),
    "output": (["--output=there"], {"output": Path("there")}),
}


def by_keyword(option: Option) -> str:
    return option.keyword


class RequestedError(Exception):
    def __init__(self, request: TuneRequest) -> None:
        self.request = request


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a model, where a request is handed back instead of run."""

    def request_only(request: TuneRequest, progress: object) -> None:
        request.check()
        raise RequestedError(request)

    monkeypatch.setattr("advisor.session.tune.run_session", request_only)
    monkeypatch.chdir(tmp_path)
    Path("ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 3}')
    Path("own.yaml").write_text("schema: 1\npolicy: {micro_batch: 3}\n")
    Path(MODEL).write_text('{"model_type": "gpt2"}')


def of_the_command(*arguments: str) -> TuneRequest:
    with pytest.raises(RequestedError) as raised:
        main([MODEL, *arguments])
    return raised.value.request


def of_the_call(**options: Any) -> TuneRequest:
    with pytest.raises(RequestedError) as raised:
        advisor.tune(MODEL, wait=False, **options)
    return raised.value.request


def test_the_call_has_every_option_as_a_keyword_and_no_other() -> None:
    assert set(SIGNATURE.parameters) == {option.keyword for option in IN_LIBRARY} | OF_THE_CALL_ALONE


@pytest.mark.parametrize("option", IN_LIBRARY, ids=by_keyword)
def test_the_keyword_has_the_options_default_and_takes_what_the_parser_makes(option: Option) -> None:
    assert SIGNATURE.parameters[option.keyword].default == option.default
    (action,) = (one for one in tune_parser()._actions if option.flag in one.option_strings)
    assert action.default == option.default
    made = type(getattr(tune_parser().checked([MODEL, *GIVEN[option.keyword][0]]), option.keyword))
    assert made in typing.get_args(TYPES[option.keyword]) or made == TYPES[option.keyword]


@pytest.mark.parametrize("option", IN_LIBRARY, ids=by_keyword)
def test_the_docstring_begins_with_what_the_help_says(option: Option) -> None:
    said = " ".join(re.sub(r"[`\"]", "", MEANINGS[option.keyword]).split())
    assert said[0].lower() + said[1:] == option.meaning + said[len(option.meaning) :]
    assert re.match(r"\W|$", said[len(option.meaning) :]), "whole words"


@pytest.mark.parametrize(
    ("parser", "sections"),
    [
        (tune_parser(), TUNE),
        (predict_parser(), PREDICT),
        (verify_parser(), VERIFY),
        (export_parser(), EXPORT),
        (check_parser(), CHECK),
    ],
    ids=["tune", "predict", "verify", "export", "check"],
)
def test_the_help_says_what_each_option_takes_and_means(parser: Parser, sections: tuple[Section, ...]) -> None:
    words = " ".join(parser.format_help().split())
    for row in (row for section in sections for row in section.rows):
        assert " ".join(option.flags for option in row.options) in words
        assert (row.meaning or row.options[0].meaning) in words
    if parser.prog == "momadvise":
        assert f"{GOAL.flag} {'|'.join(GOAL.choices)}" in words


@pytest.mark.parametrize(
    "option", [one for one in OPTIONS if one.in_library or one.flag == "--node-rank"], ids=by_keyword
)
def test_the_request_has_the_field_that_an_option_fills(option: Option) -> None:
    record, _, field = (option.field or option.keyword).rpartition(".")
    assert (
        field in {"": TuneRequest, "preference": Preference, "nodes": Nodes, "stated": Stated}[record].__struct_fields__
    )


def test_without_options_the_request_has_its_own_defaults_and_those_of_the_help() -> None:
    asked = of_the_command()
    assert asked == of_the_call() == TuneRequest(source=asked.source)
    meanings = {option.keyword: option.meaning for option in OPTIONS}
    assert f"default: {asked.trials}" in meanings["trials"]
    (limit,) = re.findall(r"default: (\w+)", meanings["time_limit"])
    assert asked.time_limit_seconds == parse_duration(limit)


@pytest.mark.parametrize("option", IN_LIBRARY, ids=by_keyword)
def test_a_value_is_the_same_request_from_the_command_and_from_the_call(option: Option) -> None:
    arguments, keywords = GIVEN[option.keyword]
    request = of_the_command(*arguments)
    assert request == of_the_call(**keywords)
    assert request != of_the_command(*(one for one in arguments if not one.startswith(option.flag)), *_without(option))


def _without(option: Option) -> list[str]:
    """What a request needs in the place of an option, if it cannot do without."""
    needed = {
        "min_throughput": "--min-throughput=1",
        "nnodes": "--nnodes=3",
        "rdzv_endpoint": "--rdzv-endpoint=first:1",
    }
    if option.keyword == "goal":
        return ["--goal=bigger", "--min-throughput=1"]
    return [needed[option.keyword]] if option.keyword in needed else []


@pytest.mark.parametrize("option", [one for one in OPTIONS if one.choices], ids=by_keyword)
def test_the_choices_are_those_there_are(option: Option) -> None:
    kind: type[enum.Enum] = option_values._ENUMS[option.keyword]
    assert option.choices == tuple(member.value for member in kind)


@pytest.mark.parametrize("section", [section for section in TUNE if section.goal], ids=lambda section: section.goal)
def test_an_option_of_one_goal_is_refused_by_the_others(section: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for option in options_of(section):
        arguments, _ = GIVEN[option.keyword]
        given = [one for one in arguments if one.startswith((option.flag, "--iterations"))]
        assert main([MODEL, "--goal=faster", *given]) == 2
        assert f"belongs to --goal {section.goal}, but the goal is 'faster'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        (["--wait-idle", MODEL], 600.0),
        ([MODEL, "--wait-idle"], 600.0),
        (["--wait-idle", "1m30s", MODEL], 90.0),
        (["--wait-idle=90", MODEL], 90.0),
        (["--wait-idle", "--trials", "3", MODEL], 600.0),
    ],
)
def test_waiting_has_a_limit_of_its_own_where_none_is_given(arguments: list[str], seconds: float) -> None:
    with pytest.raises(RequestedError) as raised:
        main(arguments)
    assert raised.value.request.wait_idle_seconds == seconds
    assert raised.value.request.source.name == of_the_command().source.name


@pytest.mark.parametrize("arguments", [["--wait-idle", "abc", MODEL], [MODEL, "--wait-idle", "abc"]])
def test_a_wrong_value_of_an_option_that_may_stand_alone_is_told_from_a_model(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == main([MODEL, "--wait-idle=abc"]) == 2
    first, second = (line for line in capsys.readouterr().err.splitlines() if "error" in line)
    assert first == second
    assert "--wait-idle must be hours, minutes and seconds, but got 'abc'. Write for example 90s" in first


@pytest.mark.parametrize(
    ("arguments", "unknown"),
    [
        (["--wait-idle", MODEL, "other.json"], "other.json"),
        (["--wait-idle", "hf:gpt2", "other.json"], "other.json"),
        (["--wait-idle", "folder/absent", "other.json"], "other.json"),
        (["--wait-idle", "absent", "--trails", "--trials=3"], "--trails. Did you mean --trials?"),
        (["--gol", "faster", MODEL], f"--gol {MODEL}. Did you mean --goal?"),
        ([MODEL, "--time_limit=3m"], "--time_limit=3m. Did you mean --time-limit?"),
        ([MODEL, "-goal=faster"], "-goal=faster. Did you mean --goal?"),
        ([MODEL, "--nothing-like-it"], "--nothing-like-it"),
        (["--wait-idle", "--trials=3", MODEL, "abc"], "abc"),
    ],
)
def test_an_argument_too_many_is_named_with_the_option_that_may_be_meant_not_one_that_stands_alone(
    arguments: list[str], unknown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert f"unrecognized arguments: {unknown}\n" in capsys.readouterr().err
