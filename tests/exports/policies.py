"""Policies as an export is given them."""

from __future__ import annotations

from collections.abc import Iterator

from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy

__all__ = ["every_setting", "file_of"]

_BENEATH = {"gradient_compression": (use("ddp", bucket_views=True, static_graph=False),)}


def file_of(*settings: MethodSetting, micro_batch: int = 4, accumulation_steps: int = 2) -> PolicyFile:
    """A policy file with some methods and what they build on, on as many devices as they need."""
    beneath = [below for one in settings for below in _BENEATH.get(one.name, ())]
    methods = tuple(sorted((*settings, *beneath), key=lambda one: one.name))
    if not all(get_method(one.name).accumulates for one in methods):
        accumulation_steps = 1
    axes = {get_method(one.name).axis for one in methods}
    mesh = Mesh(tensor=2 if MeshAxis.TENSOR in axes else 1, pipeline=2 if MeshAxis.PIPELINE in axes else 1)
    policy = Policy(
        methods=methods,
        micro_batch=micro_batch,
        accumulation_steps=accumulation_steps,
        gpu_count=mesh.model_degree * (2 if MeshAxis.DATA in axes else 1),
        mesh=mesh,
    )
    return PolicyFile(policy=policy)


def every_setting() -> Iterator[MethodSetting]:
    """Every method of the catalogue with every combination of its parameters' values."""
    for method in CATALOGUE:
        yield from settings_of(method)
