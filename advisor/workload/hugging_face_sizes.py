"""Larger and smaller variants of a Hugging Face config: depth, width in steps of whole heads, image size, tokens."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["TOKENS", "Sizes", "inferred_sizes", "own_values", "resized", "with_defaults"]

Sizes = dict[str, tuple[int | float, ...]]

TOKENS = "tokens"
"""Argument of the batches of text: tokens of a sample. The other arguments are the config's own names."""

_DEPTHS = ("num_hidden_layers", "decoder_layers")
_SAME_DEPTH = ("num_decoder_layers", "encoder_layers")
"""The other half of an encoder-decoder grows with the first."""
_WIDTH, _HEADS = "hidden_size", "num_attention_heads"
_LIKE_HEADS = ("num_key_value_heads",)
_LIKE_WIDTH = ("intermediate_size", "d_ff", "n_inner", "ffn_dim")
"""Fields that grow with the width; if absent from a config, the model derives them from the width."""
_DEPTH_LIST, _WIDTH_LISTS = "depths", ("hidden_sizes", "embedding_size")
_DEPTH_FACTOR, _WIDTH_FACTOR = "depth_factor", "width_factor"
"""Convolutional configs have a depth and a width for every stage: all grow together."""

_DEPTH_STEPS = (0.5, 1, 1.5, 2, 3, 4, 6)
_WIDTH_STEPS = (1, 1.5, 2, 3)
_BATCH_STEPS = (1, 1.5, 2)
"""Depth x width x image size or tokens: 84 sizes at most, of 28 different models."""


def inferred_sizes(config: Any, *, tokens: int | None, most_tokens: int | None) -> Sizes:
    """The sizes to try for a config, including its own.

    Its samples have ``tokens`` now (``None`` for images), and at most ``most_tokens`` (``None`` if unknown).
    """
    sizes: Sizes = {}
    depth: str | None = next((name for name in _DEPTHS if _whole(config, name)), None)
    if depth is not None:
        sizes[depth] = _multiples(getattr(config, depth), _DEPTH_STEPS)
    elif isinstance(getattr(config, _DEPTH_LIST, None), list | tuple):
        sizes[_DEPTH_FACTOR] = (1, 2, 3, 4, 6)
    if _whole(config, _WIDTH) and _whole(config, _HEADS) and getattr(config, _WIDTH) % getattr(config, _HEADS) == 0:
        heads = getattr(config, _HEADS)
        head = getattr(config, _WIDTH) // heads
        counts = [count for count in _multiples(heads, _WIDTH_STEPS) if _fits_groups(config, count)]
        sizes[_WIDTH] = tuple(head * count for count in counts)
    elif isinstance(getattr(config, _WIDTH_LISTS[0], None), list | tuple):
        sizes[_WIDTH_FACTOR] = (1, 2, 3, 4)
    if tokens is not None:
        wanted = _multiples(tokens, _BATCH_STEPS)
        sizes[TOKENS] = tuple(count for count in wanted if most_tokens is None or count <= most_tokens)
    elif _whole(config, "image_size"):
        patch = getattr(config, "patch_size", 1)
        patch = patch if isinstance(patch, int) and patch > 0 else 1
        wanted = _multiples(config.image_size, _BATCH_STEPS)
        sizes["image_size"] = tuple(size for size in wanted if size == config.image_size or size % patch == 0)
    return {name: values for name, values in sizes.items() if len(values) > 1}


def own_values(config: Any, sizes: Sizes, tokens: int | None) -> dict[str, int | float]:
    """The values that a config has itself."""
    special = {_DEPTH_FACTOR: 1, _WIDTH_FACTOR: 1, TOKENS: tokens or 0}
    return {name: special[name] if name in special else getattr(config, name) for name in sizes}


def resized(config: Any, size: Mapping[str, int | float]) -> Any:
    """A copy of a config at another size. Head size stays; fields that depend on the width scale with it."""
    config = copy.deepcopy(config)
    for name, value in size.items():
        if name == TOKENS:
            continue
        if name == _DEPTH_FACTOR:
            config.depths = [int(blocks * value) for blocks in config.depths]
        elif name == _WIDTH_FACTOR:
            for field in _WIDTH_LISTS:
                widths: Any = getattr(config, field, None)
                if isinstance(widths, list | tuple):
                    setattr(config, field, [int(one * value) for one in widths])
                elif _whole(config, field):
                    setattr(config, field, int(widths * value))
        else:
            together = {_WIDTH: (*_LIKE_HEADS, *_LIKE_WIDTH, _HEADS), **dict.fromkeys(_DEPTHS, _SAME_DEPTH)}
            for field in together.get(name, ()):
                if _whole(config, field):
                    setattr(config, field, max(1, round(getattr(config, field) * value / getattr(config, name))))
            if name in _DEPTHS:
                _repeat_layers(config, getattr(config, name), int(value))
            setattr(config, name, value)
    return config


def _repeat_layers(config: Any, layers: int, wanted: int) -> None:
    """Give what a config lists layer by layer, such as which of them slide their attention, another length."""
    for name, listed in list(vars(config).items()):
        if "layer" in name and isinstance(listed, list | tuple) and len(listed) == layers:
            numbers = list(listed) == list(range(layers))  # every layer by its number, not one value for each
            setattr(config, name, [number if numbers else listed[number % layers] for number in range(wanted)])


def with_defaults(function: Callable[..., Any], defaults: Mapping[str, int | float]) -> Callable[..., Any]:
    """A function of ``**size`` whose signature lists the size arguments it takes, for callers to inspect."""
    known = inspect.signature(function).parameters.values()
    kept = [parameter for parameter in known if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    function.__signature__ = inspect.Signature([*kept, *added])  # type: ignore[attr-defined]
    return function


def _fits_groups(config: Any, heads: int) -> bool:
    """Whether grouped keys and values still divide the heads when both scale."""
    groups = getattr(config, _LIKE_HEADS[0], None)
    if not isinstance(groups, int) or groups < 1:
        return True
    grown = groups * heads / getattr(config, _HEADS)
    return grown == int(grown) and heads % int(grown) == 0


def _multiples(value: int, steps: tuple[float, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(value * step) for step in steps if value * step == int(value * step) > 0))


def _whole(config: Any, name: str) -> bool:
    value = getattr(config, name, None)
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
