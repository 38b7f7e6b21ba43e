"""Run the steps of a composite action, or the script of a job, as their services do: in bash, one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

__all__ = ["Ended", "run_action", "run_job", "write_command"]

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")

_QUICK_COMMAND = """\
#!{python}
import os, sys
from tests.quick_workers import COMMAND
from advisor.trial.process import fork_client
fork_client._COMMAND = COMMAND
from advisor.cli import main
sys.exit(main())
"""


@dataclass
class Ended:
    """How a pipeline ended.

    Attributes:
        status: Of the step that failed; 0 if none did.
        outputs: Step -> output -> value.
    """

    status: int = 0
    printed: str = ""
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""


def write_command(folder: Path, text: str = _QUICK_COMMAND, name: str = "momadvise") -> Path:
    """A folder for ``PATH`` in which a command is a program of Python, by default the real one with short turns."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)
    return folder


def run_action(path: Path, inputs: dict[str, str], workspace: Path, commands: Path, **variables: str) -> Ended:
    """Run the steps of an action in a repository's folder, with other variables than a job usually has."""
    action = yaml.safe_load(path.read_text())
    assert set(inputs) <= set(action["inputs"])
    temp = commands.parent / "runner"
    temp.mkdir(exist_ok=True)
    files = {name: temp / name for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    values = {f"inputs.{name}": inputs.get(name, one["default"]) for name, one in action["inputs"].items()}
    values |= {"github.token": "secret", "runner.temp": str(temp)}
    ended = Ended()
    for step in action["runs"]["steps"]:
        if not _is_true(step.get("if", ""), values):
            continue
        assert step["shell"] == "bash", "actions of others are not run here"
        assert not _EXPRESSION.search(step["run"]), "an input in a script is code"
        for file in files.values():
            file.touch()
        files["GITHUB_OUTPUT"].write_text("")
        own = {name: _filled(text, values) for name, text in step["env"].items()}
        environment = own | {name: str(file) for name, file in files.items()} | {"RUNNER_TEMP": str(temp)}
        environment |= {"GITHUB_SERVER_URL": "https://github.example", "GITHUB_REPOSITORY": "owner/name"} | variables
        # This is what `shell: bash` stands for.
        ended.status = _run(["-e", "-o", "pipefail"], step["run"], environment, workspace, commands, ended)
        lines = [line.partition("=") for line in files["GITHUB_OUTPUT"].read_text().splitlines()]
        ended.outputs[step["id"]] = {name: value for name, _, value in lines}
        values |= {f"steps.{step['id']}.outputs.{name}": value for name, _, value in lines}
        if ended.status:
            break
    ended.summary = files["GITHUB_STEP_SUMMARY"].read_text()
    return ended


def run_job(path: Path, name: str, workspace: Path, commands: Path, **variables: str) -> Ended:
    """Run the script of a job, whose lines share one shell."""
    job = yaml.safe_load(path.read_text())[name]
    ended = Ended()
    script = "\n".join(job["script"])
    ended.status = _run(["-e", "-o", "pipefail"], script, {**job["variables"], **variables}, workspace, commands, ended)
    return ended


def _run(
    options: list[str], script: str, environment: dict[str, str], workspace: Path, commands: Path, ended: Ended
) -> int:
    path = f"{commands}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    result = subprocess.run(
        ["bash", "--noprofile", "--norc", *options, "-c", script],
        cwd=workspace,
        env={**os.environ, **environment, "PATH": path, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=200,
        check=False,
    )
    ended.printed += result.stdout
    return result.returncode


def _filled(text: str, values: dict[str, str]) -> str:
    return _EXPRESSION.sub(lambda found: values.get(found[1], ""), str(text))


def _is_true(condition: str, values: dict[str, Any]) -> bool:
    """A condition of the kinds that the action has: comparisons with a text, joined by ``&&``."""
    for part in filter(None, condition.split("&&")):
        name, _, text = (one.strip() for one in part.partition("=="))
        if values.get(name, "") != text.strip("'"):
            return False
    return True
