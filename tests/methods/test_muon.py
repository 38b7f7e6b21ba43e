"""Muon for the matrices of the blocks: torch's own, beside the user's AdamW for everything else."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.measure.memory.meter import optimizer_state_bytes
from advisor.methods.compose import apply_settings
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.integrations.small import model as small
from tests.methods.tiny import text, training_of

MUON = use("muon")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = x + self.down(self.up(x).relu())
        return hidden


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.words(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        logits: torch.Tensor = self.head(hidden)
        return logits


def loss(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def tokens(seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 50, (4, 8), generator=torch.Generator().manual_seed(seed))


def stacked(build_optimizer: Any = torch.optim.AdamW) -> Training:
    return Training(Stack(), compute_loss=loss, build_optimizer=build_optimizer)


def test_it_trains_as_torchs_muon_and_adamw_side_by_side() -> None:
    training = stacked(lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1))
    apply_settings(training, [MUON])
    by_hand = Stack()
    matrices = [p for p in by_hand.blocks.parameters() if p.dim() == 2]
    rest = [p for p in by_hand.parameters() if all(p is not one for one in matrices)]
    parts = (
        torch.optim.Muon(matrices, lr=0.01, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=0.01, weight_decay=0.1),
    )
    for step in range(3):
        training.step(tokens(step))
        loss(by_hand, tokens(step)).backward()
        for part in parts:
            part.step()
            part.zero_grad()
    trained = training.model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in by_hand.state_dict().items())


def test_matrices_of_the_blocks_keep_one_momentum_instead_of_two_moments() -> None:
    plain, with_muon = stacked(), stacked()
    apply_settings(with_muon, [MUON])
    for training in (plain, with_muon):
        training.step(tokens())
    matrices = 3 * 2 * 16 * 32
    steps = 3 * 2  # Adam counts them for each of these, Muon does not
    assert optimizer_state_bytes(plain) - optimizer_state_bytes(with_muon) == 4 * (matrices + steps)


def test_embedding_and_output_layer_stay_where_they_are_also_where_they_are_one() -> None:
    training = training_of("gpt2")
    apply_settings(training, [MUON])
    muon, *rest = training.optimizer.param_groups
    names = {id(parameter): name for name, parameter in training.model.named_parameters()}
    stepped = {names[id(parameter)] for parameter in muon["params"]}
    weights = {name for name in names.values() if ".h." in name and name.endswith("weight")}
    assert stepped == {name for name in weights if "ln_" not in name}
    assert any(names[id(parameter)] == "transformer.wte.weight" for group in rest for parameter in group["params"])


def test_each_group_gives_its_matrices_its_own_rate_and_a_schedule_moves_both_parts() -> None:
    def build(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        decayed = [p for p in parameters if p.dim() > 1]
        others = [p for p in parameters if p.dim() <= 1]
        return torch.optim.AdamW([{"params": decayed, "lr": 0.5}, {"params": others, "weight_decay": 0.0}], lr=0.25)

    training = stacked(build)
    apply_settings(training, [MUON])
    assert [group["lr"] for group in training.optimizer.param_groups] == [0.5, 0.5, 0.25]
    scheduler = torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=1, gamma=0.5)
    training.step(tokens())
    scheduler.step()
    before = copy.deepcopy(training.model.state_dict())
    for group in training.optimizer.param_groups:
        assert group["lr"] in (0.25, 0.125)
        group["lr"] = 0.0
    training.step(tokens())
    assert all(torch.equal(before[name], value) for name, value in training.model.state_dict().items())


def test_it_goes_on_where_its_state_was_saved() -> None:
    whole, first = stacked(), stacked()
    for training in (whole, first):
        apply_settings(training, [MUON])
        training.step(tokens(1))
    second = stacked()
    apply_settings(second, [MUON])
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (whole, second):
        training.step(tokens(2))
    resumed = second.model.state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in whole.model.state_dict().items())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_copy_of_it_steps_as_it_does_itself(copied: Any) -> None:
    """With its own parameters and its own rates: nothing is shared with what it was copied from."""
    training = stacked()
    apply_settings(training, [MUON])
    training.step(tokens(1))
    loss(training.model, tokens(2)).backward()
    before = copy.deepcopy(training.model.state_dict())
    model, optimizer = copied((training.model, training.optimizer))
    for ours, theirs in zip(model.parameters(), training.model.parameters(), strict=True):
        assert theirs.grad is not None
        ours.grad = theirs.grad.clone()  # pickle leaves it out
    optimizer.step()
    assert all(torch.equal(before[name], value) for name, value in training.model.state_dict().items())
    training.optimizer.step()
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in training.model.state_dict().items())
    optimizer.param_groups[0]["lr"] = 0.0
    assert training.optimizer.param_groups[0]["lr"] != 0.0


def test_the_users_step_hooks_run_once_in_each_step() -> None:
    counted: list[int] = []

    def build(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.AdamW(parameters)
        optimizer.register_step_post_hook(lambda *_: counted.append(1))
        return optimizer

    training = stacked(build)
    apply_settings(training, [MUON])
    training.step(tokens())
    assert len(counted) == 1


def test_the_loss_falls() -> None:
    training = training_of("gpt2", dropout=0.0)
    apply_settings(training, [MUON])
    losses = [float(training.step(text(4))) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), "torch.optim.sgd.SGD"),
        (lambda p: torch.optim.AdamW(p, maximize=True), "maximize"),
        (lambda p: torch.optim.Adam(p, weight_decay=0.1), "weight_decay=0"),
    ],
)
def test_an_optimizer_that_it_cannot_stand_beside_is_refused(build: Any, reason: str) -> None:
    with pytest.raises(MethodRefusedError, match=reason):
        apply_settings(stacked(build), [MUON])


def test_matrices_that_the_optimizer_does_not_step_are_none_of_it() -> None:
    model = small()
    training = Training(model, build_optimizer=lambda _: torch.optim.AdamW(model.lm_head.parameters()))
    with pytest.raises(MethodRefusedError, match="have no parameter that is a trained matrix"):
        apply_settings(training, [use("muon")])


def test_a_model_without_matrices_in_its_blocks_is_refused() -> None:
    with pytest.raises(MethodRefusedError, match="have no parameter that is a trained matrix"):
        apply_settings(training_of("convnet"), [MUON])
