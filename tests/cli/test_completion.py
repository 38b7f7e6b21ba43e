"""What the shells complete is what the command takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from advisor.cli import main
from advisor.command_line import tune_parser
from advisor.completion import SHELLS, VERBS, script
from advisor.methods.catalogue import CATALOGUE

FLAGS = {flag for action in tune_parser()._actions for flag in action.option_strings}


def needs(shell: str) -> str:
    """The path of a shell, or the test is skipped."""
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")
    return found


def in_bash(folder: Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    typed = " ".join(f"'{word}'" for word in words)
    program = f"""
source <(cat <<'SCRIPT'
{script("bash")}
SCRIPT
)
COMP_WORDS=(momadvise {typed})
COMP_CWORD={len(words)}
_momadvise
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    ran = subprocess.run([needs("bash"), "-c", program], capture_output=True, text=True, cwd=folder, check=True)
    assert ran.stderr == ""
    return set(ran.stdout.splitlines()) - {""}


def test_every_command_that_the_help_names_is_completed() -> None:
    named = set(re.findall(r"^       momadvise (\w+)", tune_parser().format_help(), re.MULTILINE)) | {"hardware"}
    assert named <= set(VERBS)


def test_bash_completes_commands_and_files_first(tmp_path: Path) -> None:
    (tmp_path / "model.py").touch()
    assert in_bash(tmp_path, "") == {*VERBS, "model.py"}
    assert in_bash(tmp_path, "pre") == {"predict"}
    assert in_bash(tmp_path, "mo") == {"model.py"}
    (tmp_path / "my model.py").touch()
    assert in_bash(tmp_path, "my") == {"my model.py"}


def test_bash_completes_the_options_of_a_command_and_no_others(tmp_path: Path) -> None:
    assert in_bash(tmp_path, "model.py", "--") == {flag for flag in FLAGS if flag.startswith("--")} | {"--version"}
    assert in_bash(tmp_path, "-") >= FLAGS - {"-h"}
    assert in_bash(tmp_path, "export", "policy.yaml", "--") == {
        *("--to", "--into", "--max-grad-norm", "--strict", "--json", "--help")
    }
    assert in_bash(tmp_path, "hardware", "-") == {"-v", "--verbose", "--help"}


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("--goal", ""), {"faster", "bigger", "cheapest"}),
        (("model.py", "--goal", "=", "f"), {"faster"}),
        (("export", "policy.yaml", "--to", "l"), {"lightning", "llamafactory"}),
        (("predict", "model.py", "--profile", "h2"), {"h200"}),
        (("model.py", "--methods", "sw"), {"swap"}),
        (("model.py", "--methods", "checkpoint,adam_8bit,sw"), {"checkpoint,adam_8bit,swap"}),
        (("model.py", "--trials", ""), set()),
        (("model.py", "--wait-idle", ""), set()),
        (("completion", ""), set(SHELLS)),
        (("methods", ""), {method.name for method in CATALOGUE}),
        (("verify", "policy.yaml", ""), set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bash_completes_values(words: tuple[str, ...], offered: set[str], tmp_path: Path) -> None:
    assert in_bash(tmp_path, *words) == offered


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("momadvise pre", {"predict"}),
        ("momadvise model.py --goal ", {"faster", "bigger", "cheapest"}),
        ("momadvise export policy.yaml --to l", {"lightning", "llamafactory"}),
        ("momadvise model.py --methods checkpoint,sw", {"checkpoint,swap"}),
        ("momadvise model.py --methods sw", {"swap"}),
        ("momadvise completion ", set(SHELLS)),
        ("momadvise check policy.yaml --rem", {"--remeasure"}),
    ],
)
def test_fish_completes_the_same(typed: str, offered: set[str], tmp_path: Path) -> None:
    program = f"{script('fish')}\ncomplete -C {typed!r}"
    ran = subprocess.run(
        [needs("fish"), "--no-config", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert {line.split("\t")[0] for line in ran.stdout.splitlines()} == offered
    assert ran.stderr == ""


def test_zsh_reads_its_script(tmp_path: Path) -> None:
    (tmp_path / "_momadvise").write_text(script("zsh"))
    program = 'autoload -Uz compinit; compinit -D; source ./_momadvise; print -r -- "$_comps[momadvise]"'
    ran = subprocess.run([needs("zsh"), "-f", "-c", program], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert (ran.stdout.strip(), ran.stderr) == ("_momadvise", "")


def test_a_shell_that_is_not_known_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["completion"], ["completion", "tcsh"], ["completion", "bash", "zsh"]):
        assert main(arguments) == 2
        got = repr(" ".join(arguments[1:])) if arguments[1:] else "none"
        needed = "momadvise completion needs the name of a shell, bash, zsh or fish, but got"
        assert capsys.readouterr().err == f"momadvise: error: {needed} {got}.\nTry: momadvise completion --help\n"
    assert main(["completion", "--help"]) == 0
    assert "source <(momadvise completion bash)" in capsys.readouterr().out
