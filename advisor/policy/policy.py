"""A policy: which methods, with which parameters, at which batch, on how many devices."""

from __future__ import annotations

import hashlib

import msgspec

from advisor.methods.use import MethodUse
from advisor.text.records import CountFromOne

__all__ = ["Policy"]


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A set of methods and a batch that can be applied, measured and written to a file.

    Attributes:
        methods: Methods in use, sorted by name (they are applied in the order of their stages).
        micro_batch: Samples per forward pass.
        accumulation_steps: Forward-backward passes per optimizer step.
        gpu_count: Devices that train together.
        settled: Method -> what it settled on when it was measured (``Training.settled``), which it then reuses.
    """

    methods: tuple[MethodUse, ...] = ()
    micro_batch: CountFromOne
    accumulation_steps: CountFromOne = 1
    gpu_count: CountFromOne = 1
    settled: dict[str, str] = {}

    def __post_init__(self) -> None:
        names = [method.name for method in self.methods]
        assert names == sorted(set(names)), f"methods must be sorted and distinct, got {names}"
        assert set(self.settled) <= set(names), f"only methods in use settle, got {sorted(self.settled)}"

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step over all devices."""
        return self.micro_batch * self.accumulation_steps * self.gpu_count

    @property
    def label(self) -> str:
        """The methods in words; ``"plain"`` without any."""
        return " + ".join(method.label for method in self.methods) or "plain"

    @property
    def key(self) -> str:
        """Stable identity: 16 hexadecimal digits of a hash over every field."""
        canonical = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]

    @property
    def combination_key(self) -> str:
        """Identity of the methods alone, without the batch."""
        canonical = msgspec.json.encode(self.methods, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]
