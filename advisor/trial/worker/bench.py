"""The workbench of one trial: the user's functions, the batches and the training, seeded and cleaned up."""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from advisor.errors import WorkloadError
from advisor.measure.batches.batches import seed_everything
from advisor.measure.memory.leftovers import MemoryBaseline
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.memory.meters import memory_meter
from advisor.measure.speed.warm_up import warm_up
from advisor.measure.timing import Agree, alone
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.training.batch.tree import split
from advisor.training.processes.world import current_world
from advisor.training.structure import require_built
from advisor.training.training import Training
from advisor.trial.result import Pace
from advisor.trial.spec import Trial
from advisor.trial.worker.batch_source import BatchSource
from advisor.trial.worker.failure import AllocatorRefusals, DivergedError
from advisor.trial.worker.model_copy import ModelCopy
from advisor.trial.worker.own_pages import own_pages
from advisor.trial.worker.partner import Partner
from advisor.trial.worker.prepared import Prepared
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.sizes import accepted

__all__ = ["Bench", "finite", "until_updated"]

_S = TypeVar("_S", bound=Trial[Any])
_T = TypeVar("_T")

_EXAMPLE_SAMPLES = 2

_SEEDS_OF_A_RANK = 1_000_003
"""Distance between the seeds of two ranks: more than a trial has steps."""

_MOST_ATTEMPTS = 32
"""At a step that updates the parameters."""


