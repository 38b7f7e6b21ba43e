"""The batches of one trial: made by the user's ``make_batch``, this rank's share of them kept on the host."""

from __future__ import annotations

import statistics
import time
from typing import Any

import msgspec
import torch

from advisor.errors import FewerSamplesError, WorkloadError
from advisor.measure.batches.batches import make_batches, pinned, share_of
from advisor.measure.batches.model_identity import built_on_meta, identity_of
from advisor.measure.batches.reused import ReusedBatches
from advisor.measure.batches.sample_layout import find_layout, samples_in
from advisor.measure.batches.varying_sizes import Drawn, draw_batches, find_sizes
from advisor.measure.memory.storages import HostData
from advisor.text.units import format_count
from advisor.training.processes.world import World
from advisor.trial.spec import FidelityTrial, Trial
from advisor.workload._user_functions import Workload
from advisor.workload.identity import ModelIdentity
from advisor.workload.sizes import accepted

__all__ = ["BatchSource"]

_DISTINCT_BATCHES = 2
_DISTINCT_BATCHES_TO_LEARN = 4
"""Where losses are compared over many steps: one batch learned by heart says little of a training."""
_VARIOUS_BATCHES, _VARIOUS_SECONDS = 16, 0.1
"""Of small batches among which those are chosen that say most of a loss."""


