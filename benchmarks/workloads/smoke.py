"""A GPT-2 so small that every method runs on a CPU in about a second: for the smoke size of the benchmarks."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4

_VOCABULARY = 512
_TOKENS = 32


def build_model():
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=_VOCABULARY, n_positions=_TOKENS, n_embd=64, n_layer=4, n_head=4, use_cache=False)
    )


def make_batch(batch_size):
    tokens = torch.randint(_VOCABULARY, (batch_size, _TOKENS))
    return {"input_ids": tokens, "labels": tokens.clone()}