class Bench(Generic[_S]):
    """Loads the workload and makes the first batches before the training's memory is measured.

    Raises:
        WorkloadError: The workload does not meet its contract.
        Exception: What the user's ``make_batch`` raises.
    """

    def __init__(
        self,
        spec: _S,
        tell: Callable[[str], None],
        refusals: AllocatorRefusals,
        prepared: Prepared | None = None,
        partner: Partner | None = None,
        model_copy: ModelCopy | None = None,
    ) -> None:
        self.spec = spec
        self.tell = tell
        self.refusals = refusals
        self.partner = partner
        self.device = torch.device(spec.device)
        self.world = current_world(spec.policy.axes)
        """The ranks that run this trial; decisions based on time or memory go through its ``agreed``."""
        assert self.world.size == spec.policy.gpu_count, f"{self.world.size} ranks, {spec.policy.gpu_count} devices"
        self.notes: list[str] = []
        self.paces: list[Pace] = []
        tell("loading the model's code")
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        warm_up(self.device)
        self.workload: Workload = load_workload(spec.workload) if prepared is None else prepared.loaded(spec)
        self._model = None if prepared is None else prepared.take_model(spec)
        self._random_state = None if prepared is None else prepared.random_state
        self._model_copy = model_copy
        self._copied_bytes = 0 if model_copy is None else model_copy.held_bytes
        self.out_of_step = ""
        """Why this rank may be out of step with the others, or empty."""
        self.data = BatchSource(spec, self.workload, self.world)
        """The batches."""
        if spec.layout is None:  # one of the first trials, which finds how many samples a batch may have
            self.data.batches(self.data.first(spec.policy.global_batch))
        else:
            self.data.batches(spec.policy.global_batch)
        self._example = self._small_batch()
        # Everything that exists now is data on the host: the batches and their data set.
        self.data.host_data.add_living(torch.device("cpu"))
        if prepared is not None:
            self.data.host_data.include(prepared.host_data)
        if self._model is not None and prepared is not None:
            self.data.host_data = self.data.host_data.without(prepared.built)
        else:
            # Exempt existing objects from garbage collection, which would take longer than a small step.
            # An existing model must not be exempt, or its memory would not be found.
            gc.freeze()
        self._baseline = MemoryBaseline(self.device, self.data.host_data)

    def meter(self) -> MemoryMeter:
        """The memory meter with the trial's limit."""
        return memory_meter(self.device, self.spec.memory_limit_bytes, self.data.host_data)

    def training(
        self, policy: Policy, *, look: Callable[[torch.nn.Module], None] = lambda model: None
    ) -> contextlib.AbstractContextManager[Training]:
        """Build the model and apply a policy, with the same parameters and random numbers every time."""

        def apply(model: torch.nn.Module) -> Training:
            look(model)
            return self.apply(policy, model)

        return self._built(apply)

    def apply(self, policy: Policy, model: torch.nn.Module) -> Training:
        """Apply a policy to the user's model, with everything that the workload defines."""
        training = apply_policy(
            policy,
            model,
            device=self.device,
            sample_dims=self.data.layout.sample_dims,
            reduction=self.data.layout.reduction,
            **self.options(),
            **self._examples(policy),
        )
        limit = getattr(self.spec, "limit_of_timed_bytes", None)
        training.memory_limit_bytes = self.spec.memory_limit_bytes if limit is None else limit
        return training

    def wrapped_training(self, wrapper: Path, text: str = "") -> contextlib.AbstractContextManager[Training]:
        """Build the model and pass it to an emitted wrapper, as the user will."""

        def apply(model: torch.nn.Module) -> Training:
            module = types.ModuleType("momadvise_wrapper")
            # Prefer the file; another machine may not share the folder.
            code = wrapper.read_text(encoding="utf-8") if wrapper.exists() else text
            assert code, f"{wrapper} must be a Python file"
            exec(compile(code, str(wrapper), "exec"), module.__dict__)
            options = self.options() | self._examples(self.spec.policy)
            training: Training = module.prepare(model, device=self.device, **options)
            return training

        return self._built(apply)

    def leftover(self) -> str:
        """Drop the batches and describe what else the trial left in memory; empty if nothing."""
        self.data.clear()
        copied = 0 if self._model_copy is None else self._model_copy.held_bytes - self._copied_bytes
        return self._baseline.leftover(kept_bytes=copied) or self.out_of_step

    def seed(self, step: int = 0) -> None:
        """Seed all generators for a step: every step and rank has its own random numbers."""
        seed_everything(self.spec.seed + step + self.world.data.rank * _SEEDS_OF_A_RANK)

    def updated(self, training: Training, attempt: Callable[[], _T], *, step: int | None = None) -> _T:
        """Attempt a step until the optimizer has run in it, each time from the seed of that step if one is given."""

        def seeded() -> _T:
            if step is not None:
                self.seed(step)
            return attempt()

        return until_updated(training, seeded, self.world.agreed)

    def options(self) -> dict[str, Any]:
        """The workload's optional functions and constants, as arguments of :func:`apply_policy`."""
        names = ("compute_loss", "build_optimizer", "count_targets", "linear_head", "max_grad_norm", "blocks")
        return {name: value for name in names if (value := getattr(self.workload, name))}

    def _examples(self, policy: Policy) -> dict[str, Any]:
        """A small batch, where a model must be seen before it is divided."""
        return {} if policy.axes.model_degree == 1 else {"example_batch": self._example}

    def _small_batch(self) -> Any:
        """A few samples of the first batch, drawn once: what is drawn in a trace would count as memory of a step."""
        if self.spec.policy.axes.model_degree == 1:
            return None
        batch, layout = self.data.batches(self.spec.policy.global_batch)[0], self.data.layout
        return batch if layout.why_uncut else split(batch, self.data.first(_EXAMPLE_SAMPLES), layout.sample_dims)[0]

    def user_functions(self) -> list[Callable[..., Any]]:
        """The workload's functions; their files may hold more state that a step changes."""
        return [self.workload.build_model, *(one for one in (self.workload.compute_loss,) if one is not None)]

    def build_model(self) -> torch.nn.Module:
        """The user's model, the same every time."""
        model, self._model = self._model, None
        if model is not None:
            assert self._random_state is not None, "it was kept when the model was built"
            torch.set_rng_state(self._random_state)
            return model
        build = self.workload.build_model
        build = functools.partial(build, **accepted(build, self.spec.model_size))
        seed_everything(self.spec.seed)
        return build() if self._model_copy is None else self._model_copy.model(self.spec, build)

    @contextlib.contextmanager
    def _built(self, apply: Callable[[torch.nn.Module], Training]) -> Iterator[Training]:
        self.tell("building the model")
        is_shared = self._model is not None
        model = self.build_model()
        require_built(model)
        if any(parameter.untyped_storage() in self.data.host_data for parameter in model.parameters()):
            raise WorkloadError(
                "build_model must build a new model on every call, but it returned one whose parameters existed "
                "before the call. Construct the model inside build_model."
            )
        training = apply(model)
        if is_shared:
            own_pages(training.model)
        training.after_step.append(self.data.reused.restore)
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


def until_updated(training: Training, attempt: Callable[[], _T], agree: Agree = alone) -> _T:
    """Repeat a step until the optimizer has run in it.

    Under float16 the first steps are skipped while the scale of the loss is found: they create no optimizer state,
    whose memory must be measured, and their losses are a step behind those they are compared with.
    """
    scaler = training.gradient_scaler
    if scaler is None:
        return attempt()
    for _ in range(_MOST_ATTEMPTS):
        scale = scaler.get_scale()
        answer = attempt()
        if agree(scaler.get_scale() >= scale):  # a skipped step lowers it
            break
    return answer
