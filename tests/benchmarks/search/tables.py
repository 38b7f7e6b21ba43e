"""Tables of a made-up workload with known values."""

from __future__ import annotations

from advisor.goal import Fidelity
from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement, SizePoint
from advisor.methods.setting import MethodSetting, use
from advisor.search.space.space import Axis, Combination
from benchmarks.search.table_lines import Header, Line, Sized, Timed

CHECKPOINT = use("checkpoint", every=1)
FUSED = use("fused_optimizer")
PLAIN = Combination()
LIMIT = 1000

BYTES = {PLAIN.label: (400, 60), Combination((CHECKPOINT,)).label: (400, 20)}
"""Label -> constant bytes and bytes per sample; other labels are like plain training."""

SECONDS = {
    PLAIN.label: (0.4, 0.1),
    Combination((CHECKPOINT,)).label: (0.4, 0.12),
    Combination((FUSED,)).label: (0.3, 0.1),
    Combination((CHECKPOINT, FUSED)).label: (0.3, 0.12),
}
"""Label -> constant seconds of a step and seconds per sample."""


def bytes_of(settings: tuple[MethodSetting, ...], batch: int) -> int:
    fixed, growing = BYTES[Combination(tuple(one for one in settings if one != FUSED)).label]
    return fixed + growing * batch


def seconds_of(settings: tuple[MethodSetting, ...], batch: int) -> float:
    fixed, growing = SECONDS[Combination(settings).label]
    return fixed + growing * batch


def header(**changes: object) -> Header:
    fields: dict[str, object] = {
        "workload": "made up",
        "fingerprint": "0",
        "space_name": "made up",
        "space_fingerprint": "0",
        "fidelity": Fidelity.LOSSY,
        "axes": (Axis(method="checkpoint", settings=(CHECKPOINT,)), Axis(method="fused_optimizer", settings=(FUSED,))),
        "conflicts": (),
        "recipes": (),
        "batch_fractions": (1.0, 0.5),
        "limit_bytes": LIMIT,
        "largest_batch": 40,
        "reference_batch": 4,
        "device": "a made-up device",
        "versions": {"torch": "0"},
        "date": "2026-01-01",
    }
    return Header(**{**fields, **changes})  # type: ignore[arg-type]


def sized(*settings: MethodSetting) -> Sized:
    points = tuple(
        SizePoint(
            micro_batch=batch, memory=_memory(bytes_of(settings, batch)), step_seconds=seconds_of(settings, batch)
        )
        for batch in (2, 4)
    )
    return Sized(settings=settings, outcome="ok", points=points)


def timed(
    *settings: MethodSetting, batch: int, moment: float = 0.0, slower: float = 1.0, reference: bool = False
) -> Timed:
    peak = bytes_of(settings, batch)
    return Timed(
        settings=settings,
        batch=batch,
        reference=reference,
        outcome="ok",
        step_seconds=seconds_of(settings, batch) * slower,
        spread=0.01,
        peak_bytes=peak,
        forward_peak_bytes=peak - 50,
        backward_peak_bytes=peak,
        optimizer_peak_bytes=500,
        run=0,
        moment=moment,
    )


def lost(*settings: MethodSetting, batch: int, outcome: str = "out of memory") -> Timed:
    return Timed(settings=settings, batch=batch, outcome=outcome, run=0, moment=0.0)


def complete() -> list[Line]:
    """Plain training fits 10 samples, checkpointing 30; the machine is twice as slow at the end."""
    lines: list[Line] = [header(), timed(batch=4, reference=True)]
    moment = 0.0
    for settings, largest in (((), 8), ((CHECKPOINT,), 24), ((FUSED,), 8), ((CHECKPOINT, FUSED), 24)):
        lines.append(sized(*settings))
        for batch in (largest // 2, largest):
            moment += 10
            lines.append(timed(*settings, batch=batch, moment=moment, slower=2 ** (moment / 100)))
    return [*lines, timed(batch=4, moment=100.0, slower=2.0, reference=True)]


def _memory(peak: int) -> MemoryMeasurement:
    return MemoryMeasurement(
        peak_bytes=peak,
        peak_allocated_bytes=peak,
        peak_reserved_bytes=None,
        device_used_bytes=None,
        allocation_retries=None,
        forward_peak_bytes=peak - 50,
        backward_peak_bytes=peak,
        optimizer_peak_bytes=500,
        breakdown=MemoryBreakdown(parameters=100, buffers=0, gradients=100, optimizer_state=200, activations=10),
    )
