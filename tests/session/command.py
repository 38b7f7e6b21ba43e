"""Run the command as a person would, in a process of its own; or here, where only what it says matters."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from advisor.cli import main

__all__ = ["COMMAND", "run_command", "run_here", "start_command"]

COMMAND = (sys.executable, "-m", "advisor.cli")


def _environment(extra: dict[str, str] | None) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**plain, "COLUMNS": "120", **(extra or {})}


def run_command(
    *arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None, timeout: float = 240
) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_here(
    *arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run it to its end in this process: a process of its own takes seconds to load what is loaded here.

    Its workers are those of a process that has loaded nothing but the command: what other tests hold here is not held.
    """
    written, complained = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, _environment(environment), clear=True),
        mock.patch("advisor.hardware.detect._held_here", return_value=0),
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(written),
        contextlib.redirect_stderr(complained),
    ):
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return subprocess.CompletedProcess(arguments, status, written.getvalue(), complained.getvalue())


def start_command(
    *arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start it and let it run."""
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
