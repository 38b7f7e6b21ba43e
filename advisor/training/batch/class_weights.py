"""Observe what no batch shows of a loss: its class weights, and whether it shuffles samples."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode

from advisor.errors import WorkloadError

__all__ = ["MOST_CLASSES", "ClassWeighing", "ClassWeights", "check_weights"]

MOST_CLASSES = 1024
"""Longer vectors are ignored: they would fill the policy file."""

_MOST_HEARD = 64


class ClassWeighing(NamedTuple):
    """The weight of every class in a loss, and the class that does not count, if given."""

    weights: tuple[float, ...]
    ignore_index: int | None


class ClassWeights(TorchFunctionMode):
    """While entered, records the class weights that a loss uses or looks up, and what it shuffles.

    Attributes:
        heard: The class weights recorded.
        shuffled: The lengths of the random permutations drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[ClassWeighing] = []
        self.shuffled: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name in ("cross_entropy", "nll_loss"):
            given = dict(zip(("input", "target", "weight", "size_average", "ignore_index"), args, strict=False))
            given.update(kwargs or {})
            self._note(given.get("weight"), given.get("ignore_index", -100))
        elif name == "randperm" and isinstance(result, torch.Tensor):
            self.shuffled.add(result.numel())
        elif name in ("__getitem__", "gather", "index_select", "take") and args:
            self._note(args[0], None)
        return result

    def _note(self, vector: Any, ignore_index: int | None) -> None:
        if (
            isinstance(vector, torch.Tensor)
            and vector.dim() == 1
            and vector.is_floating_point()
            and not vector.requires_grad
            and 2 <= len(vector) <= MOST_CLASSES
            and len(self.heard) < _MOST_HEARD
        ):
            weighing = ClassWeighing(tuple(vector.detach().double().cpu().tolist()), ignore_index)
            if weighing not in self.heard:
                self.heard.append(weighing)


def check_weights(
    expected: tuple[float, ...],
    forward_contexts: list[Callable[[], contextlib.AbstractContextManager[Any]]],
    before_gradients_are_used: list[Callable[[], None]],
) -> None:
    """Check in the next step, before its update, that the class weights are as expected.

    Others than those with which the reduction of the loss was determined would weigh micro-batches wrongly.
    """
    listening = ClassWeights()

    def listen() -> ClassWeights:
        return listening

    def check() -> None:
        forward_contexts.remove(listen)
        before_gradients_are_used.remove(check)
        if listening.heard and not any(_are_alike(one.weights, expected) for one in listening.heard):
            raise WorkloadError(
                "the loss must weigh classes as it did when the policy was measured, since micro-batches are weighed "
                f"by that, but the weights are {_words(listening.heard[0].weights)} now, and were {_words(expected)}. "
                "Tune again, or say what the loss averages over with count_targets"
            )

    forward_contexts.append(listen)
    before_gradients_are_used.append(check)


def _are_alike(weights: tuple[float, ...], expected: tuple[float, ...]) -> bool:
    """Compares up to a factor, which a mean ignores."""
    if len(weights) != len(expected):
        return False
    factor = max(weights) / max(expected) if max(expected) else 1.0
    return all(math.isclose(one, factor * other, rel_tol=1e-4) for one, other in zip(weights, expected, strict=True))


def _words(weights: tuple[float, ...]) -> str:
    return ", ".join(f"{one:.4g}" for one in weights[:4]) + (" ..." if len(weights) > 4 else "")
