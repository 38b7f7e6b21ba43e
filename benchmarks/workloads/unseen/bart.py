"""An encoder and a decoder, with learned positions."""

import torch
from transformers import BartConfig, BartForConditionalGeneration

BATCH_SIZE = 4


def build_model(blocks=4):
    return BartForConditionalGeneration(
        BartConfig(
            vocab_size=8192, d_model=384, encoder_layers=blocks, decoder_layers=blocks, encoder_attention_heads=6,
            decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, max_position_embeddings=256,
            use_cache=False,
        )
    )  # fmt: skip


def make_batch(batch_size):
    return {
        "input_ids": torch.randint(3, 8192, (batch_size, 256)),
        "labels": torch.randint(3, 8192, (batch_size, 128)),
    }
