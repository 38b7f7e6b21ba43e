"""DDP's static graph, in trainers that leave gradients unsynchronized until the last micro-batch of a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from advisor.exports.rules import Rule, Status
from advisor.methods.setting import ParameterValue

__all__ = ["ddp_rules"]

_NOT_WITH_ACCUMULATION = (
    "without a static graph: with accumulation the trainer's first pass is not synchronized, which torch's static "
    "graph does not allow (it ends in an internal assertion)"
)


def ddp_rules(keys: Mapping[str, Any], static_key: str, differs: str = "", **where: ParameterValue) -> tuple[Rule, ...]:
    """Rules of ``ddp`` for a trainer that has a key for the static graph.

    Args:
        keys: Dotted key -> value, whatever the graph.
        static_key: The key of the static graph.
        differs: In what it differs whatever the graph; empty if in nothing.
        where: Parameter -> the value that the rules cover.
    """

    def rule(static: bool, text: str, **more: ParameterValue) -> Rule:
        return Rule(
            of="ddp",
            status=Status.APPROXIMATED if text else Status.EXPORTED,
            where={name: (value,) for name, value in {**where, **more}.items()},
            keys={**keys, static_key: static},
            text=text,
        )

    return (
        rule(True, differs, static_graph=True, accumulation_steps=1),
        rule(False, differs, static_graph=False),
        rule(False, f"{differs}; {_NOT_WITH_ACCUMULATION}" if differs else _NOT_WITH_ACCUMULATION),
    )
