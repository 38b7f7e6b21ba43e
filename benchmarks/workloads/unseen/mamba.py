"""A state-space model, without custom kernels."""

import torch
from transformers import MambaConfig, MambaForCausalLM

BATCH_SIZE = 2


def build_model(blocks=4):
    return MambaForCausalLM(
        MambaConfig(vocab_size=4096, hidden_size=256, num_hidden_layers=blocks, state_size=16, use_cache=False)
    )


def make_batch(batch_size):
    tokens = torch.randint(4096, (batch_size, 64))
    return {"input_ids": tokens, "labels": tokens.clone()}
