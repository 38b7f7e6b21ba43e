"""What several ranks must keep beside the parameters: states, loops, memory, and what may not go wrong in silence."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import advisor
from advisor.measure.measurement import StopReason
from advisor.methods.recompute.optimal_plan import Unit
from advisor.methods.setting import use
from tests.distributed import on_ranks
from tests.distributed.models import (
    Branching,
    Case,
    Choosing,
    Convolving,
    Late,
    movement_error,
    padded_text,
    pictures,
    sgd,
    started,
    trained,
    transformer,
    two_groups,
    vectors,
)
from tests.distributed.ranks import Launcher
from tests.methods import perceptron
from tests.methods.perceptron import Perceptron
from tests.methods.tiny import convnet, images, text

pytestmark = pytest.mark.slow

Found = list[dict[str, Any]]
over_methods = pytest.mark.parametrize("name", on_ranks.DISTRIBUTING)


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return launcher.run(on_ranks.everything_else, 2, tmp_path_factory.mktemp("two"))


@functools.cache
def _three_steps(build_optimizer: Callable[..., torch.optim.Optimizer], data: Callable[[int], Any]) -> dict[str, Any]:
    """The state of a single process without any method."""
    single = started((), None, build_optimizer=build_optimizer)
    for step in range(3):
        single.step(data(step))
    return single.state_dict()


@functools.cache
def _in_micro_batches(build: Callable[[], nn.Module], data: Callable[[int], Any]) -> tuple[dict[str, Any], list[float]]:
    return trained(Case((), micro_batch=1), None, build=build, data=data)


def test_what_the_first_rank_decides_holds_for_all(found: Found) -> None:
    decided = [0.0, None, [Unit(seconds=0.1, kept=2**40, output=1)], StopReason.STEADY, "a" * 10_000]
    assert [rank["agreed"] for rank in found] == [decided, decided]


def test_no_rank_runs_what_another_one_sends() -> None:
    """Objects that torch.distributed sends are unpickled, which runs whatever they say."""
    package = Path(advisor.__file__).parent
    sending = re.compile(r"\b(broadcast|all_gather|gather|scatter|send|recv)_object(_list)?\b")
    assert [path.name for path in package.rglob("*.py") if sending.search(path.read_text(encoding="utf-8"))] == []


def _whole_text(step: int) -> dict[str, torch.Tensor]:
    return text(8, 32, seed=step)


def _first_without_target(step: int) -> dict[str, torch.Tensor]:
    return on_ranks.without_targets(step, [0])


class TestStates:
    @over_methods
    def test_a_plain_program_goes_on_from_a_gathered_state(self, name: str, found: Found) -> None:
        states = found[0]["states"][name]
        single = started((), None, build_optimizer=two_groups)
        single.load_state_dict(states["state"])
        before = copy.deepcopy(single.model)
        single.step(padded_text(2))
        # Adam divides by the size of the gradient, so that rounding errors of the small ones show.
        assert movement_error(states["final"], single.state_dict()["model"], before) < 1e-2

    @over_methods
    def test_several_ranks_go_on_from_a_plain_state(self, name: str, found: Found) -> None:
        plain_state = _three_steps(two_groups, padded_text)
        resumed = found[0]["states"][name]["resumed"]
        assert movement_error(resumed["model"], plain_state["model"], transformer()) < 1e-2
        plain = plain_state["optimizer"]
        assert resumed["optimizer"]["param_groups"] == plain["param_groups"]
        for index, entries in plain["state"].items():
            for key, value in entries.items():
                torch.testing.assert_close(resumed["optimizer"]["state"][index][key], value, rtol=1e-3, atol=1e-6)

    @pytest.mark.parametrize("build_optimizer", ["sgd", "adamw"])
    def test_parts_of_a_fused_optimizer_load_and_save_the_state_of_a_plain_one(
        self, build_optimizer: str, found: Found
    ) -> None:
        """Trap: fused no longer, or with the momentum of other elements; and a plain one that loads it became fused."""
        assert all(rank["fused shards"][build_optimizer]["fused"] for rank in found)
        state, expected = (found[0]["fused shards"][build_optimizer][name] for name in ("state", "expected"))
        assert movement_error(state["model"], expected["model"], Convolving()) < 1e-3
        assert state["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
        for index, entries in expected["optimizer"]["state"].items():
            for key, value in entries.items():
                own = state["optimizer"]["state"][index][key]
                torch.testing.assert_close(own, value, rtol=1e-3, atol=1e-6)
                assert own.is_contiguous()

    def test_a_parameter_of_a_fused_part_may_get_its_first_gradient_after_others(self, found: Found) -> None:
        late = found[0]["late in fused shards"]
        assert movement_error(late["model"], late["expected"], Late(lambda: True)) < 1e-4


class TestLoops:
    @over_methods
    @pytest.mark.parametrize("when", ["every pass", "last pass"])
    def test_a_loop_of_ones_own_averages_in_every_pass_or_once(self, name: str, when: str, found: Found) -> None:
        plain = _three_steps(sgd, _whole_text)
        assert movement_error(found[0]["loops"][name][when], plain["model"], transformer()) < 1e-4

    @over_methods
    def test_the_model_is_evaluated_before_and_between_steps(self, name: str, found: Found) -> None:
        plain = started((), None)
        batch = text(2, 32)
        before = float(plain.evaluate(lambda model: model(**batch).loss))
        plain.step(padded_text(0))
        after = float(plain.evaluate(lambda model: model(**batch).loss))
        plain.step(padded_text(1))
        assert plain.model.training
        for rank in found:
            seen = rank["evaluated"][name]
            assert (seen["before"], seen["after"]) == pytest.approx((before, after), rel=1e-5)
        trained_on = found[0]["evaluated"][name]["model"]
        assert movement_error(trained_on, plain.state_dict()["model"], transformer()) < 1e-4


class TestMemory:
    @over_methods
    def test_what_is_sharded_is_held_in_parts(self, name: str, found: Found) -> None:
        whole = sum(parameter.numel() * 4 for parameter in transformer().parameters())
        seen = [rank["bytes"][name] for rank in found]
        optimizer, parameters = (sum(each[kind] for each in seen) for kind in ("optimizer", "parameters"))
        sharded = name in ("zero_1", "zero_2", "zero_3")
        assert optimizer == (2 if sharded else 4) * whole
        assert parameters == (1 if name in ("zero_2", "zero_3") else 2) * whole
        if sharded:
            assert max(each["optimizer"] for each in seen) < 1.3 * whole

    def test_a_trial_sees_what_each_method_saves(self, found: Found) -> None:
        whole = sum(parameter.numel() * 4 for parameter in transformer().parameters())
        seen = {name: memory.breakdown for name, memory in found[0]["measured"].items()}
        for name, breakdown in seen.items():
            held = whole / 2 if name in ("zero_2", "zero_3") else whole
            assert breakdown.parameters == breakdown.gradients == pytest.approx(held, rel=0.01)
            assert breakdown.optimizer_state == pytest.approx(whole if name.startswith("zero") else 2 * whole, rel=0.05)
        peaks = [found[0]["measured"][name].peak_bytes for name in ("zero_3", "zero_2", "zero_1", "ddp")]
        assert peaks == sorted(set(peaks))

    def test_compression_sends_less(self, found: Found) -> None:
        gradients = sum(parameter.numel() * 4 for parameter in transformer().parameters())
        sent = {hook: seen["sent"] for hook, seen in found[0]["sent"].items()}
        assert gradients / 2 <= sent["fp16"] < 0.51 * gradients
        assert sent["powersgd_rank_1"] < sent["powersgd_rank_4"] < gradients / 4

    def test_ranks_compress_several_buckets_in_the_same_order(self, found: Found) -> None:
        """Trap: PowerSGD's callbacks send, and gloo runs them when it likes; it ends ranks that do not agree."""
        for first, second in zip(*(rank["buckets"] for rank in found), strict=True):
            assert first["total"] == second["total"]
            assert first["losses"][-1] < first["losses"][0]

    def test_compression_has_settled_when_it_says_so_and_trains(self, found: Found) -> None:
        for hook, seen in found[0]["sent"].items():
            assert seen["sent"] == seen["next"]
            assert seen["losses"][-1] < seen["losses"][0]
            assert seen["settling"] == (4 if hook.startswith("powersgd") else 3)


