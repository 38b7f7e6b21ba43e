"""The command starts at once, says what it can do on one screen, and stays calm in a pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import advisor
from advisor import command_line
from advisor.cli import main
from advisor.command_line import complain, tune_parser
from advisor.methods.catalogue import CATALOGUE
from tests.session.command import COMMAND, run_command, run_here

HEAVY = ("numpy", "optuna", "rich", "torch", "transformers")


def loaded_by(program: str, *arguments: str) -> tuple[set[str], subprocess.CompletedProcess[str]]:
    """Which of the heavy libraries a program has loaded when it ends, and how it ended."""
    report = (
        f"{program}\n"
        "finally:\n"
        f"    print('LOADED', *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", f"import sys\ntry:\n{report}", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    last = result.stderr.splitlines()[-1].split()
    assert last[0] == "LOADED", result.stderr
    return set(last[1:]), result


MAIN = "    from advisor.cli import main; sys.exit(main())"


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("-h",),
        ("--version",),
        ("methods", "--help"),
        ("predict", "-h"),
        ("verify", "-h"),
        ("export", "-h"),
        ("completion", "-h"),
        ("completion", "bash"),
        (),
    ],
)
def test_help_loads_nothing_heavy(arguments: tuple[str, ...]) -> None:
    loaded, result = loaded_by(MAIN, *arguments)
    assert loaded == set()
    assert "momadvise" in result.stdout


def test_importing_the_package_and_looking_at_it_loads_nothing_heavy() -> None:
    loaded, result = loaded_by("    import advisor; print(dir(advisor), advisor.__version__, advisor.Policy)")
    assert loaded == set()
    assert result.returncode == 0


@pytest.mark.parametrize("arguments", [("methods",), ("methods", "swap"), ("hardware",)])
def test_looking_at_methods_and_hardware_loads_no_torch(arguments: tuple[str, ...]) -> None:
    loaded, result = loaded_by(MAIN, *arguments)
    assert result.returncode == 0, result.stderr
    assert loaded == {"rich"}


def test_the_process_that_asks_for_a_prediction_loads_no_torch() -> None:
    model = Path(__file__).parents[1] / "trial" / "workloads" / "tiny.py"
    loaded, result = loaded_by(MAIN, "predict", str(model))
    assert result.returncode == 0, result.stderr
    assert loaded <= {"rich", "numpy"}


def test_the_process_that_asks_for_a_verification_loads_no_torch(tmp_path: Path) -> None:
    model = Path(__file__).parents[1] / "trial" / "workloads" / "tiny.py"
    (tmp_path / "policy.yaml").write_text("schema: 1\npolicy: {methods: {}, micro_batch: 2}\n")
    loaded, result = loaded_by(MAIN, "verify", str(tmp_path / "policy.yaml"), str(model))
    assert result.returncode == 0, result.stderr
    assert loaded <= {"rich", "numpy"}


def test_exporting_a_policy_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("schema: 1\npolicy: {methods: {}, micro_batch: 2}\n")
    loaded, result = loaded_by(MAIN, "export", str(tmp_path / "policy.yaml"), "--to", "hf")
    assert result.returncode == 0, result.stderr
    assert loaded <= {"rich", "numpy"}


def test_the_package_is_the_command_where_scripts_are_not_on_the_path() -> None:
    arguments = [sys.executable, "-m", "advisor", "--version"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["momadvise", advisor.__version__]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("-h",),
        ("methods", "--help"),
        ("hardware", "-h"),
        ("predict", "--help"),
        ("verify", "--help"),
        ("export", "--help"),
        ("check", "--help"),
    ],
)
def test_help_fits_on_one_screen(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run_command(*arguments, cwd=tmp_path)
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert result.stderr == ""


def test_help_names_every_option_and_no_other(tmp_path: Path) -> None:
    options = {text for action in tune_parser()._actions for text in action.option_strings} | {"--version"}
    words = run_command("--help", cwd=tmp_path).stdout.replace(",", " ").split()
    assert {word for word in words if word.startswith("-")} == options


@pytest.mark.parametrize("verb", ["methods", "hardware"])
def test_a_verb_without_a_table_of_options_has_a_help_of_its_own(verb: str, tmp_path: Path) -> None:
    text = run_here(verb, "--help", cwd=tmp_path).stdout
    assert text.startswith(f"usage: momadvise {verb} [")
    assert "--time-limit" not in text


@pytest.mark.parametrize("verb", ["predict", "verify", "export"])
def test_the_help_of_a_verb_names_every_option_and_no_other(verb: str, tmp_path: Path) -> None:
    parser = getattr(command_line, f"{verb}_parser")()
    options = {text for action in parser._actions for text in action.option_strings}
    words = run_command(verb, "--help", cwd=tmp_path).stdout.replace(",", " ").split()
    assert {word for word in words if word.startswith("-")} == options


def test_without_arguments_it_says_in_a_few_lines_what_to_type_next(tmp_path: Path) -> None:
    result = run_command(cwd=tmp_path)
    assert result.returncode == 2
    assert len(result.stdout.splitlines()) <= 12
    for command in ("momadvise MODEL", "momadvise predict MODEL", "momadvise hardware", "momadvise --help"):
        assert command in result.stdout


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    result = run_command("--version", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, f"momadvise {advisor.__version__}\n")


def test_a_follower_makes_the_folder_that_the_same_command_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs: list[Path] = []
    monkeypatch.setattr("advisor.trial.process.follower.follow", lambda nodes, log: logs.append(log))
    monkeypatch.chdir(tmp_path)
    command = ("model.py", "--nnodes", "2", "--rdzv-endpoint", "first:29400", "--node-rank", "1")
    assert main([*command, "--output", "some/where"]) == 0
    assert main(command) == 0
    assert logs == [Path("some/where/momadvise-node-1.log"), Path("momadvise-node-1.log")]
    assert (tmp_path / "some" / "where").is_dir()
    (tmp_path / "file").write_text("")
    assert main([*command, "--output", "file"]) == 2


def test_methods_lists_the_catalogue_and_says_why_one_does_not_apply(tmp_path: Path) -> None:
    result = run_command("methods", cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 0
    for method in CATALOGUE:
        assert method.name in result.stdout
        assert method.summary in " ".join(result.stdout.split())
    assert "tf32 is a format of NVIDIA GPUs" in result.stdout
    assert "\x1b[" not in result.stdout


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)
def test_one_method_is_shown_with_all_that_it_declares(method: object, tmp_path: Path) -> None:
    name = method.name  # type: ignore[attr-defined]
    result = run_here("methods", name, cwd=tmp_path)
    assert result.returncode == 0
    shown = " ".join(result.stdout.split())
    for text in (name, method.costs, method.pays, method.does_not_pay, method.citation, method.fidelity.value):  # type: ignore[attr-defined]
        assert text in shown


def test_an_unknown_method_gets_the_near_match_and_how_to_list_them(tmp_path: Path) -> None:
    result = run_here("methods", "chekpoint", cwd=tmp_path)
    assert result.returncode == 2
    assert "Did you mean 'checkpoint'?" in result.stderr
    assert "`momadvise methods` lists" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [("methods", "swap", "checkpoint"), ("hardware", "cuda"), ("methods", "--json")])
def test_a_verb_with_something_it_does_not_take_says_what_it_takes(arguments: tuple[str, ...], tmp_path: Path) -> None:
    result = run_here(*arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert f"usage: momadvise {arguments[0]}" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_that_is_nearly_one_names_the_one_that_may_be_meant(tmp_path: Path) -> None:
    result = run_here("hardwar", cwd=tmp_path)
    assert result.returncode == 2
    assert "Did you mean momadvise hardware?" in result.stderr
    assert "Did you mean momadvise --help?" in run_here("help", cwd=tmp_path).stderr
    assert "Did you mean momadvise --version?" in run_here("version", cwd=tmp_path).stderr
    (tmp_path / "verif").mkdir()
    assert "Did you mean momadvise" not in run_here("verif", cwd=tmp_path).stderr, "it may be a model"


@pytest.mark.parametrize("width", [60, 80, 200])
def test_in_a_terminal_an_error_is_folded_between_words_and_what_is_copied_stays_whole(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    message = " ".join(["words"] * 60) + ":\n  momadvise report " + "long/" * 60
    complain(message)
    assert capsys.readouterr().err == f"momadvise: error: {message}\n", "in a pipe it is one line"
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    complain(message)
    *folded, last = capsys.readouterr().err.splitlines()
    assert max(map(len, folded)) <= width
    assert " ".join(folded) + "\n" + last == f"momadvise: error: {message}"


def test_hardware_fits_a_screen_and_shows_the_sources_of_its_figures_when_asked_for(tmp_path: Path) -> None:
    narrow = {"CUDA_VISIBLE_DEVICES": "", "COLUMNS": "80"}
    short = run_here("hardware", cwd=tmp_path, environment=narrow)
    assert len(short.stdout.splitlines()) <= 24
    assert max(map(len, short.stdout.splitlines())) <= 80
    assert "https://" not in short.stdout
    for flag in ("-v", "--verbose"):
        full = run_here("hardware", flag, cwd=tmp_path, environment=narrow)
        assert full.returncode == 0
        assert "https://" in full.stdout


def test_hardware_shows_the_device_that_would_be_used_and_why(tmp_path: Path) -> None:
    result = run_command("hardware", cwd=tmp_path, environment={"CUDA_VISIBLE_DEVICES": ""})
    assert result.returncode == 0
    assert "Without --device: cpu (" in result.stdout
    assert "GiB" in result.stdout


@pytest.mark.parametrize("buffered", [True, False], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("arguments", [("methods",), ("hardware",), ("--help",), ("--version",), ()])
def test_a_reader_that_goes_away_is_no_failure(arguments: tuple[str, ...], buffered: bool, tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)  # as `momadvise ... | head -1` after its line
    try:
        result = subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONUNBUFFERED": "" if buffered else "1"},
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(write)
    assert (result.returncode, result.stderr) == (0 if arguments else 2, ""), "as with a reader"


@pytest.mark.slow
def test_the_parent_of_a_whole_tuning_never_loads_torch(tmp_path: Path) -> None:
    tiny = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"
    program = (
        "    import advisor\n"
        "    answer = advisor.tune(sys.argv[1], search_space='smoke', trials=1, time_limit=60, memory_limit='16MiB',\n"
        "                          output='out')\n"
        "    assert answer.policy.micro_batch >= 1 and answer.complete"
    )
    loaded, result = loaded_by(f"    import os; os.chdir({str(tmp_path)!r})\n{program}", str(tiny))
    assert result.returncode == 0, result.stderr
    assert not loaded & {"torch", "transformers"}
    assert result.stdout == "", "a library call prints nothing"


@pytest.mark.parametrize(
    ("arguments", "understood"),
    [
        (["model.py", "--batch=x"], True),
        (["model.py", "--goal=slower"], True),
        (["model.py", "--wait-idle", "abc"], True),
        (["predict", "model.py", "--batch=x"], True),
        (["export", "policy.yaml", "--to=x"], True),
        (["model.py", "--batch"], False),
        (["model.py", "--btach=1"], False),
        (["predict"], False),
    ],
)
def test_the_help_is_named_where_a_line_is_not_understood_and_a_wrong_value_is_a_document_too(
    arguments: list[str], understood: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--json"]) == 2
    printed = capsys.readouterr()
    assert ("Try: momadvise" in printed.err) is not understood
    if understood:
        assert json.loads(printed.out)["message"] in printed.err
