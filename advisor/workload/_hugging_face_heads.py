"""Which class of transformers trains a config with a loss: the one that the config names, or the usual one."""

from __future__ import annotations

from typing import Any, NamedTuple

import transformers
from transformers.models.auto import modeling_auto

from advisor.errors import WorkloadError

__all__ = ["Head", "head_of"]


class Head(NamedTuple):
    """Models that share their inputs and the kind of their loss.

    Attributes:
        name: What they are called.
        mapping: The mapping of transformers from model type to class that lists where it exists.
        builder: The class of transformers that builds them.
        reads: What a sample is: ``"text"``, ``"image"`` or ``"sound"``.
    """

    name: str
    mapping: str
    builder: str
    reads: str


_CAUSAL, _MASKED, _BOTH_SIDES = "causal language model", "masked language model", "sequence-to-sequence model"

_HEADS = tuple(
    Head(name, f"MODEL_FOR_{mapping}_MAPPING_NAMES", f"AutoModelFor{builder}", reads)
    for name, mapping, builder, reads in (
        (_CAUSAL, "CAUSAL_LM", "CausalLM", "text"),
        (_MASKED, "MASKED_LM", "MaskedLM", "text"),
        (_BOTH_SIDES, "SEQ_TO_SEQ_CAUSAL_LM", "Seq2SeqLM", "text"),
        ("image classifier", "IMAGE_CLASSIFICATION", "ImageClassification", "image"),
        ("semantic segmentation model", "SEMANTIC_SEGMENTATION", "SemanticSegmentation", "image"),
        ("speech-to-text model", "SPEECH_SEQ_2_SEQ", "SpeechSeq2Seq", "sound"),
        ("CTC speech recognizer", "CTC", "CTC", "sound"),
        ("audio classifier", "AUDIO_CLASSIFICATION", "AudioClassification", "sound"),
        ("text classifier", "SEQUENCE_CLASSIFICATION", "SequenceClassification", "text"),
        ("token classifier", "TOKEN_CLASSIFICATION", "TokenClassification", "text"),
        ("question answering model", "QUESTION_ANSWERING", "QuestionAnswering", "text"),
    )
)
"""Where a config names no class, the first that its type has is taken."""


def head_of(config: Any, location: str) -> tuple[Head, Any]:
    """The head of a config, and the transformers class that builds it.

    It is the one that the config's ``architectures`` name; else that of an encoder-decoder or a masked language model
    where the type has it (BERT is also listed as causal, because it can decode); else the first that there is.

    Raises:
        WorkloadError: transformers has none of these heads for the type.
    """
    available: dict[str, Head] = {}
    both_sides = bool(getattr(config, "is_encoder_decoder", False))
    for head in _HEADS:
        classes = getattr(modeling_auto, head.mapping).get(config.model_type)
        if classes is None:
            continue
        if both_sides and head.name == _CAUSAL and not config.architectures:
            continue  # half of the model, and for speech models not the half that is trained
        available[head.name] = head
        if set(config.architectures or ()) & {classes, *(classes if isinstance(classes, tuple) else ())}:
            return head, getattr(transformers, head.builder)
    if not available:
        raise WorkloadError(
            f"{location} must be one of these to be built without a file: {', '.join(head.name for head in _HEADS)}; "
            f"but transformers has none of these heads for {config.model_type!r}. "
            "Write a Python file with build_model and make_batch for it."
        )
    one_side = _CAUSAL if getattr(config, "is_decoder", False) else _MASKED
    preferred = _BOTH_SIDES if both_sides else one_side
    head = available.get(preferred) or next(iter(available.values()))
    return head, getattr(transformers, head.builder)
