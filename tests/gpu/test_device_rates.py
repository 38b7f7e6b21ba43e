from __future__ import annotations

import pytest
import torch

from advisor.measure.speed.device_rates import device_rates

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.mark.usefixtures("hardware")
def test_a_gpu_has_the_rates_of_its_link_and_its_tensor_cores(cuda: torch.device) -> None:
    rates = device_rates(cuda)
    assert rates.to_device_bytes_per_second is not None
    assert rates.to_host_bytes_per_second is not None
    assert rates.bandwidth.at(2**30) > rates.to_device_bytes_per_second
    assert rates.launch_seconds is not None
    assert rates.launch_seconds < 1e-3
    if torch.cuda.get_device_capability(cuda) >= (8, 0):
        assert rates.matmul("tf32") > rates.matmul("float32")
        assert rates.matmul("bfloat16") > rates.matmul("tf32")
