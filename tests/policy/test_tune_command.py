"""The commands that tune or measure again say what was asked for, as a person would type it."""

import shlex

import pytest

from advisor.goal import Preference
from advisor.methods.setting import use
from advisor.policy.file import PolicyFile
from advisor.policy.policy import Policy
from advisor.policy.tune_command import tune_command, verify_command
from advisor.text.units import parse_bytes


def test_what_was_asked_for_is_asked_for_again() -> None:
    asked = {"goal": "faster", "gpus": "1,2", "global_batch": 16, "tokens": 128, "machines": 1}
    assert tune_command("m.py", "faster", asked) == (
        *("momadvise", "--goal", "faster", "m.py"),
        *("--gpus", "1,2", "--global-batch", "16", "--tokens", "128"),
    )


@pytest.mark.parametrize(("count", "shown"), [(2**27, "128MiB"), (3 * 2**30, "3GiB"), (2**27 + 1, "134217729")])
def test_a_limit_is_exact_and_short(count: int, shown: str) -> None:
    assert tune_command("m.py", "faster", {"memory_limit_bytes": count})[-1] == shown
    assert parse_bytes(shown) == count


def test_the_pick_of_a_frontier_belongs_to_it() -> None:
    preference = Preference(max_latency_seconds=0.25, iterations=1000)
    assert tune_command("", "cheapest", {}, preference) == (
        *("momadvise", "--goal", "cheapest", "MODEL"),
        *("--max-latency", "0.25s", "--iterations", "1000"),
    )


def test_what_picked_the_policy_picks_the_next_one_unless_something_else_is_asked_for_now() -> None:
    """The trap: a policy within a bound was replaced by the knee of the frontier, and nobody had asked for it."""
    then = {"max_latency_seconds": 0.2, "price": 2.5, "iterations": 1000}
    assert tune_command("m.py", "cheapest", then)[4:] == (
        *("--price", "2.5", "--max-latency", "0.2s", "--iterations", "1000"),
    )
    assert tune_command("m.py", "cheapest", then, Preference(max_latency_seconds=0.1))[4:] == (
        *("--price", "2.5", "--max-latency", "0.1s", "--iterations", "1000"),
    )


def test_of_the_options_of_a_study_one_policy_has_its_limit_and_its_sizes() -> None:
    asked = {"memory_limit_bytes": 2**30, "tokens": 64, "image_size": None, "batch_size": 8, "gpus": "1,2"}
    line = verify_command("a model.py", PolicyFile(policy=Policy(micro_batch=4)), asked)
    *_, pipe, program, verb, passed, model, limit, size, tokens, count = shlex.split(line)
    assert (pipe, program, verb, passed, model) == ("|", "momadvise", "verify", "/dev/stdin", "a model.py")
    assert (limit, size, tokens, count) == ("--memory-limit", "1GiB", "--tokens", "64")


def test_a_policy_of_several_devices_is_measured_on_as_many() -> None:
    policy = Policy(methods=(use("ddp"),), micro_batch=4, gpu_count=2)
    line = verify_command("model.py", PolicyFile(policy=policy), {"memory_limit_bytes": 2**30, "gpus": "1,2"})
    *_, pipe, program = shlex.split(line)[:5]
    assert (pipe, program) == ("|", "momadvise")
    assert shlex.split(line)[5:] == [
        *("model.py", "--baseline", "/dev/stdin", "--gpus", "2", "--trials", "1", "--memory-limit", "1GiB")
    ]
