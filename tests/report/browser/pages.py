"""Pages to open: the recorded studies of docs/reports, alone and together; one whose texts are hostile, a bare one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from advisor.report.page.document import PageDocument, PageStudy
from advisor.report.page.figure import Part, simulated
from advisor.report.page.page_text import page_text
from benchmarks.browser import recorded_document

__all__ = ["HOSTILE", "PAGES", "document_of", "study_of", "text_of", "write_page"]

PAGES = ("faster", "cheapest", "bigger", "all", "hostile", "bare", "simulated", "quick", "twice")
HOSTILE = "</script><img src=x onerror='window.hacked=1'>&lt;b>\"`${1}\\u003c"

_SAMPLES = ("batch", "micro_batch", "samples_per_step")
_RATES = ("samples_per_second", "predicted_samples_per_second")

Study = dict[str, Any]
"""A study of the document, in which fields with their default are left out."""

_KEPT = {
    *("id", "kind", "state", "source", "outcome", "policy", "policies", "combination", "baseline", "hand_tuned"),
    *("roles", "best", "phase", "phases", "who", "metric"),
}
"""Fields that name something within the document or are of a closed set."""


@functools.cache
def document_of(name: str) -> dict[str, Any]:
    """The document of one of ``PAGES``."""
    document = recorded_document()
    if name == "all":
        return document
    goal = {"bigger": "bigger", "cheapest": "cheapest", "hostile": "cheapest", "simulated": "cheapest"}.get(
        name, "faster"
    )
    studies = [one for one in document["studies"] if one["goal"]["kind"] == goal]
    made = {"hostile": _hostile, "bare": _bare, "simulated": _simulated, "quick": _quick, "twice": _twice}
    changed = made.get(name, list)(studies)
    return {**document, "studies": changed}


def study_of(name: str) -> Study:
    """The study of a page that has one."""
    [study] = document_of(name)["studies"]
    return dict(study)


def text_of(study: Study, numbers: Sequence[int]) -> str:
    """A text that the document holds as numbers of lines."""
    return "\n".join(study["lines"][one] for one in numbers)


def write_page(name: str, path: Path) -> None:
    """Write one of the pages as the command would."""
    path.write_text(page_text(msgspec.convert(document_of(name), PageDocument, strict=False)), encoding="utf-8")


def _simulated(studies: list[Study]) -> list[Study]:
    """As they would be of a device in software."""
    part = msgspec.convert({"studies": studies}, _Studies, strict=False)
    return list(msgspec.to_builtins(simulated(part))["studies"])


class _Studies(Part, frozen=True):
    studies: tuple[PageStudy, ...]


def _faster(value: Any, field: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _faster(one, key) for key, one in value.items()} if field not in _RATES else _times(value)
    return [_faster(one, field) for one in value] if isinstance(value, list) else value


def _quick(value: Any, field: str = "") -> Any:
    """As they would be of a model so small that batches and throughputs have many digits, and of long combinations."""
    if isinstance(value, dict):
        return {key: _quick(one, key) for key, one in value.items()} if field not in _RATES else _times(value)
    if isinstance(value, list):
        return [_quick(one, field) for one in value]
    if field == "name" and isinstance(value, str):
        return f"{value} + chunked_cross_entropy chunks=8 + ddp bucket_views=True static_graph=False + channels_last"
    return value * 4096 if field in _SAMPLES and isinstance(value, int) else value


def _times(figure: dict[str, Any]) -> dict[str, Any]:
    return {key: one * 1e4 if isinstance(one, int | float) else one for key, one in figure.items()}


def _twice(studies: list[Study]) -> list[Study]:
    """Before and after: the same policies, thousands of times as fast, in folders of the same name."""
    (before,) = studies
    after = {**_faster(before), "id": f"{before['id']}-after"}
    return [{**one, "folder": f"{when}/out"} for when, one in (("before", before), ("after", after))]


def _bare(studies: list[Study]) -> list[Study]:
    """With what a study must have, and nothing else: an answer of one policy that nothing is known of."""
    required = ("id", "title", "workload", "goal", "date", "folder", "versions", "device", "memory_limit_bytes")
    of_policy = ("id", "combination", "name", "micro_batch", "samples_per_step", "outcome", "fidelity")
    bare = []
    for study in studies:
        winner = next(one for one in study["policies"] if one["id"] == study["answer"]["policy"])
        answer = {field: study["answer"][field] for field in ("headline", "policy")}
        policies = [{field: winner[field] for field in of_policy}]
        bare.append({field: study[field] for field in required} | {"answer": answer, "policies": policies})
    return bare


def _hostile(value: Any, field: str = "") -> Any:
    if isinstance(value, int | float) or value is None:
        return value
    if isinstance(value, str):
        return value if field in _KEPT else f"{value} {HOSTILE}"
    if isinstance(value, list):
        return [_hostile(one, field) for one in value]
    return {key: _hostile(one, key) for key, one in value.items()}
