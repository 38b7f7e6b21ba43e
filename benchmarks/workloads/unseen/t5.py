"""An encoder and a decoder with relative position biases in attention."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

BATCH_SIZE = 4


def build_model(blocks=4):
    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=8192, d_model=384, d_kv=64, d_ff=1536, num_layers=blocks, num_heads=6, use_cache=False,
            decoder_start_token_id=0,
        )
    )  # fmt: skip


def make_batch(batch_size):
    return {
        "input_ids": torch.randint(8192, (batch_size, 256)),
        "labels": torch.randint(8192, (batch_size, 128)),
    }
