"""What ``momadvise check`` prints: the verdict, and a line for each difference."""

from __future__ import annotations

import shlex

from rich.console import Group, RenderableType
from rich.text import Text

from advisor.decide.policy_status import PolicyCheck, PolicyStatus
from advisor.workload.difference import Difference, Weight

__all__ = ["check_view", "difference_words", "verdict_words"]

_STYLES = {
    PolicyStatus.HOLDS: "green",
    PolicyStatus.STALE: "bold red",
    PolicyStatus.MOVED: "yellow",
    PolicyStatus.UNKNOWN: "bold red",
}
_MARKS = {
    Weight.READ: " (warning)",
    Weight.WARNING: " (warning)",
    Weight.PICK: " (picks anew, without trials)",
}


def check_view(check: PolicyCheck) -> RenderableType:
    """The verdict first; no line is wrapped, as a script may read them."""
    lines = [Text(verdict_words(check), style=_STYLES[check.status])]
    lines += [Text(difference_words(one)) for one in check.differences]
    lines += [Text(f"note: {note}", style="dim") for note in check.notes]
    for line in lines:
        line.no_wrap, line.overflow = True, "ignore"
    return Group(*lines)


def verdict_words(check: PolicyCheck) -> str:
    """One sentence."""
    command = shlex.join(check.command)
    if check.status is PolicyStatus.UNKNOWN:
        return f"Whether the policy holds cannot be told: {check.reason} ({command})."
    if check.status is PolicyStatus.STALE:
        return f"The policy is stale: tune again ({command})."
    if check.status is PolicyStatus.MOVED:
        return f"The policy holds, but its figures moved: another may be better now ({command})."
    again = ", and the wrapper does what it promises" if check.remeasured else ""
    return f"The policy holds{again}."


def difference_words(one: Difference) -> str:
    """One line, such as ``driver: 550 -> 580 (warning)``."""
    return one.words + _MARKS.get(one.weight, "")
