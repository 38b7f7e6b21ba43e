"""Workers with a gate, which take short turns: run as a program, this forks them as the product's own server does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from advisor.trial import fork_server
from advisor.trial.folder import TrialFolder
from advisor.trial.result import TrialResult
from advisor.trial.spec import TrialSpec
from tests.faults.gate import At, pass_by, take_argument
from tests.quick_workers import hurry

__all__ = ["COMMAND"]

COMMAND = (sys.executable, "-P", "-u", __file__)
"""To be followed by the gate."""


def _with_gates() -> None:
    """Trials of this process, and of those that it forks, pass by the gate."""
    from advisor.trial.worker import run_trial as running
    from advisor.trial.worker import serving

    run_trial = running.run_trial
    write_result = TrialFolder.write_result

    def gated_trial(spec: TrialSpec, tell: Callable[[str], None], *more: Any, **others: Any) -> Any:
        rank = int(os.environ["RANK"]) if spec.policy.gpu_count > 1 and "RANK" in os.environ else None

        def gated_tell(text: str) -> None:
            tell(text)
            pass_by(At(spec.kind, "told", rank), spec.key)

        pass_by(At(spec.kind, "begin", rank), spec.key)
        found = run_trial(spec, gated_tell, *more, **others)
        pass_by(At(spec.kind, "end", rank), spec.key)
        return found

    def gated_write(folder: TrialFolder, result: TrialResult) -> None:
        write_result(folder, result)
        pass_by(At(result.key.partition("-")[0], "written"), result.key)

    for module in (running, serving):
        mock.patch.object(module, "run_trial", gated_trial).start()
    mock.patch.object(TrialFolder, "write_result", gated_write).start()


if __name__ == "__main__":
    take_argument()
    load = fork_server._load

    def _load_with_gates() -> None:
        pass_by(At("server", "loading"))
        load()
        hurry()
        _with_gates()

    fork_server._load = _load_with_gates
    fork_server.main()
