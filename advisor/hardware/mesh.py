"""The mesh of a policy: along which axes its devices divide the work."""

from __future__ import annotations

import enum

import msgspec

from advisor.text.records import CountFromOne

__all__ = ["DATA_ONLY", "Mesh", "MeshAxis"]


class MeshAxis(enum.Enum):
    """What the devices along one axis of a mesh divide among each other."""

    DATA = "data"
    """The samples of a batch."""
    TENSOR = "tensor"
    """Each layer of the model."""
    PIPELINE = "pipeline"
    """The model's sequence of blocks."""


class Mesh(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Degrees of the axes that divide the model; the data axis has the rest of a policy's devices.

    Devices are numbered with the tensor axis innermost, then data, then pipeline, so that the devices of a tensor axis
    are next to each other and share a machine.

    Attributes:
        tensor: Devices that divide each layer.
        pipeline: Devices that divide the sequence of blocks.
    """

    tensor: CountFromOne = 1
    pipeline: CountFromOne = 1

    @property
    def model_degree(self) -> int:
        """Devices that hold one model together."""
        return self.tensor * self.pipeline

    def degree(self, axis: MeshAxis, gpu_count: int) -> int:
        """Devices along an axis of ``gpu_count`` devices in all."""
        if axis is MeshAxis.DATA:
            return gpu_count // self.model_degree
        return self.tensor if axis is MeshAxis.TENSOR else self.pipeline

    def divided(self, gpu_count: int) -> tuple[MeshAxis, ...]:
        """The axes of more than one device."""
        return tuple(axis for axis in MeshAxis if self.degree(axis, gpu_count) > 1)

    def distinct_ranks(self, gpu_count: int) -> range:
        """One rank for each part of the model that differs in memory: stages do, copies and slices of layers do not."""
        return range(0, gpu_count, gpu_count // self.pipeline)

    def label(self, gpu_count: int) -> str:
        """The axes above 1 in words, e.g. ``"2 data x 4 tensor"``; empty if only data is divided."""
        if self == DATA_ONLY:
            return ""
        degrees = {axis: self.degree(axis, gpu_count) for axis in (MeshAxis.DATA, MeshAxis.PIPELINE, MeshAxis.TENSOR)}
        return " x ".join(f"{degree} {axis.value}" for axis, degree in degrees.items() if degree > 1)

    def on_devices(self, gpu_count: int) -> str:
        """What follows the methods of a policy: ``" on 4 devices (2 data x 2 tensor)"``; empty for one device."""
        if gpu_count == 1:
            return ""
        label = self.label(gpu_count)
        return f" on {gpu_count} devices ({label})" if label else f" on {gpu_count} devices"


DATA_ONLY = Mesh()
"""Every device holds a whole model (or what a method of the data axis leaves of it)."""
