"""The workbench of one trial: the user's functions, the batches, the training, all seeded and cleared away."""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch

from advisor.errors import FewerSamplesError, WorkloadError
from advisor.measure.batches.batches import make_batches, pinned, seed_everything, share_of
from advisor.measure.batches.identity import identity_of
from advisor.measure.batches.reused import ReusedBatches
from advisor.measure.batches.sample_layout import find_layout, samples_in
from advisor.measure.batches.sizes import Drawn, draw_batches, find_sizes
from advisor.measure.memory.leftovers import MemoryBaseline
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.memory.meters import memory_meter
from advisor.measure.memory.storages import HostData
from advisor.measure.speed.warm_up import warm_up
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.text.units import format_count
from advisor.training.structure import require_built
from advisor.training.training import Training
from advisor.training.world import current_world
from advisor.trial.spec import Pace, TrialKind, TrialSpec
from advisor.trial.worker.failure import AllocatorRefusals, DivergedError
from advisor.trial.worker.prepared import Prepared
from advisor.trial.worker.reference import Reference
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.identity import ModelIdentity
from advisor.workload.sizes import accepted

__all__ = ["Bench", "finite"]

_DISTINCT_BATCHES = 2
_DISTINCT_BATCHES_TO_LEARN = 4
"""Where losses are compared over many steps: one batch learned by heart says little of a training."""
_VARIOUS_BATCHES, _VARIOUS_SECONDS = 16, 0.1
"""Of small batches among which those are chosen that say most of a loss."""
_SEEDS_OF_A_RANK = 1_000_003
"""Between the seeds of two ranks: more than a trial has steps."""


