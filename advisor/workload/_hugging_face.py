"""A workload from a Hugging Face model type or config: the architecture with random weights, and batches to match.

Nothing is downloaded. The config is used as it is (dropout included), except that the key-value cache is off: training
does not use it, and it would count as memory.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto

from advisor.errors import WorkloadError
from advisor.workload._hugging_face_batches import image_batches, text_batches
from advisor.workload._user_functions import Workload
from advisor.workload.hugging_face_sizes import TOKENS, inferred_sizes, own_values, resized, with_defaults

__all__ = ["hugging_face_workload"]

_LONGEST = 512
"""Tokens of a sample, unless the model takes fewer: long enough to be typical, short enough to fit most devices."""

_HEADS = (
    ("causal language model", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    ("masked language model", "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    ("sequence-to-sequence model", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    ("image classifier", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForImageClassification"),
    ("text classifier", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForSequenceClassification"),
)
"""Head, the mapping from model type to class that lists where it exists, and the class that builds it."""

_POSITIONS_AFTER_PADDING = frozenset({"camembert", "data2vec-text", "ibert", "longformer", "luke", "mluke", "mpnet"})
"""Types that, like RoBERTa, count positions from behind the padding token's number, so that fewer tokens fit."""


def hugging_face_workload(location: str) -> Workload:
    """Make the workload of a model type or config.

    The head is the one that the config's ``architectures`` names; else that of an encoder-decoder or a masked language
    model where the type has it (BERT is also listed as causal, because it can decode); else the first that transformers
    has for the type: causal language model, image classifier, text classifier.

    Args:
        location: A model type such as ``"bert"``, or the path of a ``config.json``.

    Raises:
        WorkloadError: transformers does not know the type, the config does not fit it, or there are no batches for it.
    """
    config = _config(location)
    head, builder = _head(config, location)
    if hasattr(config, "use_cache"):
        config.use_cache = False
    if head == "sequence-to-sequence model" and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "pad_token_id", None) or 0  # as T5 does; its labels need one
    make_batch, described = _batches(head, config, location)

    def build_model(**size: int | float) -> torch.nn.Module:
        # Weights in float32 whatever the config's format: lower precision is left to the precision method.
        model: torch.nn.Module = builder.from_config(resized(config, size), dtype=torch.float32)
        return model.train()

    text = head != "image classifier"
    tokens = _length(_text_config(config)) if text else None
    sizes = inferred_sizes(config, tokens=tokens, most_tokens=_positions(_text_config(config)) if text else None)
    own = own_values(config, sizes, tokens)
    build_model = with_defaults(build_model, {name: value for name, value in own.items() if name != TOKENS})
    note = f"{type(config).__name__} as {head} with random float32 weights; a sample is {described}"
    return Workload(build_model=build_model, make_batch=make_batch, sizes=sizes, notes=(note,))


def _config(location: str) -> Any:
    path = Path(location)
    try:
        if path.suffix == ".json":
            return transformers.AutoConfig.from_pretrained(str(path), local_files_only=True)
        known = sorted(transformers.CONFIG_MAPPING.keys())
        if location not in known:
            near = difflib.get_close_matches(location, known, n=4, cutoff=0.5)
            hint = f" Did you mean {' or '.join('hf:' + name for name in near)}?" if near else ""
            raise WorkloadError(
                f"hf: takes a model type that transformers {transformers.__version__} knows ({len(known)} of them), "
                f"but got {'hf:' + location!r}.{hint}"
            )
        return transformers.AutoConfig.for_model(location)
    except WorkloadError:
        raise
    except Exception as error:
        raise WorkloadError(
            f"a model type or config must be one that transformers {transformers.__version__} accepts, "
            f"but for {location} it raised {type(error).__name__}: {error}"
        ) from error


def _head(config: Any, location: str) -> tuple[str, Any]:
    """The name of the head and the transformers class that builds it."""
    available: dict[str, str] = {}
    both_sides = bool(getattr(config, "is_encoder_decoder", False))
    for head, mapping, builder in _HEADS:
        classes = getattr(modeling_auto, mapping).get(config.model_type)
        if classes is None:
            continue
        if both_sides and head == "causal language model" and not config.architectures:
            continue  # half of the model, and for speech models not the half that is trained
        available[head] = builder
        if set(config.architectures or ()) & {classes, *(classes if isinstance(classes, tuple) else ())}:
            return head, getattr(transformers, builder)
    if not available:
        raise WorkloadError(
            f"{location} must be a language model, an image classifier or a text classifier to be built without a "
            f"file, but transformers has none of these heads for {config.model_type!r}. "
            "Write a Python file with build_model and make_batch for it."
        )
    one_side = "causal language model" if getattr(config, "is_decoder", False) else "masked language model"
    preferred = "sequence-to-sequence model" if both_sides else one_side
    head = preferred if preferred in available else next(iter(available))
    return head, getattr(transformers, available[head])


def _batches(head: str, config: Any, location: str) -> tuple[Any, str]:
    if head == "image classifier":
        return image_batches(config)
    text = _text_config(config)
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int) or vocabulary < 2:
        raise WorkloadError(
            f"{location} must have a vocab_size for batches of text, but its config has {vocabulary!r}. "
            "Write a Python file with build_model and make_batch for it."
        )
    return text_batches(head, vocabulary, _length(text), int(config.num_labels))


def _text_config(config: Any) -> Any:
    return getattr(config, "get_text_config", lambda: config)()


def _length(config: Any) -> int:
    positions = _positions(config)
    return _LONGEST if positions is None else min(positions, _LONGEST)


def _positions(config: Any) -> int | None:
    """The maximum number of tokens, if the config states it."""
    for name in ("max_position_embeddings", "n_positions", "max_seq_len"):
        positions = getattr(config, name, None)
        if isinstance(positions, int) and positions > 0:
            shifted = "roberta" in config.model_type or config.model_type in _POSITIONS_AFTER_PADDING
            offset = (config.pad_token_id or 0) + 1 if shifted else 0
            return positions - offset
    return None
