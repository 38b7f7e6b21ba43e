"""The lines of an exhaustive table: a header, and one line of JSON for every measurement.

A file may end in ``.gz``: a finished table is stored in compressed form. During recording it is plain text, so that no
measurement is lost when the process ends.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import msgspec

from advisor.goal import Fidelity
from advisor.measure.measurement import SizePoint, Sizing
from advisor.methods.setting import MethodSetting
from advisor.predict.prediction import MemoryPrediction
from advisor.search.sizing.memory_model import MemoryModel
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace
from benchmarks import json_lines

__all__ = ["Header", "Line", "Paired", "Sized", "Timed", "compress", "read"]


class Header(msgspec.Struct, frozen=True, kw_only=True, tag="space"):
    """The first line: what is recorded, and under which limits.

    Attributes:
        workload: Name of the workload.
        fingerprint: Fingerprint of its source: another source is another table.
        space_name: Name of the search space.
        space_fingerprint: Hash of its file's content.
        fidelity: Its lowest fidelity class.
        axes: Its methods with the settings that apply.
        conflicts: Labels of two settings, and why they exclude each other.
        recipes: Well-known combinations.
        batch_fractions: Fractions of the largest feasible batch that are timed.
        limit_bytes: The memory limit.
        largest_batch: Largest batch to try.
        reference_batch: The batch at which plain training is measured repeatedly.
        device: Name of the device.
        versions: Package -> version.
        date: ISO date on which the recording began.
    """

    workload: str
    fingerprint: str
    space_name: str
    space_fingerprint: str
    fidelity: Fidelity
    axes: tuple[Axis, ...]
    conflicts: tuple[tuple[str, str, str], ...]
    recipes: tuple[ResolvedRecipe, ...]
    batch_fractions: tuple[float, ...]
    limit_bytes: int
    largest_batch: int
    reference_batch: int
    device: str
    versions: dict[str, str]
    date: str

    @classmethod
    def of(cls, space: ResolvedSpace, **others: Any) -> Header:
        """The header of a space, with the other fields by their names here."""
        return cls(
            space_name=space.name,
            fidelity=space.fidelity,
            axes=space.axes,
            conflicts=tuple((first, second, reason) for (first, second), reason in sorted(space.conflicts.items())),
            recipes=space.recipes,
            batch_fractions=space.batch_fractions,
            **others,
        )

    @property
    def space(self) -> ResolvedSpace:
        """The search space, as :func:`advisor.search.space.build_space.build_space` made it."""
        return ResolvedSpace(
            name=self.space_name,
            fidelity=self.fidelity,
            axes=self.axes,
            batch_fractions=self.batch_fractions,
            recipes=self.recipes,
            refused={},
            dropped_recipes={},
            conflicts={(first, second): reason for first, second, reason in self.conflicts},
        )


class Sized(msgspec.Struct, frozen=True, kw_only=True, tag="sized"):
    """The profiling runs of one combination, from which its largest batch was derived.

    Attributes:
        settings: The methods.
        outcome: How they ended.
        reason: Why, if they failed.
        points: Their measurements, by growing batch.
        out_of_memory_at: The smallest batch that did not fit, if any.
        prediction: The memory at every batch that they predict, if they do.
        last: Whether nothing of the combination is timed: it does not run, or no batch fits.
        settled: The methods' calibration, which the timed trials use.
        wall_seconds: Their duration.
    """

    settings: tuple[MethodSetting, ...] = msgspec.field(name="uses")  # as the recorded tables call it
    outcome: str
    reason: str = ""
    points: tuple[SizePoint, ...] = ()
    out_of_memory_at: int | None = None
    prediction: MemoryPrediction | None = msgspec.field(default=None, name="foretold")
    last: bool = False
    settled: dict[str, str] = {}
    wall_seconds: float = 0.0

    @property
    def combination(self) -> Combination:
        """The methods on one device."""
        return Combination(self.settings)

    @property
    def forecast(self) -> MemoryModel | None:
        """A session's knowledge of the memory after these runs; ``None`` if not even one sample ran."""
        if not self.points:
            return None
        sizing = Sizing(points=self.points, out_of_memory_at=self.out_of_memory_at, loss_trace=())
        return MemoryModel.fit(sizing, self.prediction)


class Timed(msgspec.Struct, frozen=True, kw_only=True, tag="timed"):
    """One combination at one batch, measured over full steps.

    Attributes:
        settings: The methods.
        batch: Samples per step, in one micro-batch.
        reference: Whether it is a repetition of plain training to track the machine's drift.
        last: Whether it is the last line of its combination and completes it.
        outcome: How the trial ended.
        reason: Why, if it failed.
        step_seconds: Median time of full steps.
        spread: Half of its 95 % confidence interval, relative.
        peak_bytes: Peak of the step.
        forward_peak_bytes: Peak during the forward pass.
        backward_peak_bytes: Peak during the backward pass.
        optimizer_peak_bytes: Peak during the optimizer step.
        plain_seconds: The latest step time of plain training at the reference batch.
        ratio: ``step_seconds / plain_seconds``.
        run: Number of the recording process: drift is tracked within one process.
        moment: Seconds since that process began.
        wall_seconds: Duration of the trial, including everything that is not timed.
    """

    settings: tuple[MethodSetting, ...] = msgspec.field(name="uses")  # as the recorded tables call it
    batch: int
    reference: bool = False
    last: bool = False
    outcome: str
    reason: str = ""
    step_seconds: float | None = None
    spread: float | None = None
    peak_bytes: int | None = None
    forward_peak_bytes: int | None = None
    backward_peak_bytes: int | None = None
    optimizer_peak_bytes: int | None = None
    plain_seconds: float | None = None
    ratio: float | None = None
    run: int
    moment: float
    wall_seconds: float = 0.0

    @property
    def combination(self) -> Combination:
        """The methods on one device."""
        return Combination(self.settings)


class Paired(msgspec.Struct, frozen=True, kw_only=True, tag="paired"):
    """One combination at one batch, timed in turn with plain training in one process.

    Attributes:
        settings: The methods.
        batch: Samples per step, in one micro-batch.
        ratio: Step time relative to that of plain training at the reference batch.
        error: Its relative standard error.
        blocks: Number of turns.
        seconds: Their duration.
    """

    settings: tuple[MethodSetting, ...] = msgspec.field(name="uses")  # as the recorded tables call it
    batch: int
    ratio: float
    error: float
    blocks: int
    seconds: float

    @property
    def combination(self) -> Combination:
        """The methods on one device."""
        return Combination(self.settings)


Line = Header | Sized | Timed | Paired


def read(path: Path) -> list[Line]:
    """The lines of a table in order; none if it does not exist."""
    return json_lines.read(path, msgspec.json.Decoder(Line))


def compress(path: Path) -> Path:
    """Write the compressed table next to the file: equal tables give equal files."""
    target = path.with_name(path.name + ".gz")
    target.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    return target
