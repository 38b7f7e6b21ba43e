"""The input's gradient of a layer normalization is contiguous, whatever the gradient was that came."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.trace.storage_log import StorageLog

Layout = tuple[torch.Size, tuple[int, ...], torch.dtype]


def test_gradients_are_laid_out_as_those_of_plain_tensors() -> None:
    def gradients() -> list[Layout]:
        samples, statistics, weight = torch.empty(4, 49, 32), torch.empty(4, 49, 1), torch.empty(32)
        found = torch.ops.aten.native_layer_norm_backward.default(
            torch.empty(4, 32, 49).transpose(1, 2), samples, [32], statistics, statistics, weight, weight, [True] * 3
        )
        return [(one.shape, one.stride(), one.dtype) for one in found]

    plain = gradients()
    with FakeTensorMode():
        assert gradients() != plain, "torch has mended it"
        with StorageLog(torch.device("cpu")) as log:
            assert gradients() == plain
    assert [size for _, size in log.events].count(4 * 49 * 32 * 4) == 3, "one for samples, and two for the gradients"
