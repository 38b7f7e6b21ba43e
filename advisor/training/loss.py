"""The loss of a batch, and checks that it is usable."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

import torch

from advisor.errors import WorkloadError

__all__ = ["check_loss", "default_loss", "is_causal_loss", "require_trainable"]

_TARGETS = ("labels", "label", "targets", "target", "y")
_PASSED = "**{{name: value for name, value in batch.items() if name != {}}}"


def default_loss(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    """The loss when the workload defines none: what the model itself returns for the batch.

    A mapping is passed as keywords, a tuple or list as positional arguments, anything else as a single argument.
    The loss is the output's ``.loss``, its ``["loss"]``, the output itself if that is a scalar tensor, or the first of
    several outputs if that alone is one.

    Raises:
        WorkloadError: The output has no loss.
    """
    call, arguments, keywords = _call_of(batch)
    try:
        output = model(*arguments, **keywords)
    except TypeError:
        _check_signature(model, call, arguments, keywords, batch)
        raise
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None and isinstance(output, torch.Tensor) and output.numel() == 1:
        loss = output
    if loss is None and isinstance(output, tuple | list):
        scalars = [one for one in output if isinstance(one, torch.Tensor) and one.dim() == 0]
        loss = scalars[0] if len(scalars) == 1 and output[0] is scalars[0] and output[0].is_floating_point() else None
    if isinstance(loss, torch.Tensor):
        return loss
    raise WorkloadError(
        "without compute_loss, the model must return its loss (a scalar tensor, or an output with .loss or "
        f'["loss"]), but it returned {_describe(output)}; add to the workload, for example:\n\n'
        f"{_lines(batch, call, output)}\n"
    )


def _call_of(batch: Any) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, Mapping):
        return "model(**batch)", (), dict(batch)
    if isinstance(batch, tuple | list):
        return "model(*batch)", tuple(batch), {}
    return "model(batch)", (batch,), {}


def _check_signature(
    model: torch.nn.Module, call: str, arguments: tuple[Any, ...], keywords: dict[str, Any], batch: Any
) -> None:
    """Check that the model accepts the batch; a model with other arguments needs ``compute_loss``."""
    try:
        inspect.signature(model.forward).bind(*arguments, **keywords)
    except TypeError as error:
        raise WorkloadError(
            f"without compute_loss, the model is called as {call}, but its forward method does not take that: {error}; "
            f"add to the workload, for example:\n\n{_lines(batch, call, _without_targets(model, batch))}\n"
        ) from None
    except ValueError:
        return  # a signature that cannot be read


def _without_targets(model: torch.nn.Module, batch: Any) -> Any:
    """The model's output for a batch without its targets; ``None`` if it does not accept that either."""
    if isinstance(batch, Mapping):
        keywords = {str(name): value for name, value in batch.items() if str(name) != _target_of(batch)}
        arguments = tuple(keywords.values()) if len(keywords) == 1 else ()
        keywords = {} if arguments else keywords
    else:
        arguments, keywords = tuple(batch[:-1]) if isinstance(batch, tuple | list) else (), {}
    with contextlib.suppress(Exception), torch.no_grad():
        return model(*arguments, **keywords)
    return None


def _target_of(batch: Mapping[Any, Any]) -> str:
    """Which part of a mapping holds the targets: by its name, or the last one."""
    names = [str(name) for name in batch]
    return next((name for name in _TARGETS if name in names), names[-1] if len(names) > 1 else "labels")


def _lines(batch: Any, call: str, output: Any) -> str:
    place = _place_of_loss(output)
    if place is not None:
        return f"    def compute_loss(model, batch):\n        return {call}[{json.dumps(place)}]"
    made, targets, first = call, "targets", ""
    if isinstance(batch, Mapping):
        target = _target_of(batch)
        others = [str(name) for name in batch if str(name) != target]
        passed = f"batch[{json.dumps(others[0])}]" if len(others) == 1 else _PASSED.format(json.dumps(target))
        made, targets = f"model({passed})", f"batch[{json.dumps(target)}]"
    elif isinstance(batch, tuple | list) and len(batch) > 1:
        inputs = "inputs" if len(batch) == 2 else "*inputs"
        made, targets, first = f"model({inputs})", "targets", f"        {inputs}, targets = batch\n"
    if isinstance(output, tuple | list):
        made += "[0]"
    elif isinstance(output, Mapping) and output:
        made += f"[{json.dumps(str(next(iter(output))))}]"
    loss = "mse_loss" if _has_float_targets(batch) else "cross_entropy"
    return f"    def compute_loss(model, batch):\n{first}        return torch.nn.functional.{loss}({made}, {targets})"


def _place_of_loss(output: Any) -> Any:
    """Where the loss seems to be in an output: its only scalar with a gradient; ``None`` if ambiguous."""
    parts = (
        output if isinstance(output, Mapping) else dict(enumerate(output if isinstance(output, tuple | list) else ()))
    )
    found = [
        key for key, part in parts.items() if isinstance(part, torch.Tensor) and part.dim() == 0 and part.requires_grad
    ]
    return found[0] if len(found) == 1 else None


def _has_float_targets(batch: Any) -> bool:
    """Whether the last of several parts, which is where targets are, holds real numbers."""
    values = list(batch.values()) if isinstance(batch, Mapping) else batch
    last = values[-1] if isinstance(values, list | tuple) and len(values) > 1 else None
    return isinstance(last, torch.Tensor) and last.is_floating_point()


def require_trainable(loss: Any) -> torch.Tensor:
    """The loss as a zero-dimensional tensor, if a backward pass can start from it. Reads no value (no device sync).

    Raises:
        WorkloadError: It is not a tensor, not a scalar, not a real float, or has no gradient.
    """
    if not isinstance(loss, torch.Tensor):
        raise WorkloadError(
            f"compute_loss must return a scalar tensor, but it returned {_describe(loss)}; "
            "return the loss itself, before .item()"
        )
    if loss.numel() != 1:
        raise WorkloadError(
            f"the loss must be a scalar, but its shape is {tuple(loss.shape)}; reduce it, e.g. with .mean()"
        )
    if not loss.is_floating_point():
        raise WorkloadError(f"the loss must be a real floating-point tensor, but its type is {loss.dtype}")
    if not loss.requires_grad:
        raise WorkloadError(
            "the loss must depend on parameters that require a gradient, but it has none; remove torch.no_grad(), "
            ".detach() or .item() from the loss, and leave requires_grad=True on what is to be trained"
        )
    return loss if loss.dim() == 0 else loss.reshape(())


def check_loss(loss: Any) -> torch.Tensor:
    """:func:`require_trainable`, and the value must be finite. For the probe: it reads the value.

    Raises:
        WorkloadError: It is not a tensor, not a scalar, has no gradient, or is NaN or infinite.
    """
    scalar = require_trainable(loss)
    if not bool(torch.isfinite(scalar.detach())):
        raise WorkloadError(
            f"the first loss must be finite, but it is {scalar.item()}; look for a division by zero, a logarithm of "
            "zero, or a sample without any target"
        )
    return scalar


def is_causal_loss(model: torch.nn.Module) -> bool:
    """Whether the model's own loss is transformers' next-token loss, which shifts the labels by one.

    Encoder-decoder models carry the same ``loss_function`` but do not shift: their decoder inputs are shifted.
    """
    name = getattr(getattr(model, "loss_function", None), "__name__", "")
    return name == "ForCausalLMLoss" and not getattr(getattr(model, "config", None), "is_encoder_decoder", False)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {sorted(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(_describe(item) for item in value[:4])}"
    return f"a {type(value).__name__}"
