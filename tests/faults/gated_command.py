"""The command with a gate: run as a program, in a process of its own that signals can be sent to."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest import mock

from advisor.cli import main
from advisor.trial.process import fork_client
from tests.faults import gated_workers
from tests.faults.gate import At, pass_by, take_argument

__all__ = ["COMMAND"]

COMMAND = (sys.executable, "-P", __file__)
"""To be followed by the gate."""


def _with_gates() -> None:
    """What this process writes passes by the gate: all but renamed, renamed, or appended and on the disk."""
    replace, fsync = os.replace, os.fsync

    def gated_replace(source: Any, target: Any, **more: Any) -> None:
        name = Path(os.fsdecode(target)).name
        pass_by(At(name, "writing"))
        replace(source, target, **more)
        pass_by(At(name, "written"))

    def gated_fsync(descriptor: Any) -> None:
        fsync(descriptor)
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        if os.readlink(f"/proc/self/fd/{number}").endswith("/ledger.jsonl"):
            pass_by(At("ledger.jsonl", "written"))

    mock.patch.multiple(os, replace=gated_replace, fsync=gated_fsync).start()


if __name__ == "__main__":
    fork_client._COMMAND = (*gated_workers.COMMAND, take_argument())
    _with_gates()
    # Who plays may have been told to outlive its terminal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    sys.exit(main())
