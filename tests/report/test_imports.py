from __future__ import annotations

import subprocess
import sys

import pytest

ROOMS = "advisor.search.study.sampler, advisor.search.space.build_space, advisor.decide.choose, advisor.decide.effects"
REPORT = "advisor.report.answer, advisor.report.live, advisor.report.json_documents, advisor.report.catalogue_view"
PREDICT = "advisor.predict.roofline, advisor.report.why_time, advisor.report.json_documents, advisor.session.predict"


@pytest.mark.slow
def test_searching_deciding_and_reporting_load_no_torch_and_only_the_sampler_loads_optuna() -> None:
    code = (
        f"import sys; import {ROOMS.split(', ', 1)[1]}, {REPORT}, {PREDICT}; assert 'optuna' not in sys.modules; "
        f"import {ROOMS}; assert 'torch' not in sys.modules; assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
