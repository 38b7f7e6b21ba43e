"""Train with a policy in a loop that uses accelerate."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from advisor.errors import PolicyError, WorkloadError
from advisor.integrations import support
from advisor.integrations.accelerator import (
    let_it_make_passes,
    own_settings,
    refuse_other_optimizers,
    require_other_parameters,
)
from advisor.integrations.saved_training import load_model, read_parts, read_weights, write_parts
from advisor.integrations.shared import OwnSetting, policy_for, require_plain, require_version
from advisor.integrations.trainer_loop import TrainerLoop
from advisor.policy.apply import HasPolicy, apply_policy
from advisor.policy.policy import Policy
from advisor.training.batch.tree import sample_count
from advisor.training.direct_call import refuse_direct_calls
from advisor.training.training import Training

__all__ = ["Prepared", "prepare"]

_HANDLERS = ("autocast_handler", "scaler_handler", "ddp_handler", "ao_recipe_handler", "te_recipe_handler")
"""Attributes of an accelerator that hold the options of what a policy decides."""


def prepare(
    model: torch.nn.Module,
    policy: Policy | HasPolicy | str | os.PathLike[str],
    *,
    accelerator: Any,
    untested: bool = False,
    **options: Any,
) -> Prepared:
    """Apply a policy to a model that is trained in a loop with an accelerator.

    ::

        from advisor.integrations.accelerate import prepare

        prepared = prepare(model, "policy.yaml", accelerator=accelerator, build_optimizer=build_optimizer)
        optimizer = prepared.optimizer
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
        loader, scheduler = accelerator.prepare(loader, scheduler)
        for micro_batch in prepared.micro_batches(loader):
            loss = prepared.forward(micro_batch)  # in place of model(**micro_batch).loss
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    ``accelerator.clip_grad_norm_``, ``save_state`` and ``load_state`` work as ever, ``sync_gradients`` says which
    micro-batch is the last one of a step, after which gradients are clipped. With ``max_grad_norm`` among the options
    they are clipped before each optimizer step; a loop that clips to the same norm does it in its place. Model and
    optimizer need not be given to ``accelerator.prepare``. A further model without a policy, given to it with its
    optimizer, is trained as ever: by its own losses, and clipped by a call of its own.

    Args:
        model: A plain model; it is changed in place.
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        accelerator: The accelerator, without mixed precision or plugins of its own.
        untested: Accept a version of accelerate that this was not tested with.
        options: Further options of :func:`advisor.apply_policy`: ``build_optimizer``, ``compute_loss`` and so on.

    Raises:
        PolicyError: The policy is damaged or for another number of devices, the version is not known, the accelerator
            would do itself what the policy decides or has another model with a policy, or an optimizer of the model
            was made already, in place of how to build it.
        MethodRefusedError: A method cannot be used in such a loop, or with this model.
    """
    if not isinstance(accelerator, Accelerator):
        raise PolicyError(
            f"prepare takes the accelerator of the loop, but got {type(accelerator).__name__}; pass "
            "accelerator=Accelerator()"
        )
    if "optimizer" in options:
        raise PolicyError(
            "A policy decides the kind of optimizer, so that prepare takes how to build it, but it was given one as "
            "optimizer. Pass build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=...), and use "
            "prepared.optimizer."
        )
    if "backward" in vars(accelerator):
        raise PolicyError(
            "An accelerator must make the passes of one model with a policy, but it makes those of another already. "
            "Give the second model to accelerator.prepare without a policy, or close the first "
            "(prepared.training.close())."
        )
    require_version(support.ACCELERATE, untested=untested)
    found = policy_for(support.ACCELERATE, policy, processes=accelerator.num_processes)
    require_plain(support.ACCELERATE, [*own_settings(accelerator), *_handlers(accelerator)], "Accelerator")
    for optimizer in accelerator._optimizers:
        require_other_parameters(optimizer, model)
    training = apply_policy(found, model, device=accelerator.device, **options)
    before, steps = accelerator.gradient_accumulation_steps, found.policy.accumulation_steps
    if before not in (1, steps):  # 1 is what it has unless it is told otherwise
        training.notes.append(f"gradient_accumulation_steps of the accelerator was {before} and is {steps} now")
    accelerator.gradient_accumulation_steps = steps
    return Prepared(training, found.policy, accelerator)


def _handlers(accelerator: Any) -> Iterator[OwnSetting]:
    """What was said of parts of accelerate's that a policy has in their place."""
    for name in _HANDLERS:
        if (handler := getattr(accelerator, name, None)) is not None:
            yield OwnSetting("kwargs_handlers", type(handler).__name__, None)


