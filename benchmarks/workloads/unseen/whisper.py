"""Speech to text: convolutions in front of an encoder, and a decoder."""

import torch
from transformers import WhisperConfig, WhisperForConditionalGeneration

BATCH_SIZE = 4


def build_model(blocks=4):
    return WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=8192, d_model=384, encoder_layers=blocks, decoder_layers=blocks, encoder_attention_heads=6,
            decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536, max_source_positions=300,
            max_target_positions=128, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            use_cache=False,
        )
    )  # fmt: skip


def make_batch(batch_size):
    return {
        "input_features": torch.randn(batch_size, 80, 600),
        "labels": torch.randint(3, 8192, (batch_size, 128)),
    }
