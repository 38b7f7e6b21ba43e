"""A decoder with transposed projection weights and dropout everywhere."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4


def build_model(blocks=5):
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=12000, n_positions=320, n_embd=448, n_layer=blocks, n_head=7, use_cache=False)
    )


def make_batch(batch_size):
    tokens = torch.randint(12000, (batch_size, 320))
    return {"input_ids": tokens, "labels": tokens.clone()}
