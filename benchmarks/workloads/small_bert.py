"""A BERT classifier of half a million parameters; its head is small, so the activations of its blocks dominate."""

import torch
from transformers import BertConfig, BertForSequenceClassification

BATCH_SIZE = 4

_VOCABULARY = 2048
_TOKENS = 32
_CLASSES = 4


def build_model():
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=_VOCABULARY,
            hidden_size=96,
            num_hidden_layers=4,
            num_attention_heads=4,
            intermediate_size=384,
            max_position_embeddings=_TOKENS,
            num_labels=_CLASSES,
        )
    )


def make_batch(batch_size):
    return {
        "input_ids": torch.randint(_VOCABULARY, (batch_size, _TOKENS)),
        "attention_mask": torch.ones(batch_size, _TOKENS, dtype=torch.long),
        "labels": torch.randint(_CLASSES, (batch_size,)),
    }