class Bench:
    """Loads the workload and makes the first batches, before anything counts as memory of the training.

    Args:
        spec: The trial.
        tell: Hears what is being done, in a few words.
        refusals: Made when the trial began.
        prepared: What was loaded and built before this process was forked; ``None`` if it was not.
        reference: The process that takes turns with this one; ``None`` if there is none.

    Raises:
        WorkloadError: The workload does not meet its contract.
        Exception: What the user's ``make_batch`` raises.
    """

    def __init__(
        self,
        spec: TrialSpec,
        tell: Callable[[str], None],
        refusals: AllocatorRefusals,
        prepared: Prepared | None = None,
        reference: Reference | None = None,
    ) -> None:
        self.spec = spec
        self.tell = tell
        self.refusals = refusals
        self.reference = reference
        self.device = torch.device(spec.device)
        self.world = current_world()
        """The ranks that run this trial together; decisions by a clock or by memory go through its ``agreed``."""
        assert self.world.size == spec.policy.gpu_count, f"{self.world.size} ranks, {spec.policy.gpu_count} devices"
        self.notes: list[str] = []
        self.paces: list[Pace] = []
        self.most_samples: int | None = None
        """Set where ``make_batch`` made fewer samples than it was asked for."""
        tell("loading the model's code")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        warm_up(self.device)
        self.workload: Workload = load_workload(spec.workload) if prepared is None else prepared.loaded(spec)
        self._model = None if prepared is None else prepared.take_model(spec)
        self._random_state = None if prepared is None else prepared.random_state
        self._host_data = HostData()
        self.out_of_step = ""
        """Why this rank may no longer be where the others are; empty when it is."""
        self.identity: ModelIdentity | None = None
        self.built_modules: dict[str, torch.nn.Module] = {}
        """FIDELITY: the user's modules by name, as they were before a policy was applied."""
        self._making: list[float] = []
        self.making_seconds = 0.0
        """How long a batch of the last size took to make; the first of all may have loaded the data."""
        self.reused = ReusedBatches()
        self._batches: tuple[int, list[Any]] | None = None
        self._largest: Any = None
        self.layout = spec.layout or find_layout(self._make_batch, seed=spec.seed, own_batch=self.workload.batch_size)
        """Where batches have their samples."""
        self.batches(spec.policy.global_batch)
        # All that exists by now is data on the host: the batches, and the data set that they are made from.
        self._host_data.add_living(torch.device("cpu"))
        if prepared is not None:
            self._host_data.include(prepared.host_data)
        if self._model is not None and prepared is not None:
            self._host_data = self._host_data.without(prepared.built)
        else:
            # What lives now is not looked at again by the garbage collector: it would take longer than a small step.
            # A model that lives already must be, for its memory to be found.
            gc.freeze()
        self._baseline = MemoryBaseline(self.device, self._host_data)

    def batches(self, samples: int) -> list[Any]:
        """Distinct batches on the host, this rank's share of them; the same ones whenever they are asked for.

        Where batches differ in size these are near the average, and :meth:`largest_batch` is another one. Those of the
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
        if self.device.type == "cpu":
            self._host_data.add(self.reused.keep([*batches, self._largest]), self.device)
        self._batches = (samples, batches)
        self.making_seconds = statistics.median(self._making) if self.layout.sizes is not None else min(self._making)
        return batches

    def various_batches(self, samples: int) -> list[Any]:
        """Those of :meth:`batches` and, as long as they cost nothing, some more, which only a look is worth."""
        batches = list(self.batches(samples))
        end = time.perf_counter() + _VARIOUS_SECONDS
        while len(batches) < _VARIOUS_BATCHES and time.perf_counter() < end:
            try:
                [batch] = make_batches(self._make_batch, samples, 1, self.spec.seed, first=len(batches))
                self._check(batch, samples)
            except Exception:  # the data may end here
                break
            batches.append(batch)
        return batches

    def largest_batch(self, samples: int, step: int = 0) -> Any:
        """The largest batch that was seen of so many samples, which tells the memory that a training takes.

        Args:
            samples: As of :meth:`batches`, which raises the same.
            step: Where batches do not differ in size, the one that is this step's turn.
        """
        batches = self.batches(samples)
        return batches[step % len(batches)] if self.layout.sizes is None else self._largest

    def look_at_sizes(self) -> None:
        """Find out whether batches of as many samples differ in size."""
        samples = self.workload.batch_size or self.spec.policy.global_batch
        if self.layout.most_samples is not None:
            samples = min(samples, self.layout.most_samples)
        sizes = find_sizes(self._make_batch, samples, self.layout.dims, seed=self.spec.seed)
        self.layout = msgspec.structs.replace(self.layout, sizes=sizes)
        if sizes is not None:
            self._batches = self._largest = None  # those were drawn as if all were alike

    def _drawn(self, samples: int) -> Drawn:
        """Batches of which all have as many samples as were asked for, or what is said of samples per second is not so.

        Losses are compared on whatever is drawn first.
        """
        sizes, seed = self.layout.sizes, self.spec.seed

        def checked(asked: int) -> Any:
            batch = self._make_batch(asked)
            self._check(batch, asked)
            return batch

        if self.spec.kind is TrialKind.FIDELITY:
            batches = make_batches(checked, samples, _DISTINCT_BATCHES_TO_LEARN, seed)
        elif sizes is not None:
            return draw_batches(checked, samples, sizes, _DISTINCT_BATCHES, seed)
        else:
            batches = make_batches(checked, samples, _DISTINCT_BATCHES, seed)
        return Drawn(batches, batches[0])

    def _on_host(self, batch: Any, samples: int) -> Any:
        """This rank's share of a batch, in page-locked memory where the device is a GPU."""
        share = share_of(batch, self.world.rank, self.world.size, samples, self.layout.dims)
        self._host_data.add([share], torch.device("cpu"))
        if self.device.type == "cuda":
            share = pinned(share)
            self._host_data.add([share], torch.device("cpu"))
        return share

    def _make_batch(self, samples: int) -> Any:
        make_batch = self.workload.make_batch
        begin = time.perf_counter()
        batch = make_batch(samples, **accepted(make_batch, self.spec.model_size))
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

    def meter(self) -> MemoryMeter:
        """The memory meter with the trial's limit."""
        return memory_meter(self.device, self.spec.memory_limit_bytes, self._host_data)

    @contextlib.contextmanager
    def training(self, policy: Policy) -> Iterator[Training]:
        """Build the model and apply a policy: the same parameters and the same random numbers every time."""

        def apply(model: torch.nn.Module) -> Training:
            return self.apply(policy, model)

        with self._built(apply) as training:
            yield training

    def apply(self, policy: Policy, model: torch.nn.Module) -> Training:
        """Apply a policy to the user's model, with all that the workload defines."""
        return apply_policy(
            policy,
            model,
            device=self.device,
            sample_dims=self.layout.sample_dims,
            reduction=self.layout.reduction,
            **self.options(),
        )

    @contextlib.contextmanager
    def wrapped_training(self, wrapper: Path) -> Iterator[Training]:
        """Build the model and hand it to an emitted wrapper, as the user will."""

        def apply(model: torch.nn.Module) -> Training:
            module = types.ModuleType("momadvise_wrapper")
            # The file itself where it is; another machine may not share the folder.
            text = wrapper.read_text(encoding="utf-8") if wrapper.exists() else self.spec.wrapper_text
            assert text, f"{wrapper} must be a Python file"
            exec(compile(text, str(wrapper), "exec"), module.__dict__)
            training: Training = module.prepare(model, device=self.device, **self.options())
            return training

        with self._built(apply) as training:
            yield training

    def leftover(self) -> str:
        """What the trial left behind, in words; empty when nothing. No batch is there any more afterwards."""
        self._batches = self._largest = None
        self.reused = ReusedBatches()
        return self._baseline.leftover() or self.out_of_step

    def seed(self, step: int = 0) -> None:
        """Seed all generators for a step: every step and every rank draws random numbers of its own."""
        seed_everything(self.spec.seed + step + self.world.rank * _SEEDS_OF_A_RANK)

    def options(self) -> dict[str, Any]:
        """The workload's own functions and constants, those that it has, as :func:`apply_policy` takes them."""
        names = ("compute_loss", "build_optimizer", "count_targets", "linear_head", "max_grad_norm", "blocks")
        return {name: value for name in names if (value := getattr(self.workload, name))}

    def user_functions(self) -> list[Callable[..., Any]]:
        """Those of the workload, in whose file there may be more that a step changes."""
        return [self.workload.build_model, *(one for one in (self.workload.compute_loss,) if one is not None)]

    def identity_of(self, model: torch.nn.Module) -> ModelIdentity:
        """What the user's model and its batches are, before anything is done to it."""
        return identity_of(model, self._make_batch, self.spec.seed)

    def build_model(self) -> torch.nn.Module:
        """The user's model, the same every time."""
        model, self._model = self._model, None
        if model is not None:
            assert self._random_state is not None, "it was kept when the model was built"
            torch.set_rng_state(self._random_state)
            return model
        seed_everything(self.spec.seed)
        build_model = self.workload.build_model
        return build_model(**accepted(build_model, self.spec.model_size))

    @contextlib.contextmanager
    def _built(self, apply: Callable[[torch.nn.Module], Training]) -> Iterator[Training]:
        self.tell("building the model")
        model = self.build_model()
        require_built(model)
        if self.spec.kind is TrialKind.FIDELITY:
            self.built_modules = dict(model.named_modules())
        if self.spec.kind is TrialKind.PROBE:
            self.identity = self.identity_of(model)
        if any(parameter.untyped_storage() in self._host_data for parameter in model.parameters()):
            raise WorkloadError(
                "build_model must build a new model on every call, but it returned one whose parameters existed "
                "before the call. Construct the model inside build_model."
            )
        training = apply(model)
        training.after_step.append(self.reused.restore)
        del model
        try:
            self.seed()
            yield training
        finally:
            self.notes += [note for note in training.notes if note not in self.notes]
            training.close()

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def empty_cache(self) -> None:
        """Give cached memory back to the device."""
        if self.device.type == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def finite(loss: torch.Tensor | float, step: int) -> float:
    """The value of a loss.

    Raises:
        DivergedError: It is NaN or infinite.
    """
    value = float(loss)
    if not math.isfinite(value):
        raise DivergedError(f"the loss became {value} at step {step}")
    return value
