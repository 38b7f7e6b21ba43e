"""An encoder with a mask that differs between samples."""

import torch
from transformers import RobertaConfig, RobertaForMaskedLM

BATCH_SIZE = 4


def build_model(blocks=6):
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=8192, hidden_size=384, intermediate_size=1536, num_hidden_layers=blocks, num_attention_heads=6,
            max_position_embeddings=300,
        )
    )  # fmt: skip


def make_batch(batch_size):
    tokens = torch.randint(3, 8192, (batch_size, 256))
    lengths = torch.randint(64, 257, (batch_size, 1))
    lengths[0] = 256
    # Already expanded: whether a per-token mask is expanded depends on its values, which the software GPU does not
    # have.
    mask = (torch.arange(256) < lengths)[:, None, None, :].expand(batch_size, 1, 256, 256).contiguous()
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
