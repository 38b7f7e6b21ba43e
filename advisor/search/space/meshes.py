"""Which meshes some devices may form for a workload, and why they may form no others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from advisor.goal import Fidelity
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.methods.compose import worst_fidelity
from advisor.text.units import format_count
from advisor.workload.facts import Facts

__all__ = ["MeshRules", "Meshes", "find_meshes", "standing_bytes"]

_BLOCKS_OF_A_STAGE = 2
"""Fewest blocks of a stage: with fewer, stages are too unequal to keep each other busy, and no schedule can give a
device several stages."""

_STANDING_TENSORS = 4
"""A parameter, its gradient, and what an optimizer such as Adam keeps of it: two tensors of the same size."""


class MeshRules(msgspec.Struct, frozen=True, kw_only=True):
    """What decides on meshes, beside the number of devices.

    Attributes:
        facts: What the probe learned.
        owned: The axes that some method of the space divides.
        fidelity: The ceiling.
        global_batch: Samples per optimizer step over all devices, if they are fixed.
        machines: How many machines have equal shares of the devices.
    """

    facts: Facts
    owned: frozenset[MeshAxis]
    fidelity: Fidelity = Fidelity.MODEL
    global_batch: int | None = None
    machines: int = 1

    def why_not(self, mesh: Mesh, gpu_count: int) -> str:
        """Why devices may not form a mesh; empty if they may."""
        for axis in mesh.divided(gpu_count):
            if axis not in self.owned:
                return f"nothing in the search space that applies divides the {axis.value} axis"
        shares = mesh.degree(MeshAxis.DATA, gpu_count)
        if self.global_batch is not None and self.global_batch % shares:
            return f"a global batch of {self.global_batch} cannot be split into {shares} equal shares"
        if mesh == DATA_ONLY:
            return ""
        return (
            self._why_no_tensor(mesh, gpu_count)
            or self._why_no_pipeline(mesh, shares)
            or self._why_not_within_fidelity(mesh, gpu_count)
        )

    def _why_no_tensor(self, mesh: Mesh, gpu_count: int) -> str:
        if mesh.tensor == 1:
            return ""
        of_each_machine = gpu_count // self.machines
        if of_each_machine % mesh.tensor:
            return (
                f"a tensor axis must stay inside a machine, and of {gpu_count} devices each of "
                f"{format_count(self.machines, 'machine')} has {of_each_machine}"
            )
        if mesh.tensor in self.facts.tensor_degrees:
            return ""
        unknown = f"the probe has not sliced the model's layers for {mesh.tensor} devices"
        return self.facts.tensor_refusals.get(mesh.tensor, unknown)

    def _why_no_pipeline(self, mesh: Mesh, shares: int) -> str:
        stages, facts = mesh.pipeline, self.facts
        if stages == 1:
            return ""
        if not facts.staged_blocks:
            return f"stages are made of blocks that run one after the other: {facts.staged_reason or 'none were found'}"
        if stages > facts.staged_blocks // _BLOCKS_OF_A_STAGE:
            return (
                f"each of {stages} stages must have {_BLOCKS_OF_A_STAGE} blocks or more, "
                f"and the model has {facts.staged_blocks}"
            )
        if facts.batch_layout.why_uncut:
            return f"stages work on several micro-batches at a time: {facts.batch_layout.why_uncut}"
        most = facts.batch_layout.most_samples
        samples = self.global_batch if most is None else min(most, self.global_batch or most)
        if samples is not None and samples // shares < stages:
            return (
                f"{stages} stages need as many micro-batches or more, and each of {shares} shares of "
                f"{format_count(samples, 'sample')} has {samples // shares}"
            )
        return ""

    def _why_not_within_fidelity(self, mesh: Mesh, gpu_count: int) -> str:
        passes = mesh.pipeline  # a stage sees its share of a batch in as many parts or more
        needed = worst_fidelity((), accumulation_steps=passes, facts=self.facts, gpu_count=gpu_count, mesh=mesh)
        if self.fidelity.allows(needed):
            return ""
        cause = "BatchNorm takes its statistics over each part" if self.facts.has_batchnorm else ""
        cause = cause or self.facts.batch_layout.changes_when_split or "sums over parts are in another order"
        return f"it splits a batch, and {cause}: its fidelity is {needed.value}, of at most {self.fidelity.value}"


class Meshes(msgspec.Struct, frozen=True, kw_only=True):
    """The meshes of each number of devices.

    Attributes:
        feasible: Number of devices -> its meshes: only the data divided comes first, then the fewest devices to a
            model, and of these those that divide layers before those that divide the sequence of blocks.
        refused: Number of devices and mesh -> why they may not form it.
    """

    feasible: dict[int, tuple[Mesh, ...]]
    refused: dict[tuple[int, Mesh], str]

    @property
    def refusals(self) -> dict[str, str]:
        """What is shown of the refused ones: one entry for what has the same reason everywhere."""
        found: dict[str, str] = {}
        for (gpu_count, mesh), reason in self.refused.items():
            if not self.feasible[gpu_count]:
                continue  # there is no way to train on so many devices, which is said elsewhere
            alone = next((axis for axis in MeshAxis if _only(axis, mesh) == mesh), None)
            label = f"{alone.value} axis of {mesh.model_degree}" if alone else f"mesh{mesh.on_devices(gpu_count)}"
            if reason not in found.values():
                found.setdefault(label, reason)
        return found


def find_meshes(gpu_counts: Sequence[int], rules: MeshRules) -> Meshes:
    """List the meshes that each number of devices may form.

    Args:
        gpu_counts: Numbers of devices that may train together.
        rules: What decides.
    """
    feasible: dict[int, tuple[Mesh, ...]] = {}
    refused: dict[tuple[int, Mesh], str] = {}
    for gpu_count in gpu_counts:
        reasons = {mesh: rules.why_not(mesh, gpu_count) for mesh in _divisions(gpu_count, rules.owned)}
        feasible[gpu_count] = tuple(mesh for mesh, reason in reasons.items() if not reason)
        refused |= {(gpu_count, mesh): reason for mesh, reason in reasons.items() if reason}
    return Meshes(feasible=feasible, refused=refused)


def _divisions(gpu_count: int, owned: Collection[MeshAxis]) -> list[Mesh]:
    """Every mesh of some devices that divides no axis without a method for it, the plainest first."""
    divisors = [degree for degree in range(1, gpu_count + 1) if gpu_count % degree == 0]
    tensors = divisors if MeshAxis.TENSOR in owned else [1]
    pipelines = divisors if MeshAxis.PIPELINE in owned else [1]
    found = [Mesh(tensor=tensor, pipeline=pipeline) for tensor in tensors for pipeline in pipelines]
    found = [mesh for mesh in found if gpu_count % mesh.model_degree == 0]
    return sorted(found, key=lambda mesh: (mesh.model_degree, mesh.pipeline))


def _only(axis: MeshAxis, mesh: Mesh) -> Mesh | None:
    """A mesh's degree of one axis, without the other."""
    if axis is MeshAxis.TENSOR and mesh.tensor > 1:
        return Mesh(tensor=mesh.tensor)
    return Mesh(pipeline=mesh.pipeline) if axis is MeshAxis.PIPELINE and mesh.pipeline > 1 else None


def standing_bytes(mesh: Mesh, facts: Facts) -> int:
    """A rough estimate of what a device holds of a model between steps, when nothing but the mesh divides it.

    It says which cut of a model to try first, not what fits: profiling runs do.
    """
    sliced = facts.tensor_degrees.get(mesh.tensor, 0.0)
    share = (1 - sliced + sliced / mesh.tensor) / mesh.pipeline
    return round(_STANDING_TENSORS * facts.parameter_bytes * share) + facts.buffer_bytes
