"""Check that a file has the two functions every workload needs, and suggest them if not."""

from __future__ import annotations

from pathlib import Path

from advisor.errors import WorkloadError
from advisor.text.printable import shown
from advisor.workload.outline import ClassOutline, Outline, read_outline
from advisor.workload.workload import FUNCTIONS

__all__ = ["check_contract", "missing_message"]

_REQUIRED = FUNCTIONS[:2]
_ABOUT_BATCHES = (
    "\n\nThe batch holds CPU tensors of your own data and is passed as model(**batch). If the model returns neither a "
    "scalar loss nor an output with .loss, also add compute_loss(model, batch) that returns the loss."
)


def check_contract(path: Path) -> None:
    """Check by reading that a file defines ``build_model`` and ``make_batch``.

    Imported and assigned names count, and so does a star import, which may bind any name: loading the file shows what
    it binds.

    Raises:
        WorkloadError: One of them is missing; the message shows the lines to add.
    """
    outline = read_outline(path)
    if outline.star_import:
        return
    missing = [name for name in _REQUIRED if name not in outline.names]
    if missing:
        raise WorkloadError(missing_message(path, missing, outline))


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
