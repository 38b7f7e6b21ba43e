"""Fake arms that train nothing, and made-up rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.minutes.arms import ArmLostError
from benchmarks.minutes.momadvise_run import Advice, Promise
from benchmarks.minutes.rows import ArmRow, Row
from benchmarks.minutes.settings import ADVICE, Setting
from benchmarks.minutes.turns import SpeedRatio

OWN_BATCH = 4


class FakeArm:
    """Makes steps on a simulated clock.

    Args:
        name: Recorded in the log of turns.
        rate: Samples per second.
        machine: Determines its speed.
        batch: Samples per step.
    """

    def __init__(self, name: str, rate: float, machine: Machine, batch: int = OWN_BATCH) -> None:
        self.name = name
        self.batch = batch
        self._rate = rate
        self._machine = machine
        self.step_seconds = batch / rate

    def turn(self, steps: int) -> float:
        seconds = steps * self.batch / (self._rate * self._machine.speed())
        self._machine.now += seconds
        self._machine.turns.append((self.name, steps))
        return seconds


class Machine:
    """A clock, the log of turns, and the arms that are alive.

    Args:
        speeds: Speed of the machine in each turn, cyclic.
    """

    def __init__(self, *speeds: float) -> None:
        self.now = 0.0
        self.turns: list[tuple[str, int]] = []
        self.alive: list[str] = []
        self.most_alive = 0
        self.started: list[str] = []
        self._speeds = speeds or (1.0,)

    def clock(self) -> float:
        return self.now

    def speed(self) -> float:
        return self._speeds[len(self.turns) % len(self._speeds)]


class FakeStarter:
    """Starts arms with given rates; a string is the reason why one cannot train."""

    def __init__(self, machine: Machine, rates: dict[str, float | str]) -> None:
        self._machine = machine
        self._rates = rates

    @contextmanager
    def __call__(self, setting: Setting) -> Iterator[FakeArm]:
        machine, rate = self._machine, self._rates[setting.name]
        machine.started.append(setting.name)
        if isinstance(rate, str):
            raise ArmLostError(rate)
        machine.alive.append(setting.name)
        machine.most_alive = max(machine.most_alive, len(machine.alive))
        try:
            yield FakeArm(setting.name, rate, machine, setting.factor * OWN_BATCH)
        finally:
            machine.alive.remove(setting.name)


def beside(ratio: float, *, half: float = 0.01, rounds: int = 12) -> SpeedRatio:
    return SpeedRatio(
        ratio=ratio,
        low=ratio * (1 - half),
        high=ratio * (1 + half),
        rounds=rounds,
        samples_per_second=10 * ratio,
        other_samples_per_second=10.0,
    )


def row(
    workload: str = "gpt2",
    *,
    measured: float = 1.6,
    promise: tuple[float, float, float] = (1.62, 1.55, 1.69),
    combinations: int = 14,
    advice_beside_best: SpeedRatio | None = None,
    busy: bool = False,
    repeat: int = 1,
    size: str = "full",
) -> Row:
    ratio, low, high = promise
    return Row(
        workload=workload,
        size=size,
        busy=busy,
        repeat=repeat,
        time_limit=None,
        seed=0,
        device="a CPU",
        cores=2,
        versions={"torch": "2.13.0"},
        date="2026-01-02",
        advice=Advice(
            combinations=combinations,
            policies=20,
            first_figure_seconds=12.4,
            wall_seconds=214.6,
            winner="fused_optimizer",
            batch=16,
            baseline_batch=4,
            promise=Promise(ratio=ratio, low=low, high=high),
            confirmed=1.61,
        ),
        untouched_batch=4,
        arms=(
            ArmRow(name=ADVICE, batch=16, beside=beside(measured)),
            ArmRow(name="fused at 4x the batch", batch=16, beside=beside(1.58)),
            ArmRow(name="bf16", reason="not native: bf16 is multiplied at 0.31 times the rate of float32"),
        ),
        best="fused at 4x the batch",
        advice_beside_best=advice_beside_best or beside(1.01),
    )
