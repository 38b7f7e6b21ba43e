"""The methods of a ``transformers.Trainer`` that a training takes the place of."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from advisor.errors import MethodRefusedError, PolicyError, WorkloadError
from advisor.integrations.peft import save_adapters
from advisor.integrations.saved_training import load_model, read_parts, read_weights, write_parts
from advisor.integrations.trainer_loop import TrainerLoop
from advisor.training.batch.tree import sample_count
from advisor.training.plain_module_names import plain_module_names
from advisor.training.replaced_attribute import replace_attribute

__all__ = ["AttachedTrainer"]

_REPLACED = (
    "training_step",
    "compute_loss",
    "get_train_dataloader",
    "get_batch_samples",
    "prediction_step",
    "_save",
    "_save_optimizer_and_scheduler",
    "_load_from_checkpoint",
    "_load_best_model",
)

_log = logging.getLogger("advisor")


class AttachedTrainer:
    """Methods of one trainer with the signatures that it calls them with; others stay, also those of its subclass.

    Args:
        trainer: The trainer.
        loop: The passes of its training.
        require_unchanged: Raises if the trainer was changed since, so that it would not train by the policy.
        saves_adapters: Whether adapters are also saved alone.
    """

    def __init__(
        self, trainer: Any, loop: TrainerLoop, require_unchanged: Callable[[], None], saves_adapters: bool = False
    ) -> None:
        self._saves_adapters = saves_adapters
        self._trainer = trainer
        self._loop = loop
        self._require_unchanged = require_unchanged
        self._training = loop.training
        self._micro_batch: int = trainer.args.per_device_train_batch_size
        self._loader_tells_size = False
        self._leaves_out = False
        self._usual: dict[str, Callable[..., Any]] = {name: getattr(trainer, name) for name in _REPLACED}

    def install(self) -> None:
        """Put these methods in place, until the training closes."""
        for name in _REPLACED:
            replace_attribute(self._training, self._trainer, name, getattr(self, name))
        # A loss comes with its share of the step.
        replace_attribute(self._training, self._trainer, "loss_is_scaled_for_ga", True)
        self._trainer.optimizer = self._loop.optimizer

    def get_train_dataloader(self) -> Any:
        """The trainer's loader, also one of its subclass, if its batches are those of the policy.

        Raises:
            PolicyError: They are others, or the trainer was changed since.
        """
        self._require_unchanged()
        loader = self._usual["get_train_dataloader"]()
        sampler = getattr(loader, "batch_sampler", None)
        sizes = (getattr(one, "batch_size", None) for one in (sampler, loader))
        size = next((size for size in sizes if isinstance(size, int)), None)
        self._loader_tells_size = size is not None
        if size not in (None, self._micro_batch):
            raise self._other_size(size)
        return loader

    def _require_small(self, micro_batch: Any) -> None:
        """Of a loader that says no size: a collator may make several rows of each sample, as for preferences."""
        try:
            size = sample_count(micro_batch, self._training.sample_dims)
        except WorkloadError:  # It is not known where the samples are.
            return
        if size > self._micro_batch:
            raise self._other_size(size)

    def _other_size(self, size: int) -> PolicyError:
        return PolicyError(
            f"The loader of {type(self._trainer).__name__} must give batches of micro_batch: {self._micro_batch} "
            f"samples, as the policy was measured, but its batches have {size}. Give it "
            "batch_size=self._train_batch_size, which attach has set."
        )

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list[Any], Any]:
        """Take the micro-batches of the next step, and weigh them; none of those that end a stream before a whole step.

        The trainer makes no optimizer step for these: their gradients would be left for the next pass over the stream.

        Raises:
            PolicyError: The trainer does not train by the policy anymore. Callbacks may change it between any two
                steps.
        """
        self._require_unchanged()
        micro_batches, count = self._usual["get_batch_samples"](*args, **kwargs)
        asked = args[1] if len(args) > 1 else kwargs.get("num_batches", 0)
        if 0 < len(micro_batches) < asked:
            if not self._leaves_out:
                self._leaves_out = True
                _log.warning(
                    "The data ended after %d of the %d micro-batches of a step, for which the trainer makes no "
                    "optimizer step. They are left out, in every pass.",
                    len(micro_batches),
                    asked,
                )
            return [], None
        if micro_batches:
            for micro_batch in () if self._loader_tells_size else micro_batches:
                self._require_small(micro_batch)
            self._loop.begin(micro_batches)
        return micro_batches, count

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """The trainer's step of one micro-batch, also one of its subclass."""
        self._loop.next_micro_batch()
        return self._usual["training_step"](*args, **kwargs)

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, *args: Any, **kwargs: Any) -> Any:
        """In training the loss by the training, with all that methods put around it; otherwise the trainer's."""
        if not (torch.is_grad_enabled() and self._training.model.training):
            return self._usual["compute_loss"](model, inputs, return_outputs, *args, **kwargs)
        if not return_outputs:
            return self._loop.forward(inputs)
        outputs: list[Any] = []
        hook = self._training.model.register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            loss = self._loop.forward(inputs)
        finally:
            hook.remove()
        if not outputs:
            raise MethodRefusedError(
                "compute_loss was asked for outputs of the model, but a method computes the loss without them; leave "
                "return_outputs=True out of training_step, or chunked_cross_entropy out of the policy"
            )
        return loss, outputs[-1]

    def prediction_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model as it may be called outside of a step."""
        usual = self._usual["prediction_step"]
        if model is not self._training.model:
            return usual(model, *args, **kwargs)
        with torch.no_grad():
            return self._training.distribution.call(model, lambda called: usual(called, *args, **kwargs))

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """Save the model under its plain names. All processes take part."""
        if state_dict is None:
            state_dict = self._training.state_dict(optimizer=False)["model"]
        self._usual["_save"](output_dir, state_dict=state_dict)
        if self._saves_adapters:
            save_adapters(self._training, Path(output_dir or self._trainer.args.output_dir) / "adapters")

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        """Save the state of a plain optimizer, and what methods add to it. All processes take part."""
        state = self._training.state_dict(model=False)
        self._loop.optimizer.hold(state["optimizer"])
        try:
            self._usual["_save_optimizer_and_scheduler"](output_dir)
        finally:
            self._loop.optimizer.hold(None)
        if self._trainer.args.should_save:
            write_parts(state, Path(output_dir))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load plain weights, and what methods added to them."""
        if not self._load(resume_from_checkpoint):
            with plain_module_names(self._training.model):
                self._usual["_load_from_checkpoint"](resume_from_checkpoint, model)

    def _load_best_model(self) -> None:
        """Load the best model as any other checkpoint."""
        best = self._trainer.state.best_model_checkpoint
        if best is None or not self._load(best):
            with plain_module_names(self._training.model):
                self._usual["_load_best_model"]()

    def _load(self, folder: str) -> bool:
        """Whether a checkpoint has a whole model, which is then loaded."""
        weights = read_weights(Path(folder))
        if weights is None:
            return False
        load_model(self._training, weights, read_parts(Path(folder)))
        return True
