"""The plan is made from what was measured, holds what was asked for, and changes nothing but what is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.recompute._block_costs import BlockCosts
from advisor.methods.recompute.optimal_plan import Unit
from advisor.methods.setting import use
from advisor.training.chain import Chain
from advisor.training.processes.world import World
from advisor.training.structure import find_blocks
from advisor.training.training import Training
from tests.methods.deep import INPUT_BYTES, activation_peak, batch, deep
from tests.methods.tiny import MODELS, adamw, images, training_of

BUDGETS = (0.6, 0.4, 0.25, 0.1)


def measured(training: Training, data: Any) -> list[Unit]:
    blocks = find_blocks(training.model)
    costs = BlockCosts(blocks, [torch.default_generator])
    Chain(training, blocks).segments = costs.segments()
    training.step(data)
    return costs.units()


class TestWhatIsMeasured:
    def test_bytes_are_those_that_autograd_keeps_each_storage_once(self) -> None:
        units = measured(deep(4, wide=(1, 2)), batch())
        # A scale keeps its input, an activation its output; the input of the block itself is another's.
        narrow, wide = 2 * INPUT_BYTES, 4 * INPUT_BYTES
        assert [unit.kept for unit in units] == [narrow, wide, narrow, wide]
        assert [unit.output for unit in units] == [INPUT_BYTES] * 4
        assert all(unit.seconds > 0 for unit in units)

    def test_a_batchnorm_block_keeps_its_convolution_activation_and_mask(self) -> None:
        (first, *_) = measured(training_of("convnet"), images(2))
        image = 2 * 32 * 32 * 32 * 4
        statistics = 2 * 32 * 4
        mask = image // 4
        # The output of dropout beside what the convolution, the activation and the mask take.
        assert first.kept - first.output - 2 * image - statistics in (mask, image)

    def test_the_measured_step_trains_like_any_other(self) -> None:
        for name in MODELS:
            states = []
            for training in (training_of(name), training_of(name)):
                torch.manual_seed(0)
                if states:
                    measured(training, MODELS[name][1](2))
                else:
                    training.step(MODELS[name][1](2))
                states.append(training.state_dict()["model"])
            assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])

    def test_under_fake_tensors_work_is_counted_in_place_of_time(self) -> None:
        with FakeTensorMode():
            units = measured(training_of("convnet"), images(2))
        # The first convolution reads 3 channels where the others read 32; what it makes is the same.
        assert 0 < units[0].seconds < units[1].seconds == units[2].seconds


def planned(depth: int, budget: float, wide: Sequence[int] = (1,)) -> Training:
    return deep(depth, [use("optimal_checkpoint", budget=budget)], wide)


class TestThePlan:
    def test_the_peak_is_near_the_budget_and_falls_with_it(self) -> None:
        """Beside the budget there are the gradients on their way and what one operation takes: the same for all."""
        everything = 24 // 2 * (2 + 6) * INPUT_BYTES
        peaks = [activation_peak(planned(24, budget, (1, 3))) for budget in BUDGETS]
        assert peaks == sorted(peaks, reverse=True)
        for budget, peak in zip(BUDGETS, peaks, strict=True):
            assert 0.8 * budget * everything < peak < budget * everything + 6 * INPUT_BYTES
        assert peaks[0] < activation_peak(deep(24, wide=(1, 3)))

    @pytest.mark.parametrize("budget", BUDGETS)
    def test_gradients_are_the_same_to_the_bit(self, budget: float) -> None:
        plain, changed = deep(20, wide=(1, 3)), planned(20, budget, (1, 3))
        plain.step(batch())  # In which the other measured.
        for training in (plain, changed):
            training.backward(training.forward(batch()))
        gradients = [[parameter.grad for parameter in each.model.parameters()] for each in (plain, changed)]
        assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))  # type: ignore[arg-type]

    def test_random_numbers_and_running_statistics_are_the_same_to_the_bit(self) -> None:
        class Block(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.norm = nn.BatchNorm1d(8)
                self.dropout = nn.Dropout(0.3)

            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                return hidden + self.dropout(self.norm(hidden).tanh())

        states = []
        for settings in ([], *([use("optimal_checkpoint", budget=budget)] for budget in BUDGETS)):
            torch.manual_seed(0)
            model = nn.Sequential(*[Block() for _ in range(9)])
            training = Training(
                model, compute_loss=lambda model, batch: model(batch).square().mean(), build_optimizer=adamw
            )
            apply_settings(training, settings)
            for step in range(3):
                torch.manual_seed(step)
                training.step(torch.linspace(-1.0, 1.0, 32).view(4, 8))
            states.append(training.state_dict()["model"])
        for state in states[1:]:
            assert all(torch.equal(state[name], value) for name, value in states[0].items())

    def test_a_budget_below_any_plan_is_said_and_the_least_is_used(self) -> None:
        few = planned(3, 0.1)
        (note,) = few.notes
        assert "optimal_checkpoint budget=0.1: the blocks cannot keep less than" in note
        assert activation_peak(few) < activation_peak(deep(3))
        assert planned(24, 0.4).notes == []

    def test_every_process_follows_the_plan_of_the_first(self) -> None:
        class Following(World):
            def agreed(self, value: Any, kind: Any = Any) -> Any:
                told.append(value)
                return [Unit(seconds=1.0, kept=100, output=1), Unit(seconds=9.0, kept=100, output=1)] * 2

        told: list[Any] = []
        training = deep(4)
        training.world = Following()
        apply_settings(training, [use("optimal_checkpoint", budget=0.6)])
        training.step(batch())
        assert [type(unit) for unit in told[0]] == [Unit] * 4
        chain = training.model[0]._chain  # type: ignore[index]
        again = {number for segment in chain.segments for number in range(segment.start, segment.stop)}
        assert again == {0, 2}  # The cheap ones of what the first process measured.

    def test_the_batch_may_change_its_size_afterwards(self) -> None:
        training, plain = planned(10, 0.4), deep(10)
        plain.step(batch())
        for each in (training, plain):
            each.step(batch()[:100])
        assert all(
            torch.equal(value, plain.state_dict()["model"][name])
            for name, value in training.state_dict()["model"].items()
        )


def chain_segments(training: Training) -> set[tuple[int, int]]:
    return {(segment.start, segment.stop) for segment in training.model[0]._chain.segments}  # type: ignore[index]


class TestWhatWasSettled:
    """The plan of one training is that of the next by the same policy, whatever its seconds would have made of it."""

    def test_the_plan_is_run_from_the_first_step(self) -> None:
        first = planned(12, 0.4, (1, 3))
        again = deep(12, wide=(1, 3))
        again.settled.update(first.settled)
        apply_settings(again, [use("optimal_checkpoint", budget=0.4)])
        assert again.settling_steps == 0
        assert again.after_step == []
        assert chain_segments(again) == chain_segments(first) != set()
        assert activation_peak(again) == activation_peak(first)
        assert again.settled == first.settled

    def test_another_machines_seconds_do_not_change_it(self) -> None:
        settled = {"optimal_checkpoint": '{"plan":[[0,1],2,[3]]}'}
        training = deep(4)
        training.settled.update(settled)
        apply_settings(training, [use("optimal_checkpoint", budget=0.6)])
        training.step(batch())
        assert chain_segments(training) == {(0, 2), (3, 4)}

    def test_the_least_that_can_be_kept_is_said_again(self) -> None:
        first = planned(3, 0.1)
        again = deep(3)
        again.settled.update(first.settled)
        apply_settings(again, [use("optimal_checkpoint", budget=0.1)])
        assert again.notes == first.notes != []

    def test_a_plan_of_another_model_is_not_followed(self) -> None:
        training = deep(6)
        training.settled.update(planned(5, 0.4).settled)
        apply_settings(training, [use("optimal_checkpoint", budget=0.4)])
        (note,) = training.notes
        assert "none for the blocks of this model; a new one is made" in note
        training.step(batch())
        assert training.settled == planned(6, 0.4).settled

    @pytest.mark.parametrize("text", ["", "{}", "[0, 1]", '{"plan": [0], "for": 3}'])
    def test_what_cannot_be_read_is_refused_with_what_to_do(self, text: str) -> None:
        training = deep(4)
        training.settled["optimal_checkpoint"] = text
        with pytest.raises(MethodRefusedError, match="leave it out, and a new one is made"):
            apply_settings(training, [use("optimal_checkpoint", budget=0.4)])

    def test_a_trace_says_that_it_had_no_seconds(self) -> None:
        with FakeTensorMode():
            training = planned(6, 0.4)
        assert "a trace has work to plan by and no seconds" in training.notes[-1]
