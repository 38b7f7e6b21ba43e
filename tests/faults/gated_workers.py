"""Workers with a gate, which take short turns: run as a program, this forks them as the product's own server does."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any
from unittest import mock

from advisor.trial import fork_server
from advisor.trial.spec import TrialSpec
from tests.faults.gate import At, pass_by, take_argument
from tests.quick_workers import hurry

__all__ = ["COMMAND"]

COMMAND = (sys.executable, "-P", "-u", __file__)
"""To be followed by the gate."""


def _with_gates() -> None:
    """Trials of this process, and of those that it forks, pass by the gate."""
    from advisor.trial import serving, work

    run_trial = work.run_trial
    run = serving._Worker._run

    def gated_trial(spec: TrialSpec, tell: Callable[[str], None], *more: Any, **others: Any) -> Any:
        rank = int(os.environ["RANK"]) if spec.policy.gpu_count > 1 and "RANK" in os.environ else None

        def gated_tell(text: str) -> None:
            tell(text)
            pass_by(At(spec.kind.value, "told", rank), spec.key)

        pass_by(At(spec.kind.value, "begin", rank), spec.key)
        found = run_trial(spec, gated_tell, *more, **others)
        pass_by(At(spec.kind.value, "end", rank), spec.key)
        return found

    def gated_run(worker: Any, request: Any, *more: Any) -> None:
        run(worker, request, *more)
        pass_by(At(request.spec.kind.value, "written"), request.spec.key)

    for module in (work, serving):
        mock.patch.object(module, "run_trial", gated_trial).start()
    mock.patch.object(serving._Worker, "_run", gated_run).start()


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
