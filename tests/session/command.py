"""Run the command as a person would, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

__all__ = ["COMMAND", "run_command", "start_command"]

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
