"""A policy: which methods, with which parameters, at which batch, on how many devices."""

from __future__ import annotations

import hashlib

import msgspec

from advisor.hardware.mesh import DATA_ONLY, Mesh
from advisor.methods.setting import MethodSetting
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
        mesh: How the devices divide the model; read it through :attr:`axes`. ``DATA_ONLY`` is stored as unset, so that
            keys and files of policies that divide only the data stay what they were before meshes.
    """

    methods: tuple[MethodSetting, ...] = ()
    micro_batch: CountFromOne
    accumulation_steps: CountFromOne = 1
    gpu_count: CountFromOne = 1
    settled: dict[str, str] = {}
    mesh: Mesh | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.mesh == DATA_ONLY:
            msgspec.structs.force_setattr(self, "mesh", msgspec.UNSET)
        degree = self.axes.model_degree
        assert self.gpu_count % degree == 0, f"a model on {degree} devices, of {self.gpu_count}"
        names = [method.name for method in self.methods]
        assert names == sorted(set(names)), f"methods must be sorted and distinct, got {names}"
        assert set(self.settled) <= set(names), f"only methods in use settle, got {sorted(self.settled)}"

    @property
    def axes(self) -> Mesh:
        """How the devices divide the model."""
        return DATA_ONLY if self.mesh is msgspec.UNSET else self.mesh

    @property
    def data_degree(self) -> int:
        """Shares that a batch is divided into: the number of models that train together."""
        return self.gpu_count // self.axes.model_degree

    @property
    def global_batch(self) -> int:
        """Samples per optimizer step over all devices."""
        return self.micro_batch * self.accumulation_steps * self.data_degree

    @property
    def label(self) -> str:
        """What records call its methods; ``"plain"`` without any."""
        return " + ".join(method.label for method in self.methods) or "plain"

    @property
    def words(self) -> str:
        """Its methods on one line, as people say them; ``"plain"`` without any."""
        return " + ".join(method.words for method in self.methods) or "plain"

    @property
    def key(self) -> str:
        """Stable identity: 16 hexadecimal digits of a hash over every field."""
        canonical = msgspec.json.encode(self, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]

    @property
    def combination_key(self) -> str:
        """Identity of the methods and the mesh, without the batch."""
        identity = self.methods if self.mesh is msgspec.UNSET else (self.methods, self.mesh)
        canonical = msgspec.json.encode(identity, order="deterministic")
        return hashlib.sha256(canonical).hexdigest()[:16]
