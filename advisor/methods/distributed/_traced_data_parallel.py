"""The memory of DistributedDataParallel in a trace on fake tensors, where its reducer (no Python) cannot run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch import nn

__all__ = ["TracedDataParallel"]


class TracedDataParallel(nn.Module):
    """Holds a buffer for all gradients as the reducer does, and lets gradients be views into it if told so.

    Source: ``Reducer::initialize_buckets``, ``mark_variable_ready_dense`` and ``finalize_bucket_dense`` in
    ``torch/csrc/distributed/c10d/reducer.cpp`` of PyTorch. There is one buffer per format instead of buckets of 25 MiB:
    the bytes are the same.

    Args:
        module: Returns the loss.
        gradient_as_bucket_view: Whether gradients are views into the buffer; copied out of it otherwise.
        options: What else the wrapper is told has no part in its memory.
    """

    def __init__(self, module: nn.Module, *, gradient_as_bucket_view: bool, **options: Any) -> None:
        super().__init__()
        self.module = module
        self._as_views = gradient_as_bucket_view
        self._synchronizing = True
        self._views: dict[int, torch.Tensor] = {}
        sent = [parameter for parameter in module.parameters() if parameter.requires_grad]
        for dtype in dict.fromkeys(parameter.dtype for parameter in sent):
            alike = [parameter for parameter in sent if parameter.dtype == dtype]
            # A trace sees what is allocated, and splitting gives views.
            buffer = torch.empty(sum(one.numel() for one in alike), dtype=dtype, device=alike[0].device)
            parts = torch.split(buffer, [one.numel() for one in alike])
            self._views |= {id(one): part.view(one.shape) for one, part in zip(alike, parts, strict=True)}
        for parameter in sent:
            parameter.register_post_accumulate_grad_hook(self._averaged)  # type: ignore[no-untyped-call]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module returns."""
        return self.module(*inputs, **named)

    @contextlib.contextmanager
    def no_sync(self) -> Generator[None, None, None]:
        """Gradients are not averaged."""
        self._synchronizing = False
        try:
            yield
        finally:
            self._synchronizing = True

    def register_comm_hook(self, state: Any, hook: Callable[..., Any]) -> None:
        """Not followed.

        Raises:
            NotImplementedError: Always: what a hook makes of a buffer is its own.
        """
        raise NotImplementedError("a communication hook of DistributedDataParallel is not traced")

    def _check_reducer_finalized(self) -> None:
        """Every gradient is averaged where the hook ran."""

    def _averaged(self, parameter: torch.Tensor) -> None:
        if not self._synchronizing or parameter.grad is None:
            return
        view = self._views[id(parameter)]
        view.copy_(parameter.grad)
        if self._as_views:
            parameter.grad = view
        else:
            parameter.grad.copy_(view)
