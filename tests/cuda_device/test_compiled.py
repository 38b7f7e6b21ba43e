"""Methods that compile, down to kernels that ptxas has assembled and the device is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Machine


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("compile", {"scope": "blocks"}), ("compile_budget", {"budget": 0.5})],
    ids=["blocks", "budget"],
)
def test_what_runs_are_kernels_that_were_compiled_here(
    name: str, parameters: dict[str, object], python: Python, tmp_path: Path
) -> None:
    script = f"""
import advisor, torch
from advisor.methods.use import use
from advisor.policy.policy import Policy
from tests.session.workloads import tiny
policy = Policy(methods=(use({name!r}, **{parameters!r}),), micro_batch=4)
training = advisor.apply_policy(policy, tiny.build_model(), device="cuda")
for _ in range(3):
    training.step(tiny.make_batch(4))
print(*training.notes)
"""
    trace, cache = tmp_path / "trace", tmp_path / "cache"
    variables = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "TRITON_CACHE_DIR": str(cache / "triton")}
    assert python(script, Machine(trace=trace), **variables) == "\n"
    kernels = {line.split("\t")[3] for line in trace.read_text().splitlines()}
    assert {one for one in kernels if one.startswith("triton_")}, kernels
    assert list(cache.rglob("*.cubin")), "ptxas has assembled them"
