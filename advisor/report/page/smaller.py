"""A page no larger than people send and open: of very many policies only the best keep what is opened or drawn."""

from __future__ import annotations

import msgspec

from advisor.report.page.document import PageDocument, PageStudy
from advisor.report.page.page_text import page_text

__all__ = ["MOST_BYTES", "fitting_text"]

MOST_BYTES = 3_000_000


def fitting_text(document: PageDocument, most_bytes: int = MOST_BYTES) -> str:
    """The page of a document, with fewer details while it is too large; a note says which are left out."""
    text = page_text(document)
    kept = max((len(study.policies) for study in document.studies), default=0)
    while len(text.encode()) > most_bytes and kept:
        kept //= 2
        smaller = tuple(_with_details_of(study, kept, most_bytes) for study in document.studies)
        text = page_text(msgspec.structs.replace(document, studies=smaller))
    return text


def _with_details_of(study: PageStudy, count: int, most_bytes: int) -> PageStudy:
    """The study with the details of its best policies, and of those with a role."""
    if len(study.policies) <= count:
        return study
    detailed = {one.id for one in study.policies[:count]} | {one.id for one in study.policies if one.roles}
    combinations = {one.combination for one in study.policies if one.id in detailed}
    policies = tuple(
        one
        if one.id in detailed
        else msgspec.structs.replace(
            one, wrapper=(), command="", verify_command="", call=(), verify_call=(), memory=None, notes=()
        )
        for one in study.policies
    )
    note = (
        f"of {len(policies):,} policies, {len(detailed):,} have their curve, wrapper and commands on this page, which "
        f"would be larger than {most_bytes / 1e6:g} MB with all of them; they are in {study.folder}"
    )
    return msgspec.structs.replace(
        study,
        policies=policies,
        throughput=tuple(one for one in study.throughput if one.combination in combinations),
        notes=(*study.notes, note),
    )
