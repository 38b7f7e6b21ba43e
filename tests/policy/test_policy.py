"""The policy record: identity, label, batch arithmetic."""

import pytest

from advisor.methods.use import use
from advisor.policy.policy import Policy


def test_the_key_depends_on_everything_and_the_combination_key_on_the_methods_alone() -> None:
    one = Policy(methods=(use("checkpoint", every=1),), micro_batch=4)
    larger = Policy(methods=(use("checkpoint", every=1),), micro_batch=8)
    other = Policy(methods=(use("checkpoint", every=2),), micro_batch=4)
    assert len({one.key, larger.key, other.key}) == 3
    assert one.combination_key == larger.combination_key != other.combination_key


def test_the_key_is_the_same_in_every_process() -> None:
    policy = Policy(methods=(use("precision", dtype="bf16"),), micro_batch=4, accumulation_steps=2)
    assert policy.key == "e1d2915bf2581362"


def test_the_global_batch_is_what_one_optimizer_step_sees() -> None:
    assert Policy(micro_batch=4, accumulation_steps=3, gpu_count=2).global_batch == 24


def test_plain_training_is_called_plain() -> None:
    assert Policy(micro_batch=1).label == "plain"
    both = Policy(methods=(use("checkpoint", every=1), use("swap", min_bytes=1)), micro_batch=1)
    assert both.label == "checkpoint(every=1) + swap(min_bytes=1)"


def test_methods_must_be_sorted_so_that_equal_policies_are_equal() -> None:
    with pytest.raises(AssertionError, match="sorted"):
        Policy(methods=(use("swap"), use("checkpoint", every=1)), micro_batch=1)
