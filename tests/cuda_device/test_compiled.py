"""Methods that compile, down to kernels that ptxas has assembled and the device is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Machine


@pytest.mark.slow
def test_what_runs_are_kernels_that_were_compiled_here(python: Python, tmp_path: Path) -> None:
    script = """
import advisor
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from tests.session.workloads import tiny
for setting in (use("compile", scope="blocks"), use("compile_budget", budget=0.5)):
    policy = Policy(methods=(setting,), micro_batch=4)
    training = advisor.apply_policy(policy, tiny.build_model(), device="cuda")
    for _ in range(3):
        training.step(tiny.make_batch(4))
    assert not training.notes, training.notes
    training.close()
"""
    trace, cache = tmp_path / "trace", tmp_path / "cache"
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    python(script, Machine(trace=trace), **variables)
    launches = [line.split("\t") for line in trace.read_text().splitlines()]
    compiled = {name: int(count) for _, count, _, name in launches if name.startswith("triton_")}
    assert compiled, {name for *_, name in launches}
    assert sum(compiled.values()) >= 2 * 3 * 6, "each of six blocks in each of three steps, under both methods"
    assert list(cache.rglob("*.cubin")), "ptxas has assembled them"
