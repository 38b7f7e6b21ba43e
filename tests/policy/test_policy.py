"""The policy record: identity, label, batch arithmetic."""

import pytest

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import use
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


def test_a_mesh_of_data_alone_changes_no_key() -> None:
    policy = Policy(methods=(use("precision", dtype="bf16"),), micro_batch=4, accumulation_steps=2, mesh=Mesh())
    assert policy.key == "e1d2915bf2581362"
    assert policy.axes == Mesh()


def test_devices_that_hold_one_model_together_share_its_samples() -> None:
    policy = Policy(micro_batch=4, accumulation_steps=3, gpu_count=8, mesh=Mesh(tensor=2, pipeline=2))
    assert policy.data_degree == 2
    assert policy.global_batch == 24
    assert policy.combination_key != Policy(micro_batch=4, gpu_count=8).combination_key


def test_a_mesh_is_described_by_its_axes_above_one() -> None:
    assert Mesh(tensor=2, pipeline=2).label(8) == "2 data x 2 pipeline x 2 tensor"
    assert Mesh(tensor=2).label(2) == "2 tensor"
    assert Mesh().label(4) == ""
