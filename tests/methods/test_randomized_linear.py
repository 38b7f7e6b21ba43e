from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.methods.activations._randomized import project
from advisor.methods.compose import apply_settings, judge
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.contract.observe import LiveBytes, relative_error, same
from tests.methods.tiny import cpu, facts_of, gpt2, text

ROWS, WIDTH = 64, 16
HALF = use("randomized_linear", keep=0.5)


class Attention(nn.Module):
    """Three projections of one input, and one of what they make."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.output = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        mixed = self.query(values) + self.key(values).sin() + self.value(input=values).cos()
        return self.output(mixed)


class Stack(nn.Module):
    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            values = values + block(values)
        return values.square().mean()


class Alone(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.layer(values).square().mean()


def conv1d() -> nn.Module:
    from transformers.pytorch_utils import Conv1D

    return Conv1D(8, WIDTH)


def inputs(seed: int = 0) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def stack() -> Stack:
    torch.manual_seed(0)
    return Stack(Attention(), Attention())


def training_with(model: nn.Module, *settings: MethodSetting) -> Training:
    training = Training(model, build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    apply_settings(training, settings)
    return training


def gradients(training: Training, batch: object, draws: int = 1) -> dict[str, torch.Tensor]:
    """Their mean over several draws for one batch, under the model's plain names."""
    total: dict[str, torch.Tensor] = {}
    for _ in range(draws):
        training.model.zero_grad()
        torch.manual_seed(0)
        training.backward(training.forward(batch))
        for name, parameter in training.model.named_parameters():
            assert parameter.grad is not None
            name = name.replace("_checkpoint_wrapped_module.", "")
            total[name] = total.get(name, torch.zeros(())) + parameter.grad / draws
    training.close()
    return total


def test_the_projection_is_right_on_the_average_and_drawn_again_from_its_seed() -> None:
    rows, other = inputs(0), inputs(1)
    exact = rows.t() @ other
    mean = torch.stack([project(rows, 32, seed).t() @ project(other, 32, seed) for seed in range(2000)]).mean(0)
    assert float((mean - exact).norm() / exact.norm()) < 0.1
    assert torch.equal(project(rows, 32, 5), project(rows, 32, 5))
    assert not torch.equal(project(rows, 32, 5), project(rows, 32, 6))
    assert project(rows, 32, 5).shape == (32, WIDTH)


def test_random_signs_exist_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.methods.activations._randomized._AT_ONCE", 256)
    largest = 0
    draw = torch.randint

    def counted(*args: object, **options: object) -> torch.Tensor:
        nonlocal largest
        signs = draw(*args, **options)  # type: ignore[call-overload]
        largest = max(largest, signs.numel())
        return signs

    monkeypatch.setattr(torch, "randint", counted)
    project(inputs(), 32, 0)
    assert largest == 256


@pytest.mark.parametrize("layer", [lambda: nn.Linear(WIDTH, 8), lambda: nn.Linear(WIDTH, 8, bias=False), conv1d])
def test_only_the_gradient_of_the_weight_is_random(layer: object) -> None:
    assert callable(layer)
    torch.manual_seed(0)
    plain, changed = Training(Alone(layer())), None
    changed = training_with(copy.deepcopy(plain.model), HALF)
    own = [inputs().requires_grad_() for _ in range(2)]
    losses = [training.forward(values) for training, values in zip((plain, changed), own, strict=True)]
    for training, loss in zip((plain, changed), losses, strict=True):
        training.backward(loss)
    assert torch.equal(*losses)
    assert own[0].grad is not None
    assert own[1].grad is not None
    assert torch.allclose(own[0].grad, own[1].grad, rtol=1e-6, atol=1e-9)
    for (name, exact), parameter in zip(plain.model.named_parameters(), changed.model.parameters(), strict=True):
        assert exact.grad is not None
        assert parameter.grad is not None
        near = torch.allclose(exact.grad, parameter.grad, rtol=1e-5, atol=1e-7)
        assert near == name.endswith("bias")


@pytest.mark.parametrize("layer", [lambda: nn.Linear(WIDTH, 8), conv1d])
def test_the_gradient_of_the_weight_is_right_on_the_average(layer: object) -> None:
    assert callable(layer)
    torch.manual_seed(0)
    model = Alone(layer())
    exact = gradients(training_with(copy.deepcopy(model)), inputs())
    few = gradients(training_with(copy.deepcopy(model), HALF), inputs(), draws=10)
    many = gradients(training_with(model, HALF), inputs(), draws=1000)
    assert relative_error(many, exact) < 0.1
    assert relative_error(many, exact) < 0.3 * relative_error(few, exact)


def test_a_head_that_shares_its_weight_with_the_embedding_gets_both_gradients() -> None:
    model = gpt2(layers=1, dropout=0.0)
    batch = text(2, 16)
    exact = gradients(training_with(copy.deepcopy(model)), batch)["transformer.wte.weight"]
    one, many = (
        gradients(training_with(copy.deepcopy(model), HALF), batch, draws=draws)["transformer.wte.weight"]
        for draws in (1, 100)
    )
    errors = [float((measured - exact).norm() / exact.norm()) for measured in (one, many)]
    assert errors[1] < 0.2 * errors[0]


