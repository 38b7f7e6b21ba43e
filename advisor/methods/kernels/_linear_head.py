"""A loss that is the cross entropy of one linear layer: find it, verify it, compute it in chunks."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from advisor.errors import MethodRefusedError
from advisor.training.batch.tree import IGNORED_TARGET, move
from advisor.training.loss import default_loss, is_causal_loss
from advisor.training.out_of_memory import is_out_of_memory
from advisor.training.structure import output_layer
from advisor.training.training import LinearHead, Training

__all__ = ["causal_head", "chunked_loss", "exposes_linear_head", "find_linear_head"]

_TOLERANCE = 1e-4
_LOUD = 10.0
"""Standard deviation of the logits at which a head is compared: soft-capping and scaling are visible there."""


def chunked_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor, *, chunks: int
) -> torch.Tensor:
    """Mean cross entropy of ``hidden @ weight.T + bias`` over the targets that are not -100.

    Args:
        hidden: ``(..., features)``.
        weight: ``(classes, features)``.
        bias: ``(classes,)``, or ``None``.
        targets: Class indices of shape ``(...)``; -100 is left out.
        chunks: Number of chunks of positions (fewer if there are fewer positions).
    """
    flat = hidden.reshape(-1, hidden.size(-1))
    flat_targets = targets.reshape(-1).to(flat.device)
    parts = zip(flat.chunk(chunks), flat_targets.chunk(chunks), strict=True)
    # No dropout inside, so no random state to keep.
    losses = [
        checkpoint(_summed_loss, part, weight, bias, target, use_reentrant=False, preserve_rng_state=False)
        for part, target in parts
    ]
    return torch.stack(losses).sum() / (flat_targets != IGNORED_TARGET).sum()


def _summed_loss(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, targets: torch.Tensor
) -> torch.Tensor:
    logits = functional.linear(hidden, weight, bias).float()
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction="sum")


def find_linear_head(training: Training) -> LinearHead:
    """The workload's own ``linear_head``, or that of a transformers causal language model with its default loss.

    Raises:
        MethodRefusedError: There is none.
    """
    if training.linear_head is not None:
        return training.linear_head
    model = training.model
    if training.compute_loss is not default_loss:
        raise MethodRefusedError(
            "the workload has its own compute_loss; expose its parts with linear_head(model, batch) -> "
            "(hidden, weight, bias or None, targets)"
        )
    if not is_causal_loss(model):
        raise MethodRefusedError(
            f"{type(model).__name__} is not a transformers causal language model with its usual loss; expose the "
            "loss with linear_head(model, batch) -> (hidden, weight, bias or None, targets)"
        )
    head = output_layer(model)
    if type(head) is not torch.nn.Linear:
        raise MethodRefusedError(
            f"the output embedding of {type(model).__name__} is {type(head).__name__}, not a plain torch.nn.Linear"
        )
    if getattr(model, "base_model", model) is model:
        raise MethodRefusedError(f"{type(model).__name__} has no base model that returns the hidden states")
    return causal_head


def causal_head(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Hidden states, weight, bias and targets of a transformers causal language model, for :func:`chunked_loss`."""
    if not isinstance(batch, Mapping) or "labels" not in batch:
        raise MethodRefusedError("chunking the loss needs a batch that is a mapping with labels")
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    hidden = model.base_model(**inputs).last_hidden_state
    head = model.get_output_embeddings()
    # Tokens before position n predict token n, as transformers' ForCausalLMLoss does.
    targets = functional.pad(batch["labels"], (0, 1), value=IGNORED_TARGET)[..., 1:]
    return hidden, head.weight, head.bias, targets


def exposes_linear_head(training: Training, batch: Any) -> tuple[bool, str]:
    """Check numerically whether the loss of a batch is the cross entropy of one linear layer.

    Both forms are computed with the same random numbers, once with the model as it is and once with the layer's weights
    scaled up: for logits near zero, ``log(classes)`` hides soft-capping and a wrong scale. Weights, buffers, gradients
    and the random state stay as they were. ``training`` is one to which no method was applied.

    Returns:
        The answer, and why (or why it is trusted).
    """
    try:
        head = find_linear_head(training)
        moved = move(batch, training.device)
        with _restored(training.model.buffers()), torch.no_grad():
            _, weight, bias, _ = parts = _seeded(lambda: head(training.model, moved))
            spread = float(functional.linear(parts[0].reshape(-1, parts[0].size(-1))[:256], weight, bias).std())
            drifts = [_drift(training, head, moved)]
            if spread > 0 and isinstance(weight, torch.nn.Parameter):
                with _restored([weight]):
                    weight.mul_(_LOUD / spread)
                    drifts.append(_drift(training, head, moved))
    except MethodRefusedError as error:
        return False, str(error)
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return False, f"the hidden states and the output layer could not be used: {type(error).__name__}: {error}"
    worst = max(drifts)
    if not worst <= _TOLERANCE:
        return False, (
            f"the loss is not the cross entropy of the output layer alone: computed that way it differs by {worst:.1e} "
            f"(more than {_TOLERANCE:.0e}); the model may cap, scale or add to it"
        )
    return True, f"computed from the output layer, the loss of a batch differs by {worst:.1e} at most"


def _drift(training: Training, head: LinearHead, batch: Any) -> float:
    plain = _seeded(lambda: training.compute_loss(training.model, batch))
    parts = _seeded(lambda: head(training.model, batch))
    chunked = chunked_loss(*parts, chunks=2)
    return float((chunked - plain).abs() / plain.abs())


def _seeded(function: Any) -> Any:
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(0)
        return function()


@contextlib.contextmanager
def _restored(tensors: Iterable[torch.Tensor]) -> Generator[None, None, None]:
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, saved in before:
                tensor.copy_(saved)
