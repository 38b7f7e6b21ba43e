"""Names in a model file that look like those of the contract but are not: what they say of the training is not used."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from advisor.text.printable import shown
from advisor.workload.outline import parse_file, read_outline
from advisor.workload.workload import WorkloadKind, WorkloadSource

__all__ = ["notes_on_unused_names"]


class _Meant(msgspec.Struct, frozen=True):
    """A name of the contract, and what is taken where a file does not have it, unless another note says so."""

    parts: tuple[str, ...]
    write: str
    else_taken: str


_FUNCTIONS = {
    "build_optimizer": _Meant(("optimizer",), "build_optimizer(params)", "AdamW is used"),
    "compute_loss": _Meant(("loss", "criterion"), "compute_loss(model, batch)", "the model's own loss is used"),
}
_CONSTANTS = {
    "BATCH_SIZE": _Meant(("batchsize",), "BATCH_SIZE = N", ""),
    "MAX_GRAD_NORM": _Meant(("gradnorm", "gradclip", "clipgrad"), "MAX_GRAD_NORM = X", "gradients are not clipped"),
}
"""Parts of a name, in lower case and without underscores, by which the user may mean it."""


def notes_on_unused_names(source: WorkloadSource) -> tuple[str, ...]:
    """Notes on functions and constants that the user may take for part of the contract.

    A function counts only if nothing in the file uses it: a helper is no mistake.
    """
    if source.kind is not WorkloadKind.FILE:
        return ()
    path = Path(source.location)
    outline = read_outline(path)
    if outline.star_import:
        return ()
    used, stated = set(_read_names(path)), source.stated
    present = {
        *outline.names,
        *(["BATCH_SIZE"] if stated.batch_size is not None else []),
        *(["MAX_GRAD_NORM"] if stated.max_grad_norm is not None else []),
    }
    unused = [name for name in outline.functions if name not in used]
    return tuple(
        f"{shown(path.name)} has no {name}{meant.else_taken and ', so '}{meant.else_taken}: {found} is not read. If it "
        f"says how you train, write {meant.write}"
        for known, candidates in ((_FUNCTIONS, unused), (_CONSTANTS, sorted(outline.assigned)))
        for name, meant in known.items()
        if name not in present
        for found in candidates
        if any(part in found.lower().replace("_", "") for part in meant.parts)
    )


def _read_names(path: Path) -> Iterator[str]:
    for node in ast.walk(parse_file(path)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            yield node.id
