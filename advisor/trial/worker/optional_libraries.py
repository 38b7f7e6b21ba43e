"""Which optional libraries of methods are installed, and work."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Iterator
from types import FunctionType
from typing import Any

import torch

from advisor.replaced import replaced

__all__ = ["compiling_later", "imported"]


def imported(names: Iterable[str]) -> dict[str, str]:
    """Import libraries: name -> version, or the error; one that is not installed is left out."""
    found = {}
    for name in names:
        if importlib.util.find_spec(name) is None:
            continue
        try:
            with compiling_later():
                module = importlib.import_module(name)
        except Exception as error:  # an installed library that cannot be loaded is a fact about this machine
            found[name] = f"error: {type(error).__name__}: {error}"
            continue
        found[name] = str(getattr(module, "__version__", None) or _distribution_version(name))
    return found


@contextlib.contextmanager
def compiling_later() -> Iterator[None]:
    """Within, ``torch.compile`` of a function returns one that is compiled when it is first called.

    bitsandbytes compiles four functions when it is imported, most often in vain. To load the compiler takes a second.
    """
    compile_now = torch.compile

    def compile_later(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **options)
        if not isinstance(model, FunctionType):
            return compile_now(model, **options)
        compiled = functools.cache(lambda: compile_now(model, **options))
        return functools.wraps(model)(lambda *args, **kwargs: compiled()(*args, **kwargs))

    with replaced(torch, compile=compile_later):
        yield


def _distribution_version(name: str) -> str:
    distributions = importlib.metadata.packages_distributions().get(name, [])
    return importlib.metadata.version(distributions[0]) if distributions else "unknown version"
