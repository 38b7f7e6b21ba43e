"""Collectives among the ranks of a tensor-parallel group, between processes or, to try a plan, between threads."""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives  # noqa: F401  # It defines the operators.

from advisor.errors import MethodRefusedError
from advisor.training.unsaved import Unsaved

__all__ = ["ALL_GATHER", "ALL_REDUCE", "REDUCE_SCATTER", "ProcessRanks", "Ranks", "in_threads"]

_T = TypeVar("_T")
_PATIENCE_SECONDS = 120.0

ALL_REDUCE = torch.ops._c10d_functional.all_reduce.default
ALL_GATHER = torch.ops._c10d_functional.all_gather_into_tensor.default
REDUCE_SCATTER = torch.ops._c10d_functional.reduce_scatter_tensor.default


class Ranks(Unsaved, abc.ABC):
    """One rank among those that share a block. Copies of a model go on using the same group.

    Args:
        rank: Number of this rank in the group.
        size: How many there are.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size

    @abc.abstractmethod
    def summed(self, own: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""

    @abc.abstractmethod
    def largest(self, own: torch.Tensor) -> torch.Tensor:
        """The largest over all ranks, element by element."""

    @abc.abstractmethod
    def gathered(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """The parts of all ranks, one after the other, contiguous in memory."""

    @abc.abstractmethod
    def scattered_sum(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of the sum over all ranks."""

    def part(self, whole: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of a tensor that all ranks hold, as a copy.

        Raises:
            MethodRefusedError: The parts would not be equal; raised before anything is sent.
        """
        self.require_divisible(whole, dim)
        return whole.chunk(self.size, dim)[self.rank].clone(memory_format=torch.contiguous_format)

    def require_divisible(self, whole: torch.Tensor, dim: int) -> None:
        """A length that the ranks divide: gloo ends the process where they do not."""
        if whole.size(dim) % self.size:
            raise MethodRefusedError(
                f"sequence=True needs a number of tokens that the tensor-parallel degree divides, but there are "
                f"{whole.size(dim)} tokens and {self.size} ranks; pad the sequences or use sequence=False"
            )


class ProcessRanks(Ranks):
    """Processes, by torch's functional operators: those in place write to tensors that selective contexts keep.

    Args:
        group: The tensor-parallel group.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        super().__init__(dist.get_rank(group), dist.get_world_size(group))
        self.group = group

    def summed(self, own: torch.Tensor) -> torch.Tensor:
        """The sum over all ranks."""
        return _waited(ALL_REDUCE(own.contiguous(), "sum", self.group.group_name))

    def largest(self, own: torch.Tensor) -> torch.Tensor:
        """The largest over all ranks."""
        return _waited(ALL_REDUCE(own.contiguous(), "max", self.group.group_name))

    def gathered(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """The parts of all ranks."""
        whole = _waited(ALL_GATHER(own.movedim(dim, 0).contiguous(), self.size, self.group.group_name))
        return whole.movedim(0, dim).contiguous()

    def scattered_sum(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        """This rank's part of the sum."""
        self.require_divisible(own, dim)
        part = _waited(REDUCE_SCATTER(own.movedim(dim, 0).contiguous(), "sum", self.size, self.group.group_name))
        return part.movedim(0, dim).contiguous()


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    waited: torch.Tensor = torch.ops._c10d_functional.wait_tensor.default(tensor)
    return waited


class _Table:
    """Where the threads lay what they exchange."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.laid: list[torch.Tensor | None] = [None] * size

    def exchanged(self, rank: int, own: torch.Tensor) -> list[torch.Tensor]:
        self.laid[rank] = own
        self.barrier.wait(_PATIENCE_SECONDS)
        found = [each for each in self.laid if each is not None]
        self.barrier.wait(_PATIENCE_SECONDS)
        if len({each.shape for each in found}) > 1:
            raise ValueError("ranks send tensors of different shapes")
        return found


class _ThreadRanks(Ranks):
    def __init__(self, rank: int, size: int, table: _Table) -> None:
        super().__init__(rank, size)
        self._table = table

    def summed(self, own: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._table.exchanged(self.rank, own)).sum(0)

    def largest(self, own: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._table.exchanged(self.rank, own)).amax(0)

    def gathered(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.cat(self._table.exchanged(self.rank, own), dim)

    def scattered_sum(self, own: torch.Tensor, dim: int) -> torch.Tensor:
        return self.part(self.summed(own), dim)


def in_threads(size: int, function: Callable[[Ranks], _T]) -> list[_T]:
    """What ``function`` returns for each rank, with ranks that are threads of this process.

    Raises:
        Exception: The first that a rank raised; the others do not wait for it.
    """
    table = _Table(size)
    answers: list[Any] = [None] * size
    errors: list[Exception] = []

    def run(rank: int) -> None:
        try:
            answers[rank] = function(_ThreadRanks(rank, size, table))
        except threading.BrokenBarrierError as error:
            errors.append(error)
        except Exception as error:
            errors.insert(0, error)
            table.barrier.abort()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return answers
