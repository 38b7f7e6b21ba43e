"""A translation transformer with dynamic convolutions in place of self-attention (Wu et al. 2019).

By default in the size that Sohoni et al. train on IWSLT'14: with these vocabularies 38.7 million parameters, as theirs.
The sentences are synthetic: tokens follow Zipf's law, and each token translates to one token that depends on it alone.
"""

import math

import torch
from torch import nn
from torch.nn import functional

_HEADS = 4
_DROPOUT, _WEIGHT_DROPOUT = 0.3, 0.1
_LONGEST = 64
_KERNELS = (3, 7, 15, 31, 31, 31, 31)
_HELD_OUT = 128


class DynamicConvolution(nn.Module):
    """A weighted sum over neighbours, with weights that every position computes from itself."""

    def __init__(self, width, kernel, causal):
        super().__init__()
        self.kernel = kernel
        self.left = kernel - 1 if causal else kernel // 2
        self.gate = nn.Linear(width, 2 * width)
        self.weights = nn.Linear(width, _HEADS * kernel, bias=False)
        self.project = nn.Linear(width, width)

    def forward(self, states):
        """States of (samples, tokens, width)."""
        tokens, kernel = states.size(1), self.kernel
        states = functional.glu(self.gate(states))
        weights = self.weights(states).unflatten(-1, (_HEADS, kernel)).transpose(1, 2).softmax(-1)
        weights = functional.dropout(weights, _WEIGHT_DROPOUT, self.training)
        # A band matrix: every row of weights is shifted by one position, so that one product covers all positions.
        band = functional.pad(weights, (0, tokens)).flatten(-2)[..., : tokens * (tokens + kernel - 1)]
        band = band.unflatten(-1, (tokens, tokens + kernel - 1))
        around = functional.pad(states, (0, 0, self.left, kernel - 1 - self.left))
        around = around.unflatten(-1, (_HEADS, -1)).transpose(1, 2)
        return self.project((band @ around).transpose(1, 2).flatten(-2))


class CrossAttention(nn.Module):
    """Every position of the target attends to the source."""

    def __init__(self, width):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, states, source):
        """States of (samples, target tokens, width) and (samples, source tokens, width)."""
        parts = (self.query(states), self.key(source), self.value(source))
        query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value)
        return self.project(seen.transpose(1, 2).flatten(-2))


class Layer(nn.Module):
    """Dynamic convolution, in the decoder attention to the source, and an MLP, each with post-norm."""

    def __init__(self, width, inside, kernel, decodes):
        super().__init__()
        self.convolution = DynamicConvolution(width, kernel, causal=decodes)
        self.attention = CrossAttention(width) if decodes else None
        self.wide, self.narrow = nn.Linear(width, inside), nn.Linear(inside, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))

    def forward(self, states, source=None):
        """One block; the encoder output is only passed in the decoder."""
        states = self.norms[0](states + self._dropped(self.convolution(states)))
        if self.attention is not None:
            states = self.norms[1](states + self._dropped(self.attention(states, source)))
        inside = functional.relu(self.wide(states))
        return self.norms[-1](states + self._dropped(self.narrow(inside)))

    def _dropped(self, states):
        return functional.dropout(states, _DROPOUT, self.training)


BLOCKS = (Layer,)


class Translator(nn.Module):
    """Embeddings, encoder, decoder, and an output layer tied to the target embeddings."""

    def __init__(self, encoder_layers, decoder_layers, width, inside, source_vocabulary, target_vocabulary):
        super().__init__()
        self.source, self.target = (nn.Embedding(size, width) for size in (source_vocabulary, target_vocabulary))
        for table in (self.source, self.target):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.encoder = nn.ModuleList(Layer(width, inside, _KERNELS[n], False) for n in range(encoder_layers))
        self.decoder = nn.ModuleList(Layer(width, inside, _KERNELS[n], True) for n in range(decoder_layers))
        self.output = nn.Linear(width, target_vocabulary, bias=False)
        self.output.weight = self.target.weight
        self.scale = math.sqrt(width)
        angles = torch.arange(_LONGEST)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], dim=1))

    def get_output_embeddings(self):
        """The output layer, as transformers' models name it."""
        return self.output

    def forward(self, source, target):
        """Logits of (samples, tokens, target vocabulary)."""
        source = self._embedded(self.source, source)
        for layer in self.encoder:
            source = layer(source)
        states = self._embedded(self.target, target)
        for layer in self.decoder:
            states = layer(states, source)
        return self.output(states)

    def _embedded(self, table, tokens):
        states = self.scale * table(tokens) + self.places[: tokens.size(1)]
        return functional.dropout(states, _DROPOUT, self.training)


def build_model(
    encoder_layers=7, decoder_layers=6, width=512, inside=1024, source_vocabulary=8848, target_vocabulary=6632
):
    return Translator(encoder_layers, decoder_layers, width, inside, source_vocabulary, target_vocabulary)


def build_optimizer(parameters):
    return torch.optim.Adam(parameters, lr=5e-4, betas=(0.9, 0.98), weight_decay=1e-4)  # The paper's Table 5.


def rate(progress):
    """The paper's schedule: warm-up over the first 4,000 of 50,000 steps, then inverse square root decay."""
    warm = 4000 / 50_000
    return max(progress, 0.01) / warm if progress < warm else math.sqrt(warm / progress)


def data():
    """A description of the training data."""
    return "synthetic sentences"


def make_batch(batch_size, tokens=25, source_vocabulary=8848, target_vocabulary=6632):
    # The logarithm of a token's index is uniform: token n has frequency proportional to 1 / n.
    source = (source_vocabulary ** torch.rand(batch_size, tokens)).long().clamp(max=source_vocabulary - 1)
    target = 1 + (source * 7) % (target_vocabulary - 1)
    return source, functional.pad(target[:, :-1], (1, 0)), target


def compute_loss(model, batch):
    source, before, target = batch
    # Not flattened into one float32 tensor here: a method that computes losses in its own format must see it.
    return functional.cross_entropy(model(source, before).flatten(0, 1), target.flatten())


def score(model, device, tokens=25, source_vocabulary=8848, target_vocabulary=6632):
    """Loss per token of held-out sentences."""
    torch.manual_seed(-1)
    batch = make_batch(_HELD_OUT, tokens, source_vocabulary, target_vocabulary)
    source, before, target = (part.to(device) for part in batch)
    return float(functional.cross_entropy(model(source, before).flatten(0, 1).float(), target.flatten()))
