"""The first things to try where devices may divide the model: the cuts that an experienced person would try."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.methods.base import Method, Saves
from advisor.methods.setting import MethodSetting
from advisor.search.space.meshes import standing_bytes
from advisor.search.space.space import ResolvedRecipe, ResolvedSpace
from advisor.workload.facts import Facts

__all__ = ["cut_recipes"]


def cut_recipes(
    space: ResolvedSpace, methods: Mapping[str, Method], facts: Facts, limit_bytes: int | None
) -> tuple[ResolvedRecipe, ...]:
    """Recipes for the most devices: each differs from those before, and a space without meshes has none.

    - The smallest cut that is likely to fit, with the data divided among the rest of the devices.
    - Layers divided among as many devices of a machine as possible, and the blocks among the rest.
    - The model's parameters sharded along the data axis, alone.
    - Both: layers divided inside a machine, and their shards along the data axis.

    Args:
        space: The space, with its meshes.
        methods: Name -> method.
        facts: What the probe learned.
        limit_bytes: The most memory that each device may take, if known.
    """
    if not space.has_meshes:
        return ()
    count = space.gpu_counts[-1]
    found: list[ResolvedRecipe] = []
    for name, mesh, settings in _wanted(space, methods, facts, limit_bytes):
        combination = space.on_devices(settings, count, mesh)
        if combination is None or any(
            (one.settings, one.place) == (combination.settings, (count, mesh)) for one in found
        ):
            continue
        found.append(ResolvedRecipe(name=name, hand_tuned=False, settings=combination.settings, place=(count, mesh)))
    return tuple(found)


def _wanted(
    space: ResolvedSpace, methods: Mapping[str, Method], facts: Facts, limit_bytes: int | None
) -> Iterator[tuple[str, Mesh, tuple[MethodSetting, ...]]]:
    """Names, meshes and the way to divide the data where it is not the first."""
    count = space.gpu_counts[-1]
    meshes = space.meshes_on(count)
    cuts = [mesh for mesh in meshes if mesh != DATA_ONLY]
    if cuts:
        fitting = (mesh for mesh in cuts if limit_bytes is not None and standing_bytes(mesh, facts) <= limit_bytes)
        yield "smallest cut", next(fitting, cuts[-1] if limit_bytes is not None else cuts[0]), ()
        deepest = max(cuts, key=lambda mesh: (mesh.tensor, mesh.pipeline))
        if deepest.tensor > 1:
            yield "layers divided inside a machine", deepest, ()
    sharding = next(
        (axis.settings[0] for axis in space.axes if axis.divides and _shards(methods[axis.method])),
        None,
    )
    if sharding is None:
        return
    if DATA_ONLY in meshes:
        yield "sharded", DATA_ONLY, (sharding,)
    divided = [mesh for mesh in cuts if mesh.tensor > 1 and mesh.degree(MeshAxis.DATA, count) > 1]
    if divided:
        widest = max(divided, key=lambda mesh: (mesh.tensor, -mesh.pipeline))
        yield "sharded, and layers divided inside a machine", widest, (sharding,)


def _shards(method: Method) -> bool:
    """Whether each device keeps a share of the parameters, as along the data axis."""
    return method.axis is MeshAxis.DATA and Saves.PARAMETERS in method.saves
