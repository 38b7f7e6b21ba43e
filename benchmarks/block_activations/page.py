"""The page of ``benchmarks.block_activations``."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from benchmarks.block_activations.forms import DEGREES, FORMS, HEADS, PARTS, SAMPLES, TOKENS, WIDTH
from benchmarks.markdown import packages

__all__ = ["Measured", "page"]

_UNIT = SAMPLES * TOKENS * WIDTH
_SMALL = 0.05
"""Tensors of fewer bytes for each hidden state are statistics of normalizations, which the paper leaves out."""


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What one form keeps on the fullest rank.

    Attributes:
        form: Its name.
        degree: The number of ranks.
        kept: Who made each tensor, and its bytes, in the order of their making.
        versions: Package -> version.
    """

    form: str
    degree: int
    kept: tuple[tuple[str, int], ...]
    versions: dict[str, str]

    @property
    def units(self) -> float:
        """All of it, in units of ``sbh``."""
        return sum(size for _, size in self.kept) / _UNIT

    @property
    def large(self) -> list[tuple[str, float]]:
        """Its tensors in these units, without statistics."""
        return [(maker, size / _UNIT) for maker, size in self.kept if size / _UNIT >= _SMALL]


def page(measured: Sequence[Measured]) -> str:
    """The page."""
    known = {(one.form, one.degree): one for one in measured}
    used = packages([one.versions for one in measured])
    parts = [
        "# What one block keeps on each rank",
        _EXPLANATION,
        f"A block with s = {TOKENS} tokens, b = {SAMPLES} samples, h = {WIDTH} and a = {HEADS} heads (5as/h = "
        f"{5 * HEADS * TOKENS / WIDTH:g}), on gloo ranks, with {used}.",
        "## Forms",
        "\n".join(_forms(known)),
        _REMARKS,
        "## The parts of 34 + 5as/h",
        _ON_PARTS,
        "\n".join(_parts(known)),
        "## Selective checkpointing by contexts",
        _ON_CONTEXTS,
        "\n".join(_listed(known, "contexts + sequence")),
    ]
    return "\n\n".join(parts) + "\n"


_EXPLANATION = """\
`python -m benchmarks.block_activations` counts the tensors that are alive between the forward and the backward pass of
one transformer block in 16 bits, on each of t tensor-parallel ranks, and compares them with the formulas of Korthikanti
et al. 2022, "Reducing Activation Recomputation in Large Transformer Models". Values are in units of sbh bytes: tokens
times samples times width. The block computes attention without a fused kernel and drops out where the paper's does;
its masks take one byte an element, as on a GPU. *Sequence* is sequence parallelism: outside of attention and MLP each
rank has its own tokens only, and what a rank gathers from the others it gathers again instead of keeping it."""

_REMARKS = """\
*selective* recomputes attention's core (products of queries and keys, softmax, dropout, products with values), which
must be a module of its own; this is the paper's form. *attention modules* is
`selective_checkpoint(recompute=attention)`, which recomputes the projections too, with one more gather. *contexts* is
`selective_checkpoint(recompute=elementwise)`, which keeps what products of matrices return and recomputes the rest.
*full* is `checkpoint(every=1)`. Formulas with a star are not in the paper; they count in the same way."""

_ON_PARTS = """\
The paper's sum has 11 for attention, 19 for the MLP and 4 for the two normalizations; 5as/h is for the probabilities of
attention."""

_ON_CONTEXTS = """\
The contexts keep the results of operators, not what autograd saves. The products that end attention and MLP are whole
before they are summed over the ranks (2 each), and so are the gathered inputs of those that begin them (2 each): a
policy that keeps products and collectives would keep these 8 as well, whatever t is. Slicing therefore hides both from
the contexts. Sums and scattered sums are kept, so they are not communicated again, and in the recomputation whatever
only leads to a kept result is left out: neither are these products computed again nor the tokens gathered for them.
What is left is less than the paper's 34/t where attention's scores (2as/h, kept because they are a product) are fewer
than 12; a fused attention kernel has none. On two ranks:"""


def _forms(known: dict[tuple[str, int], Measured]) -> list[str]:
    head = "| form | formula |" + "".join(f" t = {t}: formula | measured | difference |" for t in DEGREES)
    rows = [head, "|---|---|" + "---|" * (3 * len(DEGREES))]
    for form in FORMS:
        row = f"| {form.name} | {form.formula}{'' if form.papers else ' *'} |"
        for degree in DEGREES:
            expected, found = form.bytes_at(degree), known[form.name, degree].units
            row += f" {expected:.4g} | {found:.3f} | {found / expected - 1:+.2%} |"
        rows.append(row)
    return rows


def _parts(known: dict[tuple[str, int], Measured]) -> list[str]:
    shown = ("plain", "tensor", "tensor + sequence")
    columns = [[size for _, size in known[name, 2].large] for name in shown]
    titles = [name if name == "plain" else f"{name}, t = 2" for name in shown]
    rows = [f"| kept | term | paper | {' | '.join(titles)} |", "|---" * (3 + len(shown)) + "|"]
    for part in PARTS:
        cells = [sum(column.pop(0) for _ in range(part.tensors)) for column in columns]
        rows.append(f"| {part.name} | {part.term} | {part.formula} | {' | '.join(f'{cell:g}' for cell in cells)} |")
    assert not any(columns), "the block keeps what the paper lists"
    sums = [sum(size for _, size in known[name, 2].large) for name in shown]
    rest = [known[name, 2].units - large for name, large in zip(shown, sums, strict=True)]
    rows.append(f"| statistics of the normalizations | left out there | | {' | '.join(f'{one:.3f}' for one in rest)} |")
    rows.append("| **all** | | 34 + 5as/h | " + " | ".join(f"{known[name, 2].units:.3f}" for name in shown) + " |")
    return rows


def _listed(known: dict[tuple[str, int], Measured], form: str) -> list[str]:
    rows = ["| made by | kept |", "|---|---|"]
    return rows + [f"| `{maker}` | {size:g} |" for maker, size in known[form, 2].large]
