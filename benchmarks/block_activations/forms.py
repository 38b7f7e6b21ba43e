"""The forms of a block that are measured, and what formulas say that they keep. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

__all__ = ["DEGREES", "FORMS", "HEADS", "PARTS", "SAMPLES", "TOKENS", "WIDTH", "Form", "Part"]

DEGREES = (2, 4)
SAMPLES, TOKENS, WIDTH, HEADS = 2, 128, 256, 8
_SCORES = HEADS * TOKENS / WIDTH
"""One byte for each probability of attention, in units of a byte for each hidden state (the paper's ``as/h``)."""


class Part(msgspec.Struct, frozen=True):
    """Something that the paper's block keeps.

    Attributes:
        name: What it is.
        term: Where it is in the paper's sum: 34 = 11 (attention) + 19 (MLP) + 4 (normalizations).
        coefficient: Bytes in units of ``sbh``.
        formula: The coefficient as it stands in the paper.
        tensors: How many tensors these are.
    """

    name: str
    term: str
    coefficient: float
    formula: str
    tensors: int = 1


PARTS: tuple[Part, ...] = (
    Part("input of the first normalization", "normalizations", 2, "2"),
    Part("input of the projections to queries, keys and values", "attention", 2, "2"),
    Part("queries and keys", "attention", 4, "4", tensors=2),
    Part("output of the softmax", "probabilities", 2 * _SCORES, "2as/h"),
    Part("output of the dropout on probabilities", "probabilities", 2 * _SCORES, "2as/h"),
    Part("mask of that dropout", "probabilities", _SCORES, "as/h"),
    Part("values", "attention", 2, "2"),
    Part("input of the output projection", "attention", 2, "2"),
    Part("mask of the dropout after attention", "attention", 1, "1"),
    Part("input of the second normalization", "normalizations", 2, "2"),
    Part("input of the MLP's first layer", "MLP", 2, "2"),
    Part("input of the GELU", "MLP", 8, "8"),
    Part("input of the MLP's second layer", "MLP", 8, "8"),
    Part("mask of the dropout after the MLP", "MLP", 1, "1"),
)
"""What a plain block keeps, in the order in which it is computed."""


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """One way to train a block on several ranks.

    Attributes:
        name: As the page has it.
        tensor: Whether the ranks share the block.
        sequence: Whether they also split the tokens outside of the regions.
        recompute: ``"core"``, ``"attention"``, ``"elementwise"``, ``"block"`` or nothing.
        formula: The formula in words.
        bytes_at: Degree -> bytes, in units of ``sbh``.
        papers: Whether the formula is in the paper; otherwise it follows from counting in the same way.
    """

    name: str
    tensor: bool = True
    sequence: bool = False
    recompute: str = ""
    formula: str
    bytes_at: Callable[[int], float]
    papers: bool = True


FORMS: tuple[Form, ...] = (
    Form(name="plain", tensor=False, formula="34 + 5as/h", bytes_at=lambda t: 34 + 5 * _SCORES),
    Form(name="tensor", formula="10 + 24/t + 5as/(ht)", bytes_at=lambda t: 10 + (24 + 5 * _SCORES) / t),
    Form(name="tensor + sequence", sequence=True, formula="(34 + 5as/h)/t", bytes_at=lambda t: (34 + 5 * _SCORES) / t),
    Form(
        name="selective + sequence",
        sequence=True,
        recompute="core",
        formula="34/t",
        bytes_at=lambda t: 34 / t,
    ),
    Form(name="full + sequence", sequence=True, recompute="block", formula="2/t", bytes_at=lambda t: 2 / t),
    Form(name="full + tensor", recompute="block", formula="2", bytes_at=lambda t: 2),
    Form(
        name="attention modules + sequence",
        sequence=True,
        recompute="attention",
        formula="26/t",
        bytes_at=lambda t: 26 / t,
        papers=False,
    ),
    Form(
        name="contexts + sequence",
        sequence=True,
        recompute="elementwise",
        formula="(22 + 2as/h)/t",
        bytes_at=lambda t: (22 + 2 * _SCORES) / t,
        papers=False,
    ),
    Form(
        name="contexts + tensor",
        recompute="elementwise",
        formula="6 + (16 + 2as/h)/t",
        bytes_at=lambda t: 6 + (16 + 2 * _SCORES) / t,
        papers=False,
    ),
)
