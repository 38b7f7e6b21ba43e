"""torch's sanitizer on the methods that use streams of their own: whatever a kernel reads, it has waited for."""

from __future__ import annotations

import sys

import pytest

from tests.cuda_device.machine import Machine

WATCHED = {"TORCH_CUDA_SANITIZER": "1"}

TRAINING = """
import advisor
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from tests.session.workloads import tiny
SAMPLES = 256  # whose activations have some MiB
settings = [use("swap", min_bytes=2**20), use("overlapped_swap", min_bytes=2**20, ahead=0.1), use("host_optimizer")]
for setting in settings:
    policy = Policy(methods=(setting,), micro_batch=SAMPLES)
    training = advisor.apply_policy(policy, tiny.build_model(), device="cuda")
    for _ in range(3):
        training.step(tiny.make_batch(SAMPLES))
    assert not training.notes, training.notes
    training.close()
"""


@pytest.mark.slow
def test_no_method_reads_what_another_stream_may_still_write() -> None:
    watched = Machine(time=0.05).run([sys.executable, "-c", TRAINING], WATCHED, capture_output=True, timeout=200)
    assert watched.returncode == 0, watched.stderr
    assert "data race" not in watched.stderr


@pytest.mark.slow
def test_a_stream_that_is_not_waited_for_is_seen() -> None:
    """Otherwise the test above could not fail."""
    script = "import torch\ntorch.cuda.Stream.wait_stream = lambda *_: None\n" + TRAINING
    watched = Machine(time=0.05).run([sys.executable, "-c", script], WATCHED, capture_output=True, timeout=200)
    assert watched.returncode != 0
    assert "CSAN detected a possible data race" in watched.stderr
