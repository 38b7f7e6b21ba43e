"""What is asked of a session: every option, checked, before anything starts."""

from __future__ import annotations

import hashlib
import operator
from pathlib import Path

import msgspec

from advisor.errors import OptionError
from advisor.goal import Fidelity, Floor, GoalKind, Preference, Price
from advisor.options import TUNE, Option, options_of
from advisor.policy.baseline import Baseline
from advisor.policy.fingerprints import Asked
from advisor.search.propose.proposal import SamplerName
from advisor.text.ranges import MOST, check_above_zero, whole
from advisor.trial.nodes import Nodes
from advisor.workload.sizes import size_words
from advisor.workload.workload import WorkloadSource

__all__ = ["TuneRequest", "picks_of"]


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One tuning, as asked for."""

    source: WorkloadSource
    goal: GoalKind = GoalKind.FASTER
    device: str | None = None
    memory_limit_bytes: int | None = None
    fidelity: Fidelity | None = None
    search_space: str = "default"
    methods: tuple[str, ...] = ()
    sampler: SamplerName = SamplerName.MODEL
    storage: str | None = None
    trials: int = 40
    time_limit_seconds: float = 210.0
    global_batch: int | None = None
    baseline: Baseline | None = None
    gpu_counts: tuple[int, ...] | None = None
    nodes: Nodes = Nodes()
    price: Price | None = None
    usd_per_kilowatt_hour: float | None = None
    preference: Preference = Preference()
    floor: Floor | None = None
    wait_idle_seconds: float | None = None
    output: Path | None = None
    seed: int = 0
    wait: bool = False

    def check(self) -> None:
        """Check every option that can be checked without looking at the machine.

        Raises:
            OptionError: An option is outside its rule.
        """
        if not 0 < self.time_limit_seconds <= MOST:
            raise OptionError(
                f"--time-limit must be longer than zero and at most {MOST} s, but got {self.time_limit_seconds:g} s."
            )
        if self.storage is not None and self.goal is GoalKind.BIGGER:
            raise OptionError(
                "--storage belongs to --goal faster and cheapest, whose workers share what they measure, but the goal "
                f"is {self.goal.value!r}. Leave it out."
            )
        self._check_baseline()
        self._check_goal()

    def _check_baseline(self) -> None:
        """What is measured as the baseline must be for these devices."""
        if self.baseline is None:
            return
        count = self.baseline.policy.gpu_count
        if self.gpu_counts is not None and count not in self.gpu_counts:
            given = ",".join(map(str, self.gpu_counts))
            raise OptionError(
                f"--gpus must have the number of devices of the baseline, but {self.baseline.origin} is for "
                f"{count} and --gpus is {given}. Give --gpus {','.join(map(str, sorted({count, *self.gpu_counts})))}."
            )

    def _check_goal(self) -> None:
        """Options that belong to one goal are not taken by another, and each goal gets what it needs."""
        given = [
            (option, section.goal, value)
            for section in TUNE
            if section.goal
            for option in options_of(section)
            if (value := self._value(option)) is not None
        ]
        for option, goal, _ in given:
            if goal != self.goal.value:
                raise OptionError(f"{option.flag} belongs to --goal {goal}, but the goal is {self.goal.value!r}.")
        limits = [one.flag for one, _, _ in given if one.flag in ("--max-latency", "--max-cost", "--deadline")]
        if len(limits) > 1:
            raise OptionError(f"At most one preference picks the point, but got {' and '.join(limits)}. Keep one.")
        for option, _, value in given:
            if option.kind == "count":
                whole(value, option.flag, most=option.most or MOST)
            elif option.kind != "throughput":
                check_above_zero(value, option.flag)
        if self.preference.deadline_seconds is not None and self.preference.iterations is None:
            raise OptionError("--deadline needs --iterations: how many of them must be done by then.")
        if self.goal is GoalKind.BIGGER and self.floor is None:
            raise OptionError(
                "--goal bigger needs --min-throughput: samples per second such as 20, or 0.5x for half of what plain "
                "training reaches at the model's own size."
            )

    @property
    def model_size(self) -> dict[str, int | float]:
        """The one size of the model that is tuned, as the baseline says it; ``bigger`` begins from the model's own."""
        return {} if self.baseline is None or self.goal is GoalKind.BIGGER else self.baseline.model_size

    @property
    def asks_for_several(self) -> bool:
        """Whether somebody wants to train on several devices, instead of on what there happens to be."""
        return self.gpu_counts is not None or self.nodes.count > 1

    def _value(self, option: Option) -> object:
        value = operator.attrgetter(option.field or option.keyword)(self)
        return value.usd_per_hour if isinstance(value, Price) else value

    def asked(self, space_text: str) -> Asked:
        """Everything that decides what is measured except budgets (trials, time), source and hardware, as values.

        Price and preference only pick among what was measured, the sampler decides what is measured first, and figures
        do not depend on the seed: with another one it is the same study.

        Args:
            space_text: The search space's content, so that an edited space is another request.
        """
        floor = self.floor or Floor()
        stated: Asked = {
            "goal": self.goal.value,
            "memory_limit_bytes": self.memory_limit_bytes,
            "fidelity": None if self.fidelity is None else self.fidelity.value,
            "search_space": hashlib.sha256(space_text.encode()).hexdigest()[:8],
            "global_batch": self.global_batch,
            "gpus": None if self.gpu_counts is None else ",".join(map(str, self.gpu_counts)),
            "machines": self.nodes.count,
            "min_samples_per_second": floor.samples_per_second,
            "min_share_of_baseline": floor.share_of_baseline,
            **msgspec.structs.asdict(self.source.stated),
            "baseline": None if self.baseline is None else _in_words(self.baseline),
        }
        return {name: value for name, value in stated.items() if value is not None}

    @property
    def options_again(self) -> dict[str, str]:
        """Flag -> value of what :meth:`asked` has only as a digest of the space, of the device, and of its number.

        The number is also in :meth:`asked`, given or found.
        """
        typed = {"--device": self.device, "--methods": ",".join(self.methods), "--search-space": self.search_space}
        if self.gpu_counts is not None:
            typed["--gpus"] = ",".join(map(str, self.gpu_counts))
        return {flag: value for flag, value in typed.items() if value and value != "default"}

    def fingerprint(self, space_text: str) -> str:
        """Hash over what was asked for."""
        return hashlib.sha256(msgspec.json.encode(self.asked(space_text))).hexdigest()[:16]


def _in_words(own: Baseline) -> str:
    policy = own.policy
    size = f" at {size_words(own.model_size)}" if own.model_size else ""
    return f"{policy.label}, batch {policy.micro_batch} x {policy.accumulation_steps}{size}"


def picks_of(price: Price | None, usd_per_kilowatt_hour: float | None, preference: Preference) -> Asked:
    """What only picks among measurements, as values."""
    picks: Asked = {
        "price": None if price is None else price.usd_per_hour,
        "kwh_price": usd_per_kilowatt_hour,
        **msgspec.structs.asdict(preference),
    }
    return {name: value for name, value in picks.items() if value is not None}
