"""The user's own settings, to be measured as the baseline instead of plain training."""

from __future__ import annotations

import msgspec

from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.text.printable import shown

__all__ = ["Baseline", "baseline_of_file"]


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody trains with today.

    Attributes:
        policy: The methods and the batch.
        origin: Where they were read, in words: ``"policy.yaml"``.
        notes: What the policy does not say of them, or only nearly.
        states_batch: Whether the batch is known; else it is the workload's own.
    """

    policy: Policy
    origin: str
    notes: tuple[str, ...] = ()
    states_batch: bool = True


def baseline_of_file(path: str) -> Baseline:
    """The policy of a file as a baseline.

    Raises:
        PolicyError: It is no policy file.
    """
    file = load_policy_file(path)
    # What its methods settled on holds for the model that it was found for.
    return Baseline(policy=msgspec.structs.replace(file.policy, settled={}), origin=shown(path))
