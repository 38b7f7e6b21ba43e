"""Measure what one block keeps on 2 and on 4 ranks: ``python -m benchmarks.block_activations`` (half a minute)."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from benchmarks.block_activations import kept
from benchmarks.block_activations.forms import DEGREES, FORMS
from benchmarks.block_activations.page import Measured, page
from tests.distributed.ranks import Launcher

__all__ = ["main"]

_RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.block_activations", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--output", type=Path, default=_RESULTS, help="folder (default: docs/results)")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    measured = []
    with tempfile.TemporaryDirectory() as name, Launcher(Path(name)) as launcher:
        for degree in DEGREES:
            folder = Path(name) / str(degree)
            folder.mkdir()
            ranks = launcher.run(kept.of_all_forms, degree, folder)
            measured += [_fullest(form.name, degree, ranks) for form in FORMS]
    lines = options.output / "block-activations.jsonl"
    lines.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in measured))
    text = page(measured)
    lines.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def _fullest(form: str, degree: int, ranks: Sequence[dict[str, list[tuple[str, int]]]]) -> Measured:
    fullest = max((rank[form] for rank in ranks), key=lambda tensors: sum(size for _, size in tensors))
    versions = {"torch": metadata.version("torch")}
    return Measured(form=form, degree=degree, kept=tuple(map(tuple, fullest)), versions=versions)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
