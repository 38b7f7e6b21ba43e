"""A decoder with grouped-query attention."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH_SIZE = 4


def build_model(blocks=6):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=blocks, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=512, use_cache=False,
        )
    )  # fmt: skip


def make_batch(batch_size):
    tokens = torch.randint(8192, (batch_size, 512))
    return {"input_ids": tokens, "labels": tokens.clone()}
