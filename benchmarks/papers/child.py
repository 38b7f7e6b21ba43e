"""Ask a program of this folder that loads torch, so that the process of the command never does.

For what is no trial of momadvise: a loop of somebody else's beside ours, or somebody else's search.
"""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.papers.command import TimeIsUpError

__all__ = ["answer", "ask"]

_ROOT = Path(__file__).resolve().parents[2]

_Request = TypeVar("_Request", bound=msgspec.Struct)
_Answer = TypeVar("_Answer", bound=msgspec.Struct)


def ask(
    module: str,
    request: msgspec.Struct,
    answer_type: type[_Answer],
    *,
    time_limit_seconds: float,
    until: float = math.inf,
) -> tuple[_Answer | None, str]:
    """Run ``python -m MODULE`` with a request and wait for its answer.

    Args:
        module: Dotted name of a module that ends in :func:`answer`.
        request: What it is given on standard input, as JSON.
        answer_type: What it prints in its last line.
        time_limit_seconds: After it the program is ended.
        until: Moment of ``time.monotonic`` at which the caller waits no longer.

    Returns:
        The answer, or ``None`` and why there is none.

    Raises:
        TimeIsUpError: That moment came before the program's own limit.
    """
    left = until - time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, "-m", module],
            input=msgspec.json.encode(request),
            capture_output=True,
            cwd=_ROOT,
            timeout=max(0.0, min(time_limit_seconds, left)),
            check=False,
        )
    except subprocess.TimeoutExpired:
        if left < time_limit_seconds:
            raise TimeIsUpError from None
        return None, f"timeout: it took longer than its limit of {time_limit_seconds:g} s"
    if done.returncode != 0:
        return None, f"exit status {done.returncode}: {_last_line(done.stderr)}"
    try:
        return msgspec.json.decode(_last_line(done.stdout), type=answer_type), ""
    except msgspec.DecodeError as error:
        return None, f"it printed no answer: {error}"


def answer(request_type: type[_Request], work: Callable[[_Request], msgspec.Struct]) -> None:
    """The other end: read the request, do the work, print the answer."""
    found = work(msgspec.json.decode(sys.stdin.buffer.read(), type=request_type))
    print(msgspec.json.encode(found).decode(), flush=True)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
