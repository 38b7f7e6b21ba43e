"""What an export leaves to the environment: trainers in a process that began with it train as the wrapper does."""

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
    run = subprocess.run(
        [sys.executable, "-m", "tests.exports.under_variables", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, **asked[0]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found == {"trained": list(UNDER_VARIABLES), "threads": count}
