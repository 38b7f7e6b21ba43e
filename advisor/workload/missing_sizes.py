"""Check that a workload defines the sizes it can be built in, and suggest the lines if not."""

from __future__ import annotations

import ast
from pathlib import Path

from advisor.errors import WorkloadError
from advisor.text.printable import shown
from advisor.text.ranges import MOST
from advisor.workload.outline import arguments_of, parse_file, read_outline
from advisor.workload.workload import WorkloadKind, WorkloadSource

__all__ = ["check_sizes", "missing_sizes_message"]

_FACTORS = (1, 1.5, 2, 3, 4, 6, 8)


def check_sizes(source: WorkloadSource) -> None:
    """Check by reading that a file defines ``SIZES``.

    A star import may bind it, the sizes of a Hugging Face config are inferred, and functions may come from anywhere:
    these are checked where the workload is loaded.

    Raises:
        WorkloadError: It is missing; the message shows the lines to add.
    """
    if source.kind is not WorkloadKind.FILE:
        return
    outline = read_outline(Path(source.location))
    if "SIZES" not in outline.names and not outline.star_import:
        raise WorkloadError(missing_sizes_message(source))


def missing_sizes_message(source: WorkloadSource) -> str:
    """The error for a workload without sizes, with the lines to add."""
    is_file = source.kind is WorkloadKind.FILE
    place = source.location if is_file else source.name
    argument = _number_with_default(Path(source.location)) if is_file else None
    if argument is None:
        lines = [
            "def build_model(layers=12):",
            "    return MyModel(layers=layers)  # your model, with that many layers",
            "",
            'SIZES = {"layers": [12, 18, 24, 36, 48]}',
        ]
    else:
        name, value = argument
        values = [value * factor for factor in _FACTORS]
        listed = ", ".join(f"{number:g}" for number in values if isinstance(value, float) or number == int(number))
        lines = [f'SIZES = {{"{name}": [{listed}]}}']
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return (
        f"--goal bigger must know the sizes that the model can be built in, but {shown(place)} defines no SIZES. "
        f"Add lines like these to it:\n\n{body}\n\n"
        "SIZES maps arguments of build_model or make_batch (depth, width, image size, sequence length) to the values "
        "to try, growing. The arguments need defaults: they are the model's own size."
    )


def _number_with_default(path: Path) -> tuple[str, int | float] | None:
    """The first argument of ``build_model`` whose default is a number above zero, if it has one."""
    for node in parse_file(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == "build_model":
            for name, default in arguments_of(node):
                value = default.value if isinstance(default, ast.Constant) else None
                if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST:
                    return name, value
    return None
