"""A GPT-2 of half a million parameters: a step of a few samples takes one core of a CPU some tens of milliseconds."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4

_VOCABULARY = 2048
_TOKENS = 24


def build_model():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=_VOCABULARY, n_positions=_TOKENS, n_embd=96, n_layer=4, n_head=4, use_cache=False)
    )


def make_batch(batch_size):
    tokens = torch.randint(_VOCABULARY, (batch_size, _TOKENS))
    return {"input_ids": tokens, "labels": tokens.clone()}