def test_half_of_the_rows_are_kept_and_no_matrix() -> None:
    held = []
    for settings in ((), (HALF,)):
        training = training_with(Alone(nn.Linear(WIDTH, 8)), *settings)
        with LiveBytes() as live:
            loss = training.forward(inputs() * 1.0)  # The product belongs to nobody else.
        held.append(live.live())
        del loss
    seed = 8
    assert held[0] - held[1] == ROWS * WIDTH * 4 / 2 - seed


def test_layers_that_share_their_input_share_its_projection() -> None:
    def held(*settings: MethodSetting) -> int:
        training = training_with(Stack(Attention()), *settings)
        with LiveBytes() as live:
            loss = training.forward(inputs() * 1.0)
        assert loss.requires_grad
        return live.live()

    inputs_of_layers, seeds = 2 * ROWS * WIDTH * 4, 4 * 8
    # The first input is the block's own, which the sum keeps not: both inputs shrink to their half.
    assert held() - held(HALF) == inputs_of_layers / 2 - seeds


CHECKPOINTS = (
    use("checkpoint", every=1),
    use("selective_checkpoint", recompute="attention"),
    use("selective_checkpoint", recompute="elementwise"),
)


@pytest.mark.parametrize("checkpoint", CHECKPOINTS, ids=lambda setting: setting.label)
def test_a_recomputation_draws_the_numbers_of_its_forward_pass(checkpoint: MethodSetting) -> None:
    alone = gradients(training_with(stack(), HALF), inputs())
    together = gradients(training_with(stack(), HALF, checkpoint), inputs())
    assert same(together, alone)


def test_a_recomputation_that_would_draw_others_is_an_error() -> None:
    """Trap: after a second forward pass, the projection of the first would be drawn anew from another seed."""
    training = training_with(stack(), HALF, use("checkpoint", every=1))
    first, _ = training.forward(inputs(0)), training.forward(inputs(1))
    with pytest.raises(RuntimeError, match="drew other numbers"):
        training.backward(first)


def test_passes_may_overlap_where_nothing_is_recomputed() -> None:
    overlapping, apart = training_with(stack(), HALF), training_with(stack(), HALF)
    losses = [overlapping.forward(inputs(seed)) for seed in (0, 1)]
    for loss in losses:
        overlapping.backward(loss)
    for seed in (0, 1):
        apart.backward(apart.forward(inputs(seed)))
    for one, other in zip(overlapping.model.parameters(), apart.model.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_the_models_own_random_numbers_are_not_touched() -> None:
    training = training_with(stack(), HALF)
    before = torch.get_rng_state()
    training.backward(training.forward(inputs()))
    assert torch.equal(torch.get_rng_state(), before)


def test_processes_draw_different_numbers() -> None:
    from advisor.methods.activations._randomized import RandomizedLinears
    from advisor.training.processes.world import World

    seeds = []
    for rank in range(2):
        training = Training(stack())
        training.world = World(rank=rank, size=2)
        linears = RandomizedLinears(training, 0.5)
        with linears.one_pass():
            seeds.append(linears._projected(training.model, inputs(), torch.float32)[1])
    assert seeds[0] != seeds[1]


def test_gradients_keep_the_format_of_the_weights_under_autocast() -> None:
    training = training_with(gpt2(), HALF, use("precision", dtype="bf16"))
    with LiveBytes() as live:
        loss = training.forward(text())
    assert loss.isfinite()
    low = live.live()
    training.backward(loss)
    assert {p.grad.dtype for p in training.model.parameters() if p.grad is not None} == {torch.float32}
    full = training_with(gpt2(), use("precision", dtype="bf16"))
    with LiveBytes() as live:
        kept = full.forward(text())
    assert kept.isfinite()
    assert low < live.live()


def test_a_model_without_linear_layers_is_refused_by_name_and_by_the_worker() -> None:
    verdict = judge([HALF], facts=facts_of("convnet", module_counts={"torch.nn.Conv2d": 4}), hardware=cpu())
    assert not verdict.applicable
    assert "no linear layer" in verdict.reason
    with pytest.raises(MethodRefusedError, match="Sequential has no linear layer"):
        apply_settings(Training(nn.Sequential(nn.Conv2d(3, 3, 1))), [HALF])


@pytest.mark.parametrize("why", ["frozen", "one row"])
def test_where_nothing_can_be_kept_smaller_it_is_said_once(why: str) -> None:
    model = Alone(nn.Linear(WIDTH, 8))
    model.layer.weight.requires_grad_(why != "frozen")  # type: ignore[operator]
    training = training_with(model, HALF)
    for _ in range(2):
        training.step(inputs() if why == "frozen" else inputs()[:1])
    assert [note for note in training.notes if "changed nothing" in note] == training.notes[-1:]
    training.close()


def test_the_place_in_the_stream_of_numbers_is_part_of_the_state() -> None:
    first, second = training_with(stack(), HALF), training_with(stack(), HALF)
    first.step(inputs())
    assert first.state_dict()["randomized_linear"] == {"passes": 1}
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for training in (first, second):
        training.step(inputs(1))
    assert same(first.state_dict()["model"], second.state_dict()["model"])


def test_a_copy_of_the_model_trains_its_own_weights() -> None:
    training = training_with(stack(), HALF)
    training.backward(training.forward(inputs()))
    training.model.zero_grad()
    copied = copy.deepcopy(training.model)
    copied(inputs()).backward()
    assert all(parameter.grad is not None for parameter in copied.parameters())
    assert all(parameter.grad is None for parameter in training.model.parameters())
