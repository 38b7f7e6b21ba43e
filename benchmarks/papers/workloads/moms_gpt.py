"""A GPT of any depth and width; the published small one has 12 layers of 768."""

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def build_model(layers=12, width=768, head=64, vocabulary=50257, tokens=1024):
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=tokens,
            n_embd=width,
            n_layer=layers,
            n_head=width // head,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
        )
    )


def make_batch(batch_size, vocabulary=50257, tokens=1024):
    words = torch.randint(vocabulary, (batch_size, tokens))
    return {"input_ids": words, "labels": words.clone()}
