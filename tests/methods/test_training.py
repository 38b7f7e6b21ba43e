"""Training: one optimizer step is the same step, however many micro-batches and whatever is listening."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError, WorkloadError
from advisor.training.processes.cut import IN_PARTS, require_parts_for
from advisor.training.state_part import StatePart
from advisor.training.training import Phase, Training
from tests.methods.tiny import adamw, convnet, gpt2, images, text


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=1.0)


def gradients(training: Training, batch: Any) -> dict[str, torch.Tensor]:
    """The gradients that one step hands to the optimizer."""
    found: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        found.update({name: p.grad.clone() for name, p in training.model.named_parameters() if p.grad is not None})

    training.optimizer.register_step_pre_hook(keep)
    torch.manual_seed(0)
    training.step(batch)
    return found


def error(measured: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    flat = [torch.cat([tensors[name].flatten().double() for name in plain]) for tensors in (measured, plain)]
    return float((flat[0] - flat[1]).norm() / flat[1].norm())


def padded_text() -> dict[str, torch.Tensor]:
    """Six samples of which some have almost no target."""
    batch = text(6, 32)
    for sample, length in enumerate((32, 3, 9, 32, 2, 17)):
        batch["labels"][sample, length:] = -100
    return batch


class TestMicroBatches:
    @pytest.mark.parametrize("size", [1, 2, 4, 5])
    def test_gradients_equal_the_full_batch_although_padding_is_uneven(self, size: int) -> None:
        plain = gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd), padded_text())
        split = gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd, micro_batch=size), padded_text())
        assert error(split, plain) < 2e-6

    def test_a_mean_of_means_would_be_wrong(self) -> None:
        plain = gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd), padded_text())
        naive = Training(gpt2(2, dropout=0.0), build_optimizer=sgd, micro_batch=2, count_targets=lambda _: 1.0)
        assert error(gradients(naive, padded_text()), plain) > 0.1

    def test_the_returned_loss_is_the_mean_over_all_targets(self) -> None:
        plain = Training(gpt2(2, dropout=0.0)).step(padded_text())
        split = Training(gpt2(2, dropout=0.0), micro_batch=4).step(padded_text())
        assert split.shape == ()
        assert not split.requires_grad
        assert float(split) == pytest.approx(float(plain), rel=1e-6)

    def test_a_piece_without_targets_adds_nothing(self) -> None:
        batch = text(4, 16)
        batch["labels"][2:] = -100
        assert torch.isfinite(Training(gpt2(2), micro_batch=2).step(batch))
        with_empty = gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd, micro_batch=2), batch)
        full = {name: tensor[:2] for name, tensor in batch.items()}
        assert error(with_empty, gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd), full)) < 1e-6

    def test_samples_weigh_where_the_batch_has_no_token_labels(self) -> None:
        model = nn.Linear(3, 1)
        torch.manual_seed(0)
        inputs, targets = torch.randn(5, 3), torch.randn(5, 1)

        def loss(model: nn.Module, batch: Any) -> torch.Tensor:
            return nn.functional.mse_loss(model(batch[0]), batch[1])

        options: dict[str, Any] = {"compute_loss": loss, "build_optimizer": sgd}
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        plain = gradients(Training(model, **options), (inputs, targets))
        model.load_state_dict(state)
        assert error(gradients(Training(model, micro_batch=3, **options), (inputs, targets)), plain) < 1e-6

    def test_the_workload_may_count_its_targets(self) -> None:
        seen = []

        def count(batch: Any) -> torch.Tensor:
            seen.append(len(batch["input_ids"]))
            return (batch["labels"][:, 1:] != -100).sum()

        plain = gradients(Training(gpt2(2, dropout=0.0), build_optimizer=sgd), padded_text())
        counted = Training(
            gpt2(2, dropout=0.0),
            build_optimizer=sgd,
            micro_batch=4,
            count_targets=count,
            compute_loss=lambda model, batch: model(**batch).loss,
        )
        assert error(gradients(counted, padded_text()), plain) < 2e-6
        assert seen == [3, 3]

    def test_one_micro_batch_is_bit_equal_to_plain_training(self) -> None:
        plain = gradients(Training(gpt2(2), build_optimizer=sgd), padded_text())
        whole = gradients(Training(gpt2(2), build_optimizer=sgd, micro_batch=6), padded_text())
        assert all(torch.equal(whole[name], plain[name]) for name in plain)

    def test_accumulation_is_refused_when_a_method_does_not_allow_it(self) -> None:
        training = Training(gpt2(2), micro_batch=2)
        training.accumulates = False
        with pytest.raises(MethodRefusedError, match="6 samples needs 3 micro-batches"):
            training.step(padded_text())


class TestSplit:
    def test_pieces_cover_the_batch_and_differ_by_one_at_most(self) -> None:
        tensor = torch.arange(7)
        pieces = Training(gpt2(2), micro_batch=3).split({"a": tensor, "nested": [tensor * 2, ("text", None, 3)]})
        assert [len(piece["a"]) for piece in pieces] == [3, 2, 2]
        assert torch.equal(torch.cat([piece["nested"][0] for piece in pieces]), tensor * 2)
        assert all(piece["nested"][1] == ("text", None, 3) for piece in pieces)

    def test_zero_dimensional_tensors_are_shared(self) -> None:
        scale = torch.tensor(2.0)
        pieces = Training(gpt2(2), micro_batch=1).split((torch.zeros(2, 1), scale))
        assert [piece[1] for piece in pieces] == [scale, scale]

    def test_a_tokenizers_mapping_is_split_as_a_mapping(self) -> None:
        from transformers import BatchEncoding

        pieces = Training(gpt2(2), micro_batch=1).split(BatchEncoding({"input_ids": torch.zeros(2, 4)}))
        assert [piece["input_ids"].shape for piece in pieces] == [(1, 4), (1, 4)]
        assert [piece.input_ids.shape for piece in pieces] == [(1, 4), (1, 4)], "as losses read it"

    def test_a_mapping_whose_attributes_are_its_items_becomes_a_dict(self) -> None:
        """A copy of it would keep the whole batch under its attributes."""

        class Items(dict[str, Any]):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                self.__dict__ = self

        pieces = Training(gpt2(2), micro_batch=1).split(Items({"inputs": torch.zeros(2, 4)}))
        assert [(type(piece), piece["inputs"].shape) for piece in pieces] == [(dict, (1, 4)), (dict, (1, 4))]

    def test_a_loss_reads_a_tokenizers_mapping_by_its_attributes(self) -> None:
        """The trap: every batch became a dict, of which a loss that is right in a plain loop has no input_ids."""
        from transformers import BatchEncoding

        batch = BatchEncoding({"inputs": torch.ones(4, 2)})
        training = Training(
            torch.nn.Linear(2, 1), compute_loss=lambda model, batch: model(batch.inputs).mean(), micro_batch=2
        )
        assert torch.isfinite(training.step(batch))
        assert batch.inputs.shape == (4, 2), "the user's own batch stays as it is"

    def test_tensors_that_disagree_on_the_samples_are_an_error_that_says_so(self) -> None:
        with pytest.raises(WorkloadError, match=r"first sizes are \[4, 6\]"):
            Training(gpt2(2), micro_batch=2).split((torch.zeros(4), torch.zeros(6)))

    def test_they_may_disagree_where_nothing_is_cut(self) -> None:
        batch = (torch.zeros(4, 2), torch.zeros(1, 2))
        assert Training(gpt2(2), micro_batch=4).split(batch) == [batch]


class TestPhases:
    def test_a_listener_hears_every_phase_as_it_begins(self) -> None:
        training = Training(gpt2(2), micro_batch=3)
        heard: list[Phase] = []
        training.phase_listener = heard.append
        training.step(text(6, 16))
        assert heard == [Phase.FORWARD, Phase.BACKWARD] * 2 + [Phase.OPTIMIZER, Phase.IDLE]

    def test_a_step_is_forward_backward_and_optimizer_step(self) -> None:
        whole, parts = (Training(convnet(), build_optimizer=adamw) for _ in range(2))
        torch.manual_seed(0)
        whole.step(images(4))
        torch.manual_seed(0)
        loss = parts.forward(images(4))
        parts.backward(loss)
        parts.optimizer_step()
        states = whole.state_dict()["model"], parts.state_dict()["model"]
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert all(p.grad is None for p in whole.model.parameters())


class TestClipping:
    def test_the_total_norm_is_clipped_before_the_step(self) -> None:
        clipped = gradients(Training(convnet(), build_optimizer=sgd, max_grad_norm=0.01), images(4))
        plain = gradients(Training(convnet(), build_optimizer=sgd), images(4))
        assert _norm(plain) > 0.02
        assert _norm(clipped) == pytest.approx(0.01, rel=1e-3)

    def test_under_a_scaler_the_true_gradients_are_clipped_once_unscaled(self) -> None:
        training = Training(convnet(), build_optimizer=sgd)
        training.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        plain = gradients(Training(convnet(), build_optimizer=sgd), images(4))
        torch.manual_seed(0)
        training.backward(training.forward(images(4)))
        before = training.clip_grad_norm(0.01)
        assert float(before) == pytest.approx(_norm(plain), rel=1e-4)
        after = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
        assert _norm(after) == pytest.approx(0.01, rel=1e-3)
        training.optimizer_step()
        training.step(images(4))  # The scaler is ready for the next step.


class TestState:
    def test_a_plain_program_reads_it_back(self) -> None:
        training = Training(convnet(), build_optimizer=adamw)
        training.step(images(4))
        state = training.state_dict()
        assert set(state) == {"model", "optimizer"}
        model = convnet()
        model.load_state_dict(state["model"])
        adamw(model.parameters()).load_state_dict(state["optimizer"])

    def test_the_scaler_is_part_of_it(self) -> None:
        training, other = Training(convnet()), Training(convnet())
        for each, scale in ((training, 8.0), (other, 2.0)):
            each.gradient_scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        training.step(images(4))
        other.load_state_dict(training.state_dict())
        assert other.gradient_scaler is not None
        assert other.gradient_scaler.get_scale() == 8.0

    @pytest.mark.parametrize("count", [2, 3])
    def test_state_that_was_saved_in_parts_is_refused_by_another_number_of_processes(self, count: int) -> None:
        training = Training(gpt2(2), build_optimizer=adamw)
        training.step(text(4))
        state = training.state_dict()
        first = state["optimizer"]["state"][0]
        first["exp_avg"] = {IN_PARTS: [first["exp_avg"]] * count}
        other = Training(gpt2(2), build_optimizer=adamw)
        before = {name: one.clone() for name, one in other.model.state_dict().items()}
        with pytest.raises(
            MethodRefusedError, match=f"parts of {count} tensor-parallel devices and is to be loaded by 1;"
        ):
            other.load_state_dict(state)
        assert all(torch.equal(one, before[name]) for name, one in other.model.state_dict().items())
        require_parts_for(state["optimizer"], count)


class TestSetUp:
    def test_closing_undoes_process_wide_settings_last_first_and_once(self) -> None:
        training = Training(convnet())
        order: list[int] = []
        for number in (1, 2, 3):
            training.on_close(lambda number=number: order.append(number))
        training.close()
        training.close()
        assert order == [3, 2, 1]

    def test_contexts_surround_every_forward_pass_but_not_the_backward_pass(self) -> None:
        training = Training(convnet(), micro_batch=2)
        training.forward_contexts.append(lambda: torch.autocast("cpu", dtype=torch.bfloat16))
        inside: list[bool] = []
        training.phase_listener = lambda phase: inside.append(torch.is_autocast_enabled("cpu"))
        seen: list[bool] = []
        training.model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
        training.step(images(4))
        assert seen == [True, True]
        assert not any(inside)

    def test_a_model_in_evaluation_mode_is_set_to_training_and_that_is_said(self) -> None:
        training = Training(convnet().eval())
        assert training.model.training
        assert "evaluation mode" in training.notes[0]

    def test_frozen_parts_of_a_model_in_training_mode_stay_frozen(self) -> None:
        model = convnet()
        model.blocks[0].norm.eval()  # type: ignore[index,union-attr]
        assert not Training(model).model.blocks[0].norm.training  # type: ignore[index,union-attr]

    def test_the_optimizer_gets_the_trainable_parameters_and_defaults_to_adamw(self) -> None:
        model = convnet()
        model.head.weight.requires_grad_(False)  # type: ignore[union-attr]
        training = Training(model)
        assert type(training.optimizer) is torch.optim.AdamW
        given = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
        assert given == {id(p) for p in model.parameters() if p.requires_grad}

    @pytest.mark.parametrize(
        ("build", "message"),
        [(lambda parameters: None, "must return a torch.optim.Optimizer"), (lambda p: list(p), "returned list")],
    )
    def test_a_build_optimizer_that_returns_something_else_is_an_error(
        self, build: Callable[..., Any], message: str
    ) -> None:
        with pytest.raises(WorkloadError, match=message):
            Training(convnet(), build_optimizer=build).step(images(2))

    def test_a_build_optimizer_that_expects_the_model_is_told_what_it_is_given(self) -> None:
        with pytest.raises(WorkloadError, match=r"asks that list for \.named_parameters") as caught:
            Training(convnet(), build_optimizer=lambda model: torch.optim.SGD(model.named_parameters())).step(images(2))
        assert "test_training.py" in str(caught.value.traceback_text)
        with pytest.raises(AttributeError, match="learning_rate"):  # a mistake of another kind stays as it is
            Training(convnet(), build_optimizer=lambda p: torch.optim.SGD(p, lr=torch.nn.learning_rate)).step(images(2))

    def test_a_model_with_nothing_to_train_is_an_error(self) -> None:
        with pytest.raises(WorkloadError, match="all of them are frozen"):
            Training(convnet().requires_grad_(False)).complete()


class Counter(StatePart):
    """A part of the state that is one number."""

    def __init__(self, count: int) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def from_plain(self, state: Mapping[str, Any], kept: Mapping[str, Any] | None) -> Mapping[str, Any]:
        self.count = 0 if kept is None else int(kept["count"])
        return state


class TestWhatMethodsAdd:
    def test_a_part_of_the_state_is_kept_under_its_name_and_may_be_missing_from_older_states(self) -> None:
        training, other, plain = (Training(convnet(), build_optimizer=sgd) for _ in range(3))
        training.state_parts["drawn"], other.state_parts["drawn"] = Counter(7), Counter(0)
        other.load_state_dict(plain.state_dict())
        assert other.state_dict()["drawn"] == {"count": 0}
        other.load_state_dict(training.state_dict())
        assert other.state_dict()["drawn"] == {"count": 7}
        assert "drawn" not in plain.state_dict()

    def test_the_loss_of_every_forward_pass_is_shown_after_its_contexts_are_left(self) -> None:
        training, seen = Training(convnet(), build_optimizer=sgd, micro_batch=2), []
        inside: list[bool] = []

        @contextlib.contextmanager
        def context() -> Iterator[None]:
            inside.append(True)
            yield
            inside.pop()

        training.forward_contexts.append(context)
        training.after_forward.append(lambda loss: seen.append((loss.grad_fn is not None, list(inside))))
        training.step(images(6))
        assert seen == [(True, [])] * 3


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())