class Prepared:
    """A model and its optimizer in a loop with an accelerator.

    Attributes:
        training: The training; ``training.notes`` has what methods have to say.
        model: The model, to evaluate and save.
        optimizer: The optimizer, to step and schedule.
    """

    def __init__(self, training: Training, policy: Policy, accelerator: Any) -> None:
        self.training = training
        self.model = training.model
        self._policy = policy
        self._accelerator = accelerator
        self._loop = TrainerLoop(
            training, policy.accumulation_steps, "prepared.forward", stepping=lambda: accelerator.sync_gradients
        )
        refuse_direct_calls(training, policy.words, "call prepared.forward(micro_batch) in its place")
        self.optimizer = self._loop.optimizer
        let_it_make_passes(accelerator, self._loop)
        refuse_other_optimizers(accelerator, training)
        accelerator.prepare_model(self.model)
        accelerator.prepare_optimizer(self.optimizer)
        for registered in (
            accelerator.register_save_state_pre_hook(self._save),
            accelerator.register_load_state_pre_hook(self._load),
        ):
            training.on_close(registered.remove)

    def micro_batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """The micro-batches of a loader, each weighed by its share of the targets of its step.

        Args:
            loader: Gives batches of the policy's ``micro_batch`` samples; the last may have fewer.

        Raises:
            PolicyError: It gives others.
            WorkloadError: A process's share of a step has no target.
        """
        source = iter(loader)
        first = True
        while step := list(itertools.islice(source, self._policy.accumulation_steps)):
            self._loop.begin([self._checked(micro_batch) for micro_batch in step])
            if first and (len(step) > 1 or self._is_short(step[0])):
                # A loader of one batch may have fewer samples, any other has whole batches first.
                self._require_whole(step[0], alone=len(step) == 1 and next(source, None) is None)
            first = False
            for place, micro_batch in enumerate(step, start=1):
                last = place == len(step)
                self._accelerator.gradient_state._set_sync_gradients(last)
                self._loop.next_micro_batch()
                with contextlib.nullcontext() if last else self.training.accumulating():
                    yield micro_batch

    def forward(self, micro_batch: Any) -> torch.Tensor:
        """The loss of a micro-batch, scaled to its share of the step, for ``accelerator.backward``.

        In a loop with ``accelerator.accumulate(model)`` in place of :meth:`micro_batches`, each micro-batch of a step
        counts the same, however many targets it has.

        Raises:
            PolicyError: The micro-batch is too large, or the accelerator accumulates over another number of them.
        """
        self._require_same_accumulation()
        return self._loop.forward(self._checked(micro_batch))

    def _require_same_accumulation(self) -> None:
        """A step of other micro-batches than the policy's would weigh each of them wrongly."""
        wanted, found = self._policy.accumulation_steps, self._accelerator.gradient_accumulation_steps
        if found != wanted:
            raise PolicyError(
                f"gradient_accumulation_steps of the accelerator must stay {wanted}, as the policy was "
                f"measured, but it was set to {found} after prepare (all accelerators of a process share it). Set "
                f"accelerator.gradient_accumulation_steps = {wanted} again, or tune for another batch."
            )

    def _is_short(self, micro_batch: Any) -> bool:
        return 0 < self._count(micro_batch) < self._policy.micro_batch

    def _require_whole(self, micro_batch: Any, *, alone: bool) -> None:
        """Only the last micro-batch of a loader may be smaller than the policy's, of which whole ones were measured."""
        if not alone and self._is_short(micro_batch):
            raise PolicyError(
                f"The loader must give batches of micro_batch: {self._policy.micro_batch} samples, of which the last "
                f"may have fewer, but the first has {self._count(micro_batch)}; {self._fix}."
            )

    @property
    def _fix(self) -> str:
        size, processes = self._policy.micro_batch, self._accelerator.num_processes
        if not self._accelerator.split_batches or processes == 1:
            return f"make it with batch_size={size}"
        return (
            f"make it with batch_size={size * processes}, of which each of the {processes} processes has its share "
            "(split_batches=True)"
        )

    def _count(self, micro_batch: Any) -> int:
        """Its samples; 0 where it is not known where they are, as it is not cut."""
        with contextlib.suppress(WorkloadError):
            return sample_count(micro_batch, self.training.sample_dims)
        return 0

    def _checked(self, micro_batch: Any) -> Any:
        """The micro-batch, if it is small enough."""
        count = self._count(micro_batch)
        if count > self._policy.micro_batch:
            raise PolicyError(
                f"The loader must give batches of at most micro_batch: {self._policy.micro_batch} samples, but one has "
                f"{count}; {self._fix}."
            )
        return micro_batch

    def _save(self, models: list[Any], weights: list[Any], folder: str) -> None:
        """Write what methods add beside the model."""
        state = self.training.state_dict(model=False, optimizer=False)
        if self._accelerator.is_main_process:
            write_parts(state, Path(folder))

    def _load(self, models: list[Any], folder: str) -> None:
        """Load plain weights, and what methods added; the accelerator loads the rest."""
        if not any(model is self.model for model in models):
            return
        place = next(place for place, model in enumerate(models) if model is self.model)
        weights = read_weights(Path(folder), "model" if place == 0 else f"model_{place}")
        if weights is None:
            raise PolicyError(
                f"A state must be saved with safe_serialization=True to be loaded again, but {folder} has no "
                "model.safetensors; save it so"
            )
        load_model(self.training, weights, read_parts(Path(folder)))
        if place == len(models) - 1:
            del models[place]
        else:  # The accelerator finds the files of those that follow by their places.
            models[place] = _Loaded()


class _Loaded(torch.nn.Module):
    """In the place of a model that was loaded already."""

    def load_state_dict(self, *args: Any, **options: Any) -> Any:
        """Load nothing."""
        return torch.nn.Module().load_state_dict({})
