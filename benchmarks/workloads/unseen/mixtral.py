"""A mixture of experts."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

BATCH_SIZE = 4


def build_model(blocks=4):
    return MixtralForCausalLM(
        MixtralConfig(
            vocab_size=8192, hidden_size=384, intermediate_size=768, num_hidden_layers=blocks, num_attention_heads=6,
            num_key_value_heads=2, num_local_experts=4, max_position_embeddings=256, use_cache=False,
        )
    )  # fmt: skip


def make_batch(batch_size):
    tokens = torch.randint(8192, (batch_size, 256))
    return {"input_ids": tokens, "labels": tokens.clone()}
