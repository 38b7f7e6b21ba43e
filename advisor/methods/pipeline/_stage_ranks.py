"""The ranks of a pipeline, and what they tell each other outside of a schedule."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import torch
import torch.distributed as dist

from advisor.errors import MomadviseError, StageLostError
from advisor.training.processes.exchange import told

__all__ = ["PipelineRanks"]


class PipelineRanks:
    """The ranks of one pipeline.

    Args:
        group: Their process group; its timeout is how long a rank waits for another.
        device: From where the group sends.
        owners: The rank of each stage.
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device, owners: list[int]) -> None:
        self.group = group
        self.device = device
        self.owners = owners
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def told(self, value: Any, *, by: int) -> Any:
        """What one rank says, on all of them: tensors (which arrive on the device), numbers and text in containers."""
        with self.waiting():
            return told(value, self.group, self.device, by=by)

    def told_by_all(self, value: Any) -> list[Any]:
        """What every rank says, in their order."""
        return [self.told(value, by=rank) for rank in range(self.size)]

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Send a tensor to another rank, which must expect it."""
        with self.waiting():
            dist.send(tensor.detach().to(self.device).contiguous(), group=self.group, group_dst=to)

    def receive(self, like: torch.Tensor, by: int) -> torch.Tensor:
        """A tensor from another rank, of the shape and format of ``like``; it is written there."""
        with self.waiting():
            dist.recv(like, group=self.group, group_src=by)
        return like

    @contextlib.contextmanager
    def waiting(self) -> Generator[None, None, None]:
        """Context in which other ranks are waited for: if one does not answer, the error says so.

        Raises:
            StageLostError: A rank ended, or did not answer within the group's timeout.
        """
        try:
            yield
        except MomadviseError:
            raise
        except RuntimeError as error:
            if not _is_of_a_connection(error):
                raise
            raise StageLostError(
                f"every rank of a pipeline must take part in every step, but another one ended or did not answer rank "
                f"{self.rank} in time; its own output says why ({str(error).splitlines()[0]})"
            ) from error


_CONNECTION = (
    "connection closed",
    "connection reset",
    "connection refused",
    "connection was",
    "timed out",
    "timeout",
    "broken pipe",
    "gloo",
    "nccl",
    "socket",
)


def _is_of_a_connection(error: RuntimeError) -> bool:
    """Whether torch.distributed raised it, which mostly has no class of error for that."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return any(word in text for word in _CONNECTION)
