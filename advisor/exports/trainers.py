"""The trainers to which a policy can be exported."""

from __future__ import annotations

from advisor.errors import OptionError
from advisor.exports.accelerate_keys import ACCELERATE
from advisor.exports.axolotl_keys import AXOLOTL
from advisor.exports.deepspeed_keys import DEEPSPEED
from advisor.exports.hf_keys import HF
from advisor.exports.lightning_keys import LIGHTNING
from advisor.exports.llamafactory_keys import LLAMAFACTORY
from advisor.exports.rules import Target
from advisor.exports.torchtitan_keys import TORCHTITAN
from advisor.text.printable import quoted

__all__ = ["TARGETS", "get_target"]

TARGETS: tuple[Target, ...] = (HF, ACCELERATE, DEEPSPEED, LIGHTNING, TORCHTITAN, AXOLOTL, LLAMAFACTORY)


def get_target(name: str) -> Target:
    """The trainer of that name.

    Raises:
        OptionError: There is none.
    """
    for target in TARGETS:
        if target.name == name:
            return target
    names = ", ".join(target.name for target in TARGETS)
    raise OptionError(f"--to must be one of {names}, but got {quoted(name)}.")
