"""Workers that take shorter turns: run as a program, this forks them as the product's own server does.

On a CPU the product times every training for a third of a second at least, takes turns of a quarter of a second with
the training beside it, and looks at the device for as long, so that figures scatter little. What a test of a search
looks at is what becomes of the figures, whatever they are: there a tenth of that is enough, and saves minutes. Most
is saved where a CPU only emulates a format: its products take a hundred times as long. Nor is a fork that hangs waited
for as long.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from advisor.trial import fork_server

__all__ = ["COMMAND", "hurry", "usual_speed"]

COMMAND = (sys.executable, "-P", "-u", __file__)

_QUICK = {
    ("advisor.measure.speed.arithmetic", "_ENOUGH_SECONDS"): 0.01,
    ("advisor.measure.speed.device_rates", "_ENOUGH_SECONDS"): 0.003,
    ("advisor.measure.speed.device_rates", "_TENSOR_BYTES"): {"cuda": (2**26,), "cpu": (2**18, 2**22)},
    ("advisor.trial.worker.prepared", "_ATTEMPT_SECONDS"): 5.0,
    ("advisor.trial.worker.timed_steps", "_TIMED_SECONDS"): {"cuda": 1.0, "cpu": 0.03},
    ("advisor.trial.worker.alternate", "_TURN_SECONDS"): 0.025,
}


def hurry() -> None:
    """Trials of this process, and of those that it forks, take shorter turns from now on."""
    _set(_QUICK)


@contextmanager
def usual_speed() -> Iterator[None]:
    """Within, measurements of this process take their time."""
    _set(_USUAL)
    yield
    hurry()


_USUAL: dict[tuple[str, str], object] = {}


def _set(values: dict[tuple[str, str], object]) -> None:
    for (name, variable), value in values.items():
        module = importlib.import_module(name)
        _USUAL.setdefault((name, variable), getattr(module, variable))
        setattr(module, variable, value)


if __name__ == "__main__":
    load = fork_server._load

    def _load_and_hurry() -> None:
        load()
        hurry()

    fork_server._load = _load_and_hurry
    fork_server.main()
