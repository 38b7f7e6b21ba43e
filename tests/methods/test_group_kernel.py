"""The Triton kernels make the bits of the plain path; here they are interpreted, in a process that asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import warnings

import torch

from advisor.methods.activations import _group_code as plain
from advisor.methods.activations import _group_kernel as kernel

warnings.simplefilter("ignore")  # numpy, which interprets, warns of infinities as torch does not
normal = torch.randn(600, generator=torch.Generator().manual_seed(0))
broken = torch.tensor([0.0, float("-inf"), 0.0, 2.0] * 5)
for dtype in (torch.float32, torch.float16, torch.float64, torch.bfloat16):
    for bits in (8, 4, 2):
        for flat in (normal, normal[:5], normal.relu(), torch.zeros(300), broken):
            flat, seed = flat.to(dtype), 0xDEADBEEF
            buffer = plain.encode_groups(flat, bits=bits, seed=seed)
            assert torch.equal(kernel.encode_groups(flat, bits=bits, seed=seed), buffer), (dtype, bits)
            back = plain.decode_groups(buffer, count=flat.numel(), dtype=dtype, bits=bits)
            again = kernel.decode_groups(buffer, count=flat.numel(), dtype=dtype, bits=bits)
            if dtype is torch.bfloat16:  # The interpreter cuts off where hardware rounds.
                torch.testing.assert_close(again, back, rtol=2**-7, atol=0.0, equal_nan=True)
                assert torch.equal(again > 0, back > 0)
            else:
                torch.testing.assert_close(again, back, rtol=0.0, atol=0.0, equal_nan=True)
assert plain.decode_groups(
    kernel.encode_groups(torch.tensor([1.0, float("nan"), 3.0]), bits=4, seed=1), count=3, dtype=torch.float32, bits=4
).isnan().all()
print("all of it")
"""


def test_given_the_same_seed_the_kernels_make_the_bits_of_the_plain_path() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "all of it" in done.stdout
