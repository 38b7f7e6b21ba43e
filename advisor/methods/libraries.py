"""The optional libraries of methods, and whether they are there and work."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from advisor.methods.base import Method, Verdict
from advisor.workload.facts import Facts

__all__ = ["judge_libraries", "needed_by"]


def needed_by(methods: Iterable[Method]) -> tuple[str, ...]:
    """The optional libraries that some methods need: all that is worth importing, which takes seconds."""
    return tuple(sorted({library for method in methods for library in method.requires}))


def judge_libraries(method: Method, facts: Facts | None) -> Verdict:
    """Refuse a method whose optional library the worker could not import, or, without facts, that is not found here."""
    for library in method.requires:
        if facts is None:
            state = "found" if importlib.util.find_spec(library) else None
        else:
            state = facts.libraries.get(library)
        if state is None:
            fix = f"pip install 'momadvise[{method.extra}]'" if method.extra else f"pip install {library}"
            return Verdict.no(f"{library} is not installed; {fix}")
        if state.startswith("error: "):
            first_line = state.removeprefix("error: ").strip().splitlines()[0]
            return Verdict.no(f"{library} is installed but cannot be imported: {first_line}")
    return Verdict.yes()
