"""A workload from a Hugging Face model type or config: the architecture with random weights, and batches to match.

No weights are read. The config is used as it is (dropout included), except that the key-value cache is off: training
does not use it, and it would count as memory.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
import transformers

from advisor.errors import WorkloadError
from advisor.workload._hugging_face_batches import image_batches, text_batches
from advisor.workload._hugging_face_heads import Head, head_of
from advisor.workload._hugging_face_sounds import sound_batches
from advisor.workload._user_functions import Workload
from advisor.workload.hugging_face_sizes import TOKENS, inferred_sizes, own_values, resized, with_defaults
from advisor.workload.workload import Stated

__all__ = ["hugging_face_workload"]

_LONGEST = 512
"""Tokens of a sample, unless the model takes fewer: long enough to be typical, short enough to fit most devices."""

_POSITIONS_AFTER_PADDING = frozenset({"camembert", "data2vec-text", "ibert", "longformer", "luke", "mluke", "mpnet"})
"""Types that, like RoBERTa, count positions from behind the padding token's number, so that fewer tokens fit."""


def hugging_face_workload(location: str, stated: Stated = Stated()) -> Workload:  # noqa: B008 - a constant
    """Make the workload of a model type or config, with the head that :func:`head_of` finds for it.

    Args:
        location: A model type such as ``"bert"``, or the path of a ``config.json``.
        stated: The size of a sample, where the user says it.

    Raises:
        WorkloadError: transformers does not know the type, the config does not fit it, or there are no batches for it,
            or none of the size that is stated.
    """
    config = _config(location)
    config.architectures = config.architectures or []  # of several classes of a type, transformers looks for one here
    head, builder = head_of(config, location)
    _check_stated(head, stated)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if head.name == "sequence-to-sequence model" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # as T5 does; its labels need one
    if stated.image_size is not None:
        _resize_images(config, stated.image_size)
    text, tokens = head.reads == "text", None
    if text:
        tokens = _length(_text_config(config), stated.tokens)
    make_batch, described = _batches(head, config, location, tokens, stated)

    def build_model(**size: int | float) -> torch.nn.Module:
        # Weights in float32 whatever the config's format: lower precision is left to the precision method.
        model: torch.nn.Module = builder.from_config(resized(config, size), dtype=torch.float32)
        return model.train()

    sizes = inferred_sizes(config, tokens=tokens, most_tokens=_positions(_text_config(config)) if text else None)
    own = own_values(config, sizes, tokens)
    build_model = with_defaults(build_model, {name: value for name, value in own.items() if name != TOKENS})
    note = f"{type(config).__name__} as {head.name} with random float32 weights; a sample is {described}"
    return Workload(build_model=build_model, make_batch=make_batch, sizes=sizes, notes=(note,))


def _config(location: str) -> Any:
    path = Path(location)
    try:
        if path.suffix == ".json":
            # A repository's own code is not run: nobody has looked at it.
            return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
        known = sorted(transformers.CONFIG_MAPPING.keys())
        if location not in known:
            near = difflib.get_close_matches(location, known, n=4, cutoff=0.5)
            hint = f" Did you mean {' or '.join('hf:' + name for name in near)}?" if near else ""
            if (path / "config.json").is_file():
                hint += f" There is a folder {location} with a config.json here; to use it, write ./{location}."
            raise WorkloadError(
                f"hf: takes a model type that transformers {transformers.__version__} knows ({len(known)} of them), "
                f"or a repository such as hf:google-bert/bert-base-uncased, but got {'hf:' + location!r}.{hint}"
            )
        return transformers.AutoConfig.for_model(location)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"a model type or config must be one that transformers {transformers.__version__} accepts, "
            f"but for {location} it raised {type(error).__name__}: {error}"
        ) from error


def _check_stated(head: Head, stated: Stated) -> None:
    """Require that what is stated of a sample is something that the head's samples have."""
    if stated.tokens is not None and (head.reads == "image" or head.name == "audio classifier"):
        raise WorkloadError(f"--tokens is for models of text, but this is an {head.name}. Leave it out.")
    if stated.image_size is not None and head.reads != "image":
        raise WorkloadError(f"--image-size is for models of images, but this is a {head.name}. Leave it out.")


def _resize_images(config: Any, size: int) -> None:
    """Set a config's own image size, from which some models derive their positions.

    Raises:
        WorkloadError: It is no multiple of the patches.
    """
    patch = getattr(config, "patch_size", None)
    if isinstance(patch, int) and patch > 0 and size % patch:
        raise WorkloadError(
            f"--image-size must be a multiple of the config's patch_size, which is {patch}, but it is {size}. "
            f"Take {max(1, size // patch) * patch} or {(size // patch + 1) * patch}."
        )
    config.image_size = size


def _batches(head: Head, config: Any, location: str, tokens: int | None, stated: Stated) -> tuple[Any, str]:
    if head.reads == "image":
        return image_batches(head.name, config)
    if head.reads == "sound":
        return sound_batches(head.name, config, location, stated.tokens)
    text = _text_config(config)
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int) or vocabulary < 2:
        raise WorkloadError(
            f"{location} must have a vocab_size for batches of text, but its config has {vocabulary!r}. "
            "Write a Python file with build_model and make_batch for it."
        )
    assert tokens is not None, "text has a length"
    return text_batches(head.name, vocabulary, tokens, int(config.num_labels))


def _text_config(config: Any) -> Any:
    return getattr(config, "get_text_config", lambda: config)()


def _length(config: Any, stated: int | None) -> int:
    """Tokens of a sample: as stated, or the usual number where the model takes as many."""
    positions = _positions(config)
    if stated is None:
        return _LONGEST if positions is None else min(positions, _LONGEST)
    if positions is not None and stated > positions:
        raise WorkloadError(
            f"--tokens must be at most what the model takes, but it is {stated} and the config has {positions} "
            f"positions. Take {positions} or fewer, or raise them in a config.json of your own."
        )
    return stated


def _positions(config: Any) -> int | None:
    """The maximum number of tokens, if the config states it."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        positions = getattr(config, name, None)
        if isinstance(positions, int) and positions > 0:
            shifted = "roberta" in config.model_type or config.model_type in _POSITIONS_AFTER_PADDING
            offset = (config.pad_token_id or 0) + 1 if shifted else 0
            return positions - offset
    return None
