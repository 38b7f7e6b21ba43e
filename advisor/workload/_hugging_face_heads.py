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
    reads: str = "text"


_CAUSAL, _MASKED, _BOTH_SIDES = "causal language model", "masked language model", "sequence-to-sequence model"

_HEADS = (
    Head(_CAUSAL, "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", "AutoModelForCausalLM"),
    Head(_MASKED, "MODEL_FOR_MASKED_LM_MAPPING_NAMES", "AutoModelForMaskedLM"),
    Head(_BOTH_SIDES, "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", "AutoModelForSeq2SeqLM"),
    Head("image classifier", "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForImageClassification", "image"),
    Head(
        "semantic segmentation model",
        "MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
        "AutoModelForSemanticSegmentation",
        "image",
    ),
    Head("speech-to-text model", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES", "AutoModelForSpeechSeq2Seq", "sound"),
    Head("CTC speech recognizer", "MODEL_FOR_CTC_MAPPING_NAMES", "AutoModelForCTC", "sound"),
    Head("audio classifier", "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", "AutoModelForAudioClassification", "sound"),
    Head("text classifier", "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", "AutoModelForSequenceClassification"),
    Head("token classifier", "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "AutoModelForTokenClassification"),
    Head("question answering model", "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", "AutoModelForQuestionAnswering"),
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
