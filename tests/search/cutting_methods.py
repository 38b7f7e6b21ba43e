"""Made-up methods that divide a model among devices, beside those of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pytest

import advisor.methods.catalogue
import advisor.methods.compose
import advisor.search.space.build_space
from advisor.goal import Fidelity
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.methods.base import Method, Parameter, Saves, Stage, Verdict
from advisor.methods.setting import ParameterValue
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["WITH_CUTS", "Sliced", "Stages", "add_cuts"]


class Sliced(Method):
    """Divides every layer; with ``sequence`` also the tokens."""

    name = "sliced"
    summary = "Divides every layer."
    fidelity = Fidelity.ROUNDING
    saves = frozenset({Saves.PARAMETERS})
    costs = pays = does_not_pay = "nothing"
    stage = Stage.PARALLELIZE
    parameters = (Parameter("sequence", (True, False), "divide the tokens too"),)
    axis = MeshAxis.TENSOR
    citation = "made up"

    def applicable(self, parameters: Mapping[str, ParameterValue], facts: Facts | None, hardware: Hardware) -> Verdict:
        """Always."""
        return Verdict.yes()

    def why_not_on(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts | None) -> str:
        """Tokens must be divided evenly."""
        tokens = None if facts is None else facts.tokens_per_sample
        if not parameters["sequence"] or tokens is None or tokens % mesh.tensor == 0:
            return ""
        return f"{tokens} tokens cannot be divided among {mesh.tensor} devices; pad samples to a multiple of them"

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Nothing."""


class Stages(Sliced):
    """Divides the sequence of blocks."""

    name = "stages"
    parameters = ()
    axis = MeshAxis.PIPELINE

    def why_not_on(self, parameters: Mapping[str, ParameterValue], mesh: Mesh, facts: Facts | None) -> str:
        """Nothing is in the way."""
        return ""


WITH_CUTS = (*advisor.methods.catalogue.CATALOGUE, Sliced(), Stages())


def add_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the catalogue have them."""
    for module in (advisor.methods.catalogue, advisor.methods.compose, advisor.search.space.build_space):
        monkeypatch.setattr(module, "CATALOGUE", WITH_CUTS)
    monkeypatch.setitem(advisor.search.space.build_space.build_space.__kwdefaults__, "catalogue", WITH_CUTS)
