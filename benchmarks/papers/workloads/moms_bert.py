"""A BERT classifier of any depth and width; the published BERT-Large has 24 layers of 1,024."""

import torch
from transformers import BertConfig, BertForSequenceClassification

_CLASSES = 2


def build_model(layers=24, width=1024, head=64, vocabulary=30522, tokens=128):
    return BertForSequenceClassification(
        BertConfig(
            vocab_size=vocabulary,
            max_position_embeddings=tokens,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // head,
            intermediate_size=4 * width,
            num_labels=_CLASSES,
            problem_type="single_label_classification",
        )
    )


def make_batch(batch_size, vocabulary=30522, tokens=128):
    words = torch.randint(vocabulary, (batch_size, tokens))
    return {"input_ids": words, "labels": torch.randint(_CLASSES, (batch_size,))}
