from __future__ import annotations

import torch

from advisor.measure import arithmetic


def test_every_format_of_this_device_has_a_rate() -> None:
    rates = arithmetic.matmul_rates(torch.device("cpu"))
    assert {"float32", "bfloat16"} <= set(rates)
    assert rates["float32"] > 1e8
