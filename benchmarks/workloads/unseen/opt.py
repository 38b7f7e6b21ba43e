"""A decoder with learned positions and biases."""

import torch
from transformers import OPTConfig, OPTForCausalLM

BATCH_SIZE = 4


def build_model(blocks=6):
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=8192, hidden_size=512, ffn_dim=2048, num_hidden_layers=blocks, num_attention_heads=8,
            max_position_embeddings=512, word_embed_proj_dim=512, use_cache=False,
        )
    )  # fmt: skip


def make_batch(batch_size):
    tokens = torch.randint(8192, (batch_size, 384))
    return {"input_ids": tokens, "labels": tokens.clone()}
