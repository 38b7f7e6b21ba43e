"""The goal of a search, and the quantities that it keeps fixed."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["Fidelity", "Floor", "Goal", "GoalKind", "Preference", "Price"]


class GoalKind(enum.Enum):
    """The goals of the evaluation paper (Liu 2023, section 3)."""

    FASTER = "faster"
    BIGGER = "bigger"
    CHEAPEST = "cheapest"


class Fidelity(enum.Enum):
    """How far a method's training may differ from plain training, from least to most.

    ``EXACT``: bit-equal gradients. ``ROUNDING``: float sums in another order. ``PRECISION``: a lower float
    format. ``LOSSY``: information is dropped. ``MODEL``: what is learned changes.
    """

    EXACT = "exact"
    ROUNDING = "rounding"
    PRECISION = "precision"
    LOSSY = "lossy"
    MODEL = "model"

    @property
    def rank(self) -> int:
        """Position from 0 (exact) to 4 (model)."""
        return list(Fidelity).index(self)

    def allows(self, other: Fidelity) -> bool:
        """Whether a ceiling of this class admits ``other``."""
        return other.rank <= self.rank


class Price(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The price of an hour of one device.

    Attributes:
        usd_per_hour: In US dollars.
        source: A document, or the option ``--price``.
        date: As the source states it.
    """

    usd_per_hour: float
    source: str
    date: str


class Preference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``cheapest``: which point of the frontier to pick. At most one limit is set; without any it is the knee.

    Attributes:
        max_latency_seconds: Pick the cheapest point with at most this time per iteration.
        max_cost_usd: Pick the fastest point with at most this cost per iteration (for all ``iterations``, if given).
        deadline_seconds: Pick the cheapest point that finishes ``iterations`` within this time.
        iterations: Iterations of the whole run, for which time and cost are also shown.
    """

    max_latency_seconds: float | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None
    iterations: int | None = None


class Floor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``bigger``: the throughput that a larger model must keep. Exactly one of the two is set.

    Attributes:
        samples_per_second: Absolute.
        share_of_baseline: Relative to plain training at the model's own size.
    """

    samples_per_second: float | None = None
    share_of_baseline: float | None = None


class Goal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A goal and its fixed quantities.

    Attributes:
        kind: Which metric is optimized.
        global_batch: Samples per optimizer step, if fixed; ``None`` lets the batch vary.
        fidelity: The worst class of method that may win.
        memory_limit_bytes: The most memory of one device that training may take (already less what this process holds);
            :meth:`limit_on` gives the share of each of several.
        shares_memory: Whether devices share that memory, as processes on a CPU do.
        gpu_counts: Numbers of devices that may train together, ascending.
        machines: How many machines have equal shares of several devices.
        usd_per_kilowatt_hour: Price of energy, if stated.
        own_settings: Where the baseline was read from, if it is the user's own settings and not plain training.
        kept_methods: Its methods that change what is learned: whoever leaves one out learns something else.
    """

    kind: GoalKind
    global_batch: int | None
    fidelity: Fidelity
    memory_limit_bytes: int
    gpu_counts: tuple[int, ...] = (1,)
    machines: int = 1
    price: Price | None = None
    usd_per_kilowatt_hour: float | None = None
    preference: Preference = Preference()
    floor: Floor | None = None
    shares_memory: bool = False
    own_settings: str = ""
    kept_methods: tuple[str, ...] = ()

    def sharers(self, gpu_count: int) -> int:
        """How many devices that train together share one memory: on a CPU, those of one machine."""
        return -(-gpu_count // self.machines) if self.shares_memory else 1

    def limit_on(self, gpu_count: int) -> int:
        """The most memory that each of ``count`` devices may take when they train together."""
        return self.memory_limit_bytes // self.sharers(gpu_count)
