"""Check that a workload has the functions that it needs, with the arguments they are called with."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.text.printable import shown
from advisor.workload.outline import ClassOutline, Outline, read_outline
from advisor.workload.workload import FUNCTIONS

__all__ = ["check_arguments", "check_contract", "missing_message"]

_REQUIRED = FUNCTIONS[:2]
_CALLED_WITH = {
    "build_model": (),
    "make_batch": ("batch_size",),
    "compute_loss": ("model", "batch"),
    "build_optimizer": ("params",),
    "count_targets": ("batch",),
    "linear_head": ("model", "batch"),
}
"""Positional arguments; those of a size follow by name where a function takes them, and have defaults."""

_ABOUT_BATCHES = (
    "\n\nThe batch holds CPU tensors of your own data and is passed as model(**batch). If the model returns neither a "
    "scalar loss nor an output with .loss, also add compute_loss(model, batch) that returns the loss."
)


def check_contract(path: Path) -> None:
    """Check by reading that a file defines ``build_model`` and ``make_batch``, and what its functions take.

    Imported and assigned names count, and so does a star import, which may bind any name: loading the file shows what
    it binds.

    Raises:
        WorkloadError: One of them is missing (the message shows the lines to add), or a function does not take the
            arguments that it is called with.
    """
    outline = read_outline(path)
    if outline.star_import:
        return
    for role, signature in outline.signatures.items():
        if role in _CALLED_WITH:
            _check_signature(role, signature, shown(path), role)
    missing = [name for name in _REQUIRED if name not in outline.names]
    if missing:
        raise WorkloadError(missing_message(path, missing, outline))


def check_arguments(role: str, function: Callable[..., Any], place: str) -> None:
    """Check that a function of the contract takes the arguments that it is called with.

    Args:
        role: Its name in the contract.
        function: Itself; one whose signature cannot be read is not checked.
        place: Where it is defined, for the message.

    Raises:
        WorkloadError: It does not take them, or takes the model in another place.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)  # a decorator may pass more than it is given
    except (TypeError, ValueError):
        return
    _check_signature(role, signature, place, getattr(function, "__name__", role))


def _check_signature(role: str, signature: inspect.Signature, place: str, name: str) -> None:
    names = _CALLED_WITH[role]
    try:
        signature.bind(*names)
    except TypeError:
        is_right = False
    else:
        first = list(signature.parameters)[: len(names)]
        is_right = "model" not in names or "model" not in first or first.index("model") == names.index("model")
    if is_right:
        return
    arguments = ", ".join(names)
    written = ", ".join(_as_written(parameter) for parameter in signature.parameters.values())
    raise WorkloadError(
        f"{role} must accept the call {role}({arguments}), but in {place} it is defined as "
        f"{name}({written}). Write def {name}({arguments}), and give other arguments defaults."
    )


def _as_written(parameter: inspect.Parameter) -> str:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return str(parameter)
    return parameter.name if parameter.default is inspect.Parameter.empty else f"{parameter.name}=..."


def missing_message(path: Path, missing: list[str], outline: Outline) -> str:
    """Say which of ``build_model`` and ``make_batch`` a file lacks, and the lines to add to it."""
    model = _model_class(outline)
    lines: list[str] = []
    if "build_model" in missing:
        lines += ["def build_model():", f"    return {_construction(model, outline)}"]
    if "make_batch" in missing:
        lines += [""] * bool(lines) + ["def make_batch(batch_size):", f"    return {_batch(model, outline)}"]
    defined = [f"class {item.name}" for item in outline.classes] + [f"def {name}" for name in outline.functions]
    found = f"it defines {_listed(defined)}" if defined else "it defines no class and no function"
    advice = _ABOUT_BATCHES if "make_batch" in missing else ""
    body = "\n".join(f"    {line}".rstrip() for line in lines)
    return (
        f"a model file must define build_model and make_batch, but {shown(path)} has no {' and no '.join(missing)} "
        f"({found}). Add these lines to it:\n\n{body}{advice}"
    )


def _model_class(outline: Outline) -> ClassOutline | None:
    """The class that is most likely the model: the last module of the file, which tends to use the others."""
    candidates = [item for item in outline.classes if item.is_module] or list(outline.classes)
    return candidates[-1] if candidates else None


def _construction(model: ClassOutline | None, outline: Outline) -> str:
    maker = _function_about(outline, ("model", "net"))
    if maker and (model is None or not model.is_module):
        return f"{maker}()"
    if model is not None:
        return f"{model.name}({', '.join(f'{name}=...' for name in model.required)})"
    return f"{outline.functions[0]}()" if outline.functions else "MyModel()"


def _batch(model: ClassOutline | None, outline: Outline) -> str:
    maker = _function_about(outline, ("batch",))
    if maker:
        return f"{maker}(batch_size)"
    names = (model.forward if model is not None else ()) or ("inputs",)
    return "{" + ", ".join(f'"{name}": torch.randn(batch_size, ...)' for name in names) + "}"


def _function_about(outline: Outline, words: tuple[str, ...]) -> str | None:
    candidates = [name for name in outline.functions if name not in _REQUIRED]
    return next((name for name in candidates if any(word in name.lower() for word in words)), None)


def _listed(items: list[str]) -> str:
    return ", ".join(items[:6]) + (f" and {len(items) - 6} more" if len(items) > 6 else "")
