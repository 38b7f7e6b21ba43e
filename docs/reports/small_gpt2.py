"""A GPT-2 of half a million parameters, whose depth and width `--goal bigger` may change."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4
SIZES = {"layers": [4, 6, 8, 12, 16, 24], "width": [96, 128, 160, 224, 288, 384]}

_VOCABULARY = 2048
_TOKENS = 24


def build_model(layers=4, width=96):
    """Plain, untrained; by default at its own size."""
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=_VOCABULARY, n_positions=_TOKENS, n_embd=width, n_layer=layers, n_head=4, use_cache=False)
    )


def make_batch(batch_size):
    """Random tokens, the same for input and target."""
    tokens = torch.randint(_VOCABULARY, (batch_size, _TOKENS))
    return {"input_ids": tokens, "labels": tokens.clone()}
