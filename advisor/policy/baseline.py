"""The user's own settings, to be measured as the baseline instead of plain training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from advisor.policy.file import load_policy_file, policy_from
from advisor.policy.policy import Policy
from advisor.text.printable import shown

__all__ = ["Baseline", "baseline_of"]


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody trains with today.

    Attributes:
        policy: The methods and the batch.
        origin: Where they were read, in words: ``"policy.yaml"``.
        notes: What the policy does not say of them, or only nearly.
        states_batch: Whether the batch is known; else it is the workload's own.
        model_size: The size of the model that they are for; empty for the model as it is.
    """

    policy: Policy
    origin: str
    notes: tuple[str, ...] = ()
    states_batch: bool = True
    model_size: dict[str, int | float] = {}


def baseline_of(policy: str | Mapping[str, Any]) -> Baseline:
    """The policy of a file as a baseline.

    Args:
        policy: The path of the file, or what the file would say.

    Raises:
        PolicyError: It is no policy file.
    """
    if isinstance(policy, str):
        origin, file = shown(policy), load_policy_file(policy)
    else:
        origin = "the policy that was given"
        file = policy_from(dict(policy), origin)
    # What its methods settled on holds for the model that it was found for.
    own = msgspec.structs.replace(file.policy, settled={})
    return Baseline(policy=own, origin=origin, model_size=file.size)