class BatchSource:
    """Makes batches and keeps those of the last size.

    Attributes:
        host_data: What lives on the host and is no memory of the training: the batches above all.
        most_samples: Set where ``make_batch`` made fewer samples than it was asked for.
        making_seconds: How long a batch of the last size took to make; the first of all may have loaded the data.
        reused: Batches that a step may write to, to be restored after it.
    """

    def __init__(self, spec: Trial[Any], workload: Workload, world: World) -> None:
        self._spec = spec
        self._workload = workload
        self._world = world
        self.host_data = HostData()
        self._device = torch.device(spec.device)
        self._making: list[float] = []
        self._batches: tuple[int, list[Any]] | None = None
        self._largest: Any = None
        self.most_samples: int | None = None
        self.making_seconds = 0.0
        self.reused = ReusedBatches()
        self.layout = spec.layout or find_layout(self._make_batch, seed=spec.seed, own_batch=workload.batch_size)

    def batches(self, samples: int) -> list[Any]:
        """Distinct batches on the host, this rank's share of them; the same ones whenever they are asked for.

        Where batches differ in size these are near the average, and :meth:`largest` is another one. Those of the
        last number of samples are kept: making them may take longer than training on them.

        Args:
            samples: In the batches of all ranks together.

        Raises:
            FewerSamplesError: The data has no more than it made.
            WorkloadError: The batches are not as those from which the place of their samples was found.
        """
        if self._batches is not None and self._batches[0] == samples:
            return self._batches[1]
        self._batches = self._largest = None  # never two sizes at once
        self._making.clear()
        drawn = self._drawn(samples)
        batches = [self._on_host(batch, samples) for batch in drawn.typical]
        # The largest may be among them: it is not held twice.
        others = dict(zip(map(id, drawn.typical), batches, strict=True))
        largest = others.get(id(drawn.largest))
        self._largest = self._on_host(drawn.largest, samples) if largest is None else largest
        if self._device.type == "cpu":
            self.host_data.add(self.reused.keep([*batches, self._largest]), self._device)
        self._batches = (samples, batches)
        self.making_seconds = statistics.median(self._making) if self.layout.sizes is not None else min(self._making)
        return batches

    def various(self, samples: int) -> list[Any]:
        """Those of :meth:`batches` and, as long as they cost nothing, some more, which only a look is worth."""
        batches = list(self.batches(samples))
        end = time.perf_counter() + _VARIOUS_SECONDS
        while len(batches) < _VARIOUS_BATCHES and time.perf_counter() < end:
            try:
                [batch] = make_batches(self._make_batch, samples, 1, self._spec.seed, first=len(batches))
                self._check(batch, samples)
            except Exception:  # the data may end here
                break
            batches.append(batch)
        return batches

    def largest(self, samples: int, step: int = 0) -> Any:
        """The largest batch that was seen of so many samples, which tells the memory that a training takes.

        Args:
            samples: As of :meth:`batches`, which raises the same.
            step: Where batches do not differ in size, the one that is this step's turn.
        """
        batches = self.batches(samples)
        return batches[step % len(batches)] if self.layout.sizes is None else self._largest

    def look_at_sizes(self) -> None:
        """Find out whether batches of as many samples differ in size."""
        samples = self._workload.batch_size or self._spec.policy.global_batch
        if self.layout.most_samples is not None:
            samples = min(samples, self.layout.most_samples)
        sizes = find_sizes(self._make_batch, samples, self.layout.dims, seed=self._spec.seed)
        self.layout = msgspec.structs.replace(self.layout, sizes=sizes)
        if sizes is not None:
            self._batches = self._largest = None  # those were drawn as if all were alike

    def first(self, samples: int) -> int:
        """The fewest samples from so many on of which a batch can be made."""
        return max(samples, self.layout.least_samples)

    def clear(self) -> None:
        """Hold no batch any more."""
        self._batches = self._largest = None
        self.reused = ReusedBatches()

    def identity_of(self, model: torch.nn.Module) -> ModelIdentity:
        """What the user's model and its batches are, before anything is done to it."""
        return identity_of(model, self._workload, self._make_batch, self._spec.seed, self._spec.workload.files)

    def identity_on_meta(self) -> ModelIdentity | None:
        """The same, of a model without memory; ``None`` if it cannot be built so."""
        size = accepted(self._workload.build_model, self._spec.model_size)
        model = built_on_meta(self._workload, self._spec.seed, size)
        return None if model is None else self.identity_of(model)

    def _drawn(self, samples: int) -> Drawn:
        """Batches of which all have as many samples as were asked for, or what is said of samples per second is not so.

        Losses are compared on whatever is drawn first.
        """
        sizes, seed = self.layout.sizes, self._spec.seed

        def checked(asked: int) -> Any:
            batch = self._make_batch(asked)
            self._check(batch, asked)
            return batch

        if isinstance(self._spec, FidelityTrial):
            batches = make_batches(checked, samples, _DISTINCT_BATCHES_TO_LEARN, seed)
        elif sizes is not None:
            return draw_batches(checked, samples, sizes, _DISTINCT_BATCHES, seed)
        else:
            batches = make_batches(checked, samples, _DISTINCT_BATCHES, seed)
        return Drawn(batches, batches[0])

    def _on_host(self, batch: Any, samples: int) -> Any:
        """This rank's share of a batch, in page-locked memory where the device is a GPU."""
        share = share_of(batch, self._world.data.rank, self._world.data.size, samples, self.layout.dims)
        self.host_data.add([share], torch.device("cpu"))
        if self._device.type == "cuda":
            share = pinned(share)
            self.host_data.add([share], torch.device("cpu"))
        return share

    def _make_batch(self, samples: int) -> Any:
        make_batch = self._workload.make_batch
        begin = time.perf_counter()
        batch = make_batch(samples, **accepted(make_batch, self._spec.model_size))
        self._making.append(time.perf_counter() - begin)
        return batch

    def _check(self, batch: Any, samples: int) -> None:
        made = samples_in(batch, self.layout)
        if made == samples:
            return
        if made is not None and 0 < made < samples:
            self.most_samples = made
            raise FewerSamplesError(samples, made)
        found = "another shape than before" if made is None else format_count(made, "sample")
        raise WorkloadError(
            f"make_batch(batch_size) must return batch_size samples, but for {samples} it returned {found}. "
            "Return exactly as many in every call, and the same kinds of tensors"
        )
