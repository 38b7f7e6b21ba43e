"""BERT-base as a classifier of random tokens, in sizes up to well above BERT-large (24 and 1024)."""

import torch
from transformers import BertConfig, BertForSequenceClassification

_TOKENS = 512 if torch.cuda.is_available() else 64
_VOCABULARY = 30522
_CLASSES = 4

BATCH_SIZE = 8
SIZES = {"layers": [12, 24, 36, 48], "width": [768, 1024, 1280]}


def build_model(layers=12, width=768):
    return BertForSequenceClassification(
        BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            num_labels=_CLASSES,
        )
    )


def make_batch(batch_size):
    return {
        "input_ids": torch.randint(_VOCABULARY, (batch_size, _TOKENS)),
        "attention_mask": torch.ones(batch_size, _TOKENS, dtype=torch.long),
        "labels": torch.randint(_CLASSES, (batch_size,)),
    }
