"""Trainers train as the wrapper does in a process that began with variables, such as those of their exports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.arguments import variables_of
from tests.exports.cells import UNDER_VARIABLES, VARIABLES
from tests.exports.policies import file_of

pytestmark = pytest.mark.slow


def test_trainers_reach_the_wrappers_parameters_under_the_variables_of_their_exports(tmp_path: Path) -> None:
    asked = [dict(variables_of(export_policy(file_of(*VARIABLES), get_target(trainer)))) for trainer in UNDER_VARIABLES]
    assert all(one == asked[0] for one in asked)
    assert len(asked[0]) == 3
    count = next(setting.parameters["count"] for setting in VARIABLES if "count" in setting.parameters)
    found = json.loads(said_by("tests.exports.under_variables", tmp_path, asked[0]).splitlines()[-1])
    assert found == {"trained": list(UNDER_VARIABLES), "threads": count}


def test_the_trainer_with_ligers_kernels_reaches_the_wrappers_parameters(tmp_path: Path) -> None:
    """As Triton's interpreter runs them on a CPU."""
    pytest.importorskip("liger_kernel")
    said_by("tests.exports.by_liger", tmp_path, {"TRITON_INTERPRET": "1"})


def test_llamafactory_with_ligers_kernels_reaches_the_wrappers_parameters(tmp_path: Path) -> None:
    """The same."""
    pytest.importorskip("llamafactory")
    pytest.importorskip("liger_kernel")
    said_by("tests.exports.by_liger", tmp_path, {"TRITON_INTERPRET": "1"}, "llamafactory")


def said_by(module: str, folder: Path, variables: dict[str, str], *more: str) -> str:
    """What a module says that ends well in a process that begins with these variables."""
    run = subprocess.run(
        [sys.executable, "-m", module, str(folder), *more],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout
