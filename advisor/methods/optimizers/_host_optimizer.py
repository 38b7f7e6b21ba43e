"""An optimizer whose parameters, gradients and state are on the host, for a model that is on a device."""

from __future__ import annotations

from typing import Any

import torch
from torch._guards import detect_fake_mode

from advisor.errors import MethodRefusedError
from advisor.methods.optimizers.optimizer_class import traits_of
from advisor.training.memory_side import Side, memory_of
from advisor.training.optimizer.device_parameter import stand_in_for

__all__ = ["HostStep", "host_bytes"]


def host_bytes(optimizer: torch.optim.Optimizer, *, gradients: int) -> int:
    """Bytes of the trained parameters, so many gradients of each, and the state that the optimizer will keep."""
    traits = traits_of(optimizer)
    return sum(
        (1 + gradients) * p.nbytes + traits.state_bytes(p.shape, p.element_size(), group)
        for group in optimizer.param_groups
        for p in group["params"]
        if p.requires_grad
    )


class HostStep:
    """Lets an optimizer, and the state it has, work on host copies of the parameters. The object and its groups stay.

    Each gradient goes to the host as soon as the backward pass has made it, and is added there to those of earlier
    micro-batches in the same order; on a CUDA device this overlaps with the rest of the backward pass. The optimizer
    steps on the host, and the parameters that it changed go back. Parameters changed on the device since (by a loaded
    state) are fetched before the step; torch counts such changes, except those through ``.data``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        stream = None
        if device.type == "cuda" and detect_fake_mode() is None:
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._copies: list[_Copy] = []
        for group in optimizer.param_groups:
            members = group["params"]
            for place, parameter in enumerate(members):
                if parameter.requires_grad:
                    copy = _Copy(parameter, stream)
                    self._copies.append(copy)
                    members[place] = copy.host
                    if parameter in optimizer.state:
                        optimizer.state[copy.host] = _moved(optimizer.state.pop(parameter))
        optimizer.register_step_pre_hook(self._before_step)
        optimizer.register_step_post_hook(self._after_step)

    def complete_gradients(self) -> None:
        """Wait until all gradients of the step are on the host."""
        for copy in self._copies:
            copy.receive()

    def _before_step(self, *_: Any) -> None:
        for copy in self._copies:
            copy.receive()
            copy.fetch()

    def _after_step(self, *_: Any) -> None:
        for copy in self._copies:
            copy.send_back()


class _Copy:
    """A parameter of the model, and its copy with its gradient on the host."""

    def __init__(self, parameter: torch.nn.Parameter, stream: torch.cuda.Stream | None) -> None:
        self._parameter = parameter
        self._stream = stream
        self._arrived = None if stream is None else torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.host = torch.nn.Parameter(self._buffer(parameter))
        stand_in_for(self.host, parameter)
        self._version = -1
        self._total: torch.Tensor | None = None
        self._next: torch.Tensor | None = None
        self._waiting = False
        self.fetch(always=True)
        parameter.register_post_accumulate_grad_hook(self._take)  # type: ignore[no-untyped-call]

    def fetch(self, *, always: bool = False) -> None:
        """Copy the parameter to the host if a step will use it and it is no longer what was sent back."""
        if always or (self.host.grad is not None and self._parameter._version != self._version):
            with torch.no_grad():
                self.host.copy_(self._parameter)
            self._version = self._parameter._version

    def receive(self) -> None:
        """Wait for the gradient on its way, and add it to those before."""
        if self._arrived is not None:
            self._arrived.synchronize()
        if self._waiting:
            assert self.host.grad is not None
            assert self._next is not None
            self.host.grad.add_(self._next)
            self._waiting = False

    def send_back(self) -> None:
        """Copy the updated parameter to the device. Without a gradient, no step changes anything."""
        if self.host.grad is not None:
            with torch.no_grad():
                self._parameter.copy_(self.host, non_blocking=self._stream is not None)
            self._version = self._parameter._version

    def _take(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise MethodRefusedError(
                f"gradients must be dense to go to the host, but one is {gradient.layout}; build the embedding with "
                "sparse=False, or remove host_optimizer from the policy"
            )
        self.receive()  # That of the micro-batch before has long arrived.
        if self.host.grad is None:
            self._total = self._buffer(gradient) if self._total is None else self._total
            self._send(gradient, self._total)
            self.host.grad = self._total
        else:
            self._next = self._buffer(gradient) if self._next is None else self._next
            self._send(gradient, self._next)
            self._waiting = True
        parameter.grad = None

    def _send(self, gradient: torch.Tensor, target: torch.Tensor) -> None:
        if self._stream is None or self._arrived is None:
            target.copy_(gradient)
            return
        self._stream.wait_stream(torch.cuda.current_stream(gradient.device))
        with torch.cuda.stream(self._stream):
            target.copy_(gradient, non_blocking=True)
            self._arrived.record(self._stream)
        gradient.record_stream(self._stream)  # Its memory is not reused until it was read.

    def _buffer(self, like: torch.Tensor) -> torch.Tensor:
        """Host memory for a tensor; page-locked for a CUDA device, so that copies need not wait."""
        with memory_of(Side.HOST):
            return torch.empty_like(like, device="cpu", pin_memory=self._stream is not None, requires_grad=False)


def _moved(entries: dict[str, Any]) -> dict[str, Any]:
    return {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in entries.items()}