class TestUnusedParameters:
    @over_methods
    def test_they_stay_as_they_are_without_weight_decay(self, name: str, found: Found) -> None:
        plain, _ = _in_micro_batches(Branching, vectors)
        state, _ = found[0]["unused"][name]
        assert torch.equal(state["model"]["never.weight"], Branching().never.weight)
        assert movement_error(state["model"], plain["model"], Branching()) < 1e-4

    @pytest.mark.parametrize("kind", [Branching, Choosing])
    @pytest.mark.parametrize("name", ["ddp", "zero_1", "zero_2", "zero_3"])
    def test_what_one_rank_alone_uses_is_averaged_over_all(
        self, name: str, kind: type[Branching], found: Found
    ) -> None:
        """Trap: without a search for unused parameters, such a gradient is not averaged, or the ranks hang.

        Or that of one expert is averaged with that of another, which is as large.
        """
        part, rest = kind(), kind(lambda: False)
        rest.load_state_dict(part.state_dict())
        for own, other in zip(part.modules(), rest.modules(), strict=True):
            other._parameters.update(own._parameters)
        optimizer = sgd(part.parameters())
        for step in range(3):
            first, second = vectors(step)[0].chunk(2)
            ((part(first) + rest(second)) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()
        state, _ = found[0]["unused on one rank"][f"{name}, {kind.__name__}"]
        assert movement_error(state["model"], part.state_dict(), Branching()) < 1e-4

    def test_a_torch_that_would_mix_gradients_up_is_refused_before_parameters_change(self, found: Found) -> None:
        for rank in found:
            alike, apart = rank["unused on one rank, in an older torch"]
            assert alike == "nothing"
            assert "before torch 2.13 all of them, must take part in a step on every process or on none" in apart
            assert "but 4 took part on some processes only" in apart

    @pytest.mark.parametrize("name", ["ddp", "zero_1"])
    def test_a_branch_left_out_after_the_first_step_is_refused_before_parameters_change(
        self, name: str, found: Found
    ) -> None:
        for rank in found:
            assert "MethodRefusedError: some parameters got no gradient in this step" in rank["changing"][name]

    @pytest.mark.parametrize("name", ["ddp", "zero_1"])
    def test_what_is_unfrozen_later_is_refused(self, name: str, found: Found) -> None:
        """Trap: nobody averages its gradients, and the copies of the model part without a word."""
        for rank in found:
            for said in rank["unfrozen"][name]:
                assert "MethodRefusedError: what is trained must be known when a policy is applied" in said
                assert "but 2 that required none then have one now" in said


class TestWhatRanksAgreeOn:
    @over_methods
    def test_an_overflow_on_one_rank_skips_the_step_on_all(self, name: str, found: Found) -> None:
        assert [rank["overflow"][name] for rank in found] == [{"skipped": True, "lowered": True}] * 2

    @over_methods
    def test_a_micro_batch_without_targets_adds_nothing(self, name: str, found: Found) -> None:
        """Trap: skipped on one rank, the others would wait for it."""
        plain, _ = _in_micro_batches(transformer, _first_without_target)
        state, _ = found[0]["no target in a micro-batch"][name]
        assert movement_error(state["model"], plain["model"], transformer()) < 1e-4

    def test_a_rank_without_any_target_is_an_error_on_all(self, found: Found) -> None:
        for rank in found:
            assert "WorkloadError: every process must have at least one target" in rank["no target on a rank"]
            assert "1 of 2 have none" in rank["no target on a rank"]

    @over_methods
    def test_batchnorm_takes_statistics_over_the_first_ranks_share(self, name: str, found: Found) -> None:
        """The mean of the first layer sees the images alone: updated once, although the block is recomputed."""
        model = convnet(0.0)
        model(*(tensor.chunk(2)[0] for tensor in images(8)))
        expected = model.state_dict()["blocks.0.norm.running_mean"]
        torch.testing.assert_close(found[0]["batchnorm"][name]["blocks.0.norm.running_mean"], expected)
        assert int(found[0]["batchnorm"][name]["blocks.0.norm.num_batches_tracked"]) == 1


class TestPolicies:
    def test_a_policy_needs_as_many_processes_as_gpus(self, found: Found) -> None:
        for rank in found:
            applied = rank["applied"]
            assert "PolicyError: A policy for one GPU" in applied["one"]
            assert "torch.distributed has 2 processes" in applied["one"]
            assert "torchrun --nproc-per-node 4 train.py" in applied["four"]
            assert "exactly one of ddp, zero_1, fsdp" in applied["nothing distributes"]

    def test_it_steps_on_each_ranks_share(self, found: Found) -> None:
        plain = float(started((), None).step(padded_text(0)))
        assert sum(rank["applied"]["loss"] for rank in found) / 2 == pytest.approx(plain, rel=1e-5)

    def test_it_says_how_long_it_takes_to_settle(self, found: Found) -> None:
        settling = {"ddp": 3, "ddp static": 3, "zero_1": 3, "zero_2": 1, "zero_3": 1}
        assert found[0]["applied"]["settling"] == settling


@pytest.mark.parametrize("name", ["ddp", "zero_1"])
def test_averaged_gradients_lie_in_memory_as_their_parameters_do(name: str, found: Found) -> None:
    """Trap: those of the first step lay in the usual layout, and a fused step updated other elements without a word."""
    plain, _ = trained(Case(()), None, build=Convolving, data=pictures)
    state, _ = found[0]["fused, in channels last"][name]
    assert movement_error(state["model"], plain["model"], Convolving()) < 1e-4


def test_ranks_that_round_at_random_round_alike(found: Found) -> None:
    """Trap: each updates its own copy of the model, and with random numbers of its own the copies would part."""
    assert all(torch.equal(*pair) for pair in zip(found[0]["rounded"], found[1]["rounded"], strict=True))
    start = [parameter.detach().bfloat16() for parameter in transformer().parameters()]
    assert not all(torch.equal(*pair) for pair in zip(found[0]["rounded"], start, strict=True))


@pytest.mark.parametrize("name", ["ddp", "zero_1", "zero_3"])
def test_float8_scales_rows_so_that_several_ranks_train_as_one(name: str, found: Found) -> None:
    case = Case((use("float8", scale="rowwise"),))
    plain, _ = trained(case, None, build=Perceptron, data=lambda seed: perceptron.vectors(64, seed))
    state, _ = found[0]["float8"][name]
    assert list(state["model"]) == list(plain["model"])
    assert movement_error(state["model"], plain["model"], Perceptron()) < 0.02
