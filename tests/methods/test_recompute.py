"""Recomputation does once what must be done once. Each trap here leaves the gradients right, or wrong in silence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.recompute import recompute_modules
from advisor.training.training import Training
from tests.methods.tiny import adamw, convnet, gpt2, images, text, training_of

EVERY_BLOCK = use("checkpoint", every=1)
ELEMENTWISE = use("selective_checkpoint", recompute="elementwise")
both = pytest.mark.parametrize("method", [EVERY_BLOCK, ELEMENTWISE], ids=lambda method: method.label)


def stepped(training: Training, batch: Any, steps: int = 2) -> dict[str, torch.Tensor]:
    for step in range(steps):
        torch.manual_seed(step)
        training.step(batch)
    return dict(training.state_dict()["model"])


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in right)


class TestBatchNorm:
    def test_the_trap_torch_alone_updates_running_statistics_twice(self) -> None:
        model = convnet()
        torch_checkpoint(model.blocks[0], images(2)[0].requires_grad_(), use_reentrant=False).sum().backward()  # type: ignore[index]
        assert int(model.blocks[0].norm.num_batches_tracked) == 2  # type: ignore[index,union-attr,arg-type]

    @both
    def test_running_statistics_are_updated_once(self, method: MethodSetting) -> None:
        training = training_of("convnet")
        apply_settings(training, [method])
        training.step(images(4))
        counts = {int(b) for n, b in training.model.named_buffers() if n.endswith("num_batches_tracked")}
        assert counts == {1}

    @both
    def test_the_models_own_buffers_stay_in_place(self, method: MethodSetting) -> None:
        training = training_of("convnet")
        apply_settings(training, [method])
        before = [id(buffer) for buffer in training.model.buffers()]
        training.step(images(4))
        assert [id(buffer) for buffer in training.model.buffers()] == before

    def test_statistics_frozen_at_first_and_updated_later_are_guarded_too(self) -> None:
        plain, guarded = training_of("convnet"), training_of("convnet")
        apply_settings(guarded, [EVERY_BLOCK])
        for training in (plain, guarded):
            norms = [module for module in training.model.modules() if isinstance(module, nn.BatchNorm2d)]
            for norm in norms:
                norm.eval()
            stepped(training, images(4), 1)
            for norm in norms:
                norm.train()
        assert equal(stepped(guarded, images(4)), stepped(plain, images(4)))


class TestOtherState:
    @both
    def test_spectral_norm_recomputes_from_the_vectors_of_its_forward_pass(self, method: MethodSetting) -> None:
        def build() -> nn.Module:
            torch.manual_seed(0)
            layers = [
                nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Tanh(), nn.Linear(8, 8)) for _ in range(3)
            ]
            return nn.Sequential(*layers)

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).square().mean()

        batch = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
        plain, guarded = (Training(build(), compute_loss=loss, build_optimizer=adamw) for _ in range(2))
        apply_settings(guarded, [method])
        assert equal(stepped(guarded, batch), stepped(plain, batch))

    @both
    def test_vectors_that_are_frozen_at_first_and_updated_later_are_kept_too(self, method: MethodSetting) -> None:
        """Trap: the first call in evaluation mode writes to nothing, and is no example of the others."""

        def build() -> nn.Module:
            torch.manual_seed(0)
            layers = [nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.Tanh()) for _ in range(3)]
            return nn.Sequential(*layers)

        def gradients(training: Training) -> list[torch.Tensor]:
            layers = [module for module in training.model.modules() if isinstance(module, nn.Linear)]
            for mode in (False, True):
                for layer in layers:
                    layer.train(mode)
                training.model.zero_grad()
                training.backward(training.forward(torch.linspace(-1, 1, 32).view(4, 8)))
            return [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]

        plain, guarded = (
            Training(build(), compute_loss=lambda model, batch: model(batch).square().mean()) for _ in range(2)
        )
        apply_settings(guarded, [method])
        assert all(torch.equal(*pair) for pair in zip(gradients(guarded), gradients(plain), strict=True))

    def test_dropout_draws_the_same_mask_again(self) -> None:
        plain, guarded = training_of("gpt2"), training_of("gpt2")
        apply_settings(guarded, [EVERY_BLOCK])
        assert equal(stepped(guarded, text(2, 16)), stepped(plain, text(2, 16)))

    def test_a_region_can_be_recomputed_twice(self) -> None:
        model = convnet(dropout=0.0)
        recompute_modules(model, list(model.blocks))  # type: ignore[arg-type]
        loss = model(*images(2))
        parameters = list(model.parameters())
        first = torch.autograd.grad(loss, parameters, retain_graph=True)
        second = torch.autograd.grad(loss, parameters)
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))

    @both
    def test_evaluation_works_on_the_wrapped_model(self, method: MethodSetting) -> None:
        plain, wrapped = convnet().eval(), training_of("convnet")
        apply_settings(wrapped, [method])
        wrapped.model.eval()
        with torch.no_grad():
            assert torch.equal(wrapped.model(*images(2)), plain(*images(2)))


class TestKeyValueCache:
    def test_it_is_off_while_training_and_back_after(self) -> None:
        training = training_of("gpt2")
        apply_settings(training, [EVERY_BLOCK])
        config: Any = training.model.config
        assert config.use_cache is False
        assert any("use_cache" in note for note in training.notes)
        training.close()
        assert config.use_cache is True


class TestSelective:
    def test_blocks_that_share_weights_recompute_under_autocast(self) -> None:
        class Recurrent(nn.Module):
            """One block, run three times: autocast would cast its weights only the first time."""

            def __init__(self) -> None:
                super().__init__()
                self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))

            def forward(self, inputs: torch.Tensor) -> torch.Tensor:
                for _ in range(3):
                    inputs = self.block(inputs)
                return inputs.float().square().mean()

        results = []
        for settings in ([], [ELEMENTWISE]):
            torch.manual_seed(0)
            training = Training(Recurrent(), build_optimizer=adamw, blocks=(nn.Sequential,))
            apply_settings(training, [*settings, use("precision", dtype="bf16")])
            results.append(stepped(training, torch.ones(4, 8)))
        # Not to the bit: autocast sums the gradients of one cast in bfloat16, those of several in float32.
        for name, plain in results[0].items():
            torch.testing.assert_close(results[1][name], plain, rtol=0.01, atol=1e-4)

    def test_matrix_products_are_not_run_again(self) -> None:
        from torch.utils.flop_counter import FlopCounterMode

        def flops(*settings: MethodSetting) -> int:
            training = Training(gpt2(2), build_optimizer=adamw)
            apply_settings(training, settings)
            with FlopCounterMode(display=False) as counter:
                training.step(text(1, 16))
            return int(counter.get_total_flops())

        assert flops() == flops(ELEMENTWISE) < flops(EVERY_BLOCK)

    @pytest.mark.parametrize("recompute", ["elementwise", "normalization"])
    def test_activations_write_over_their_input_again_when_the_training_closes(self, recompute: str) -> None:
        training = training_of("convnet")
        activations = [module for module in training.model.modules() if isinstance(module, nn.ReLU)]
        apply_settings(training, [use("selective_checkpoint", recompute=recompute)])
        assert [activation.inplace for activation in activations] == [False] * 4
        training.close()
        assert [activation.inplace for activation in activations] == [True] * 4

    def test_an_activation_that_overwrites_a_kept_output_is_made_to_copy(self) -> None:
        def build() -> nn.Module:
            torch.manual_seed(0)
            return nn.Sequential(*[nn.Sequential(nn.Conv2d(3, 3, 1), nn.ReLU(inplace=True)) for _ in range(4)])

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch).square().mean()

        plain, selective = (Training(build(), compute_loss=loss, build_optimizer=adamw) for _ in range(2))
        apply_settings(selective, [ELEMENTWISE])
        assert equal(stepped(selective, torch.ones(2, 3, 4, 4)), stepped(plain, torch.ones(2, 3, 4, 4)))


class Counting(nn.Module):
    """A block that counts its calls in an attribute, and keeps a mean of what it saw as a plain tensor."""

    calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.mean = torch.zeros(8)
        self.seen: float = 0.0

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += float(len(inputs))
        self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return inputs + self.linear(inputs - self.mean) / self.calls


@both
def test_plain_attributes_advance_once_and_are_recomputed_from(method: MethodSetting) -> None:
    """Trap: a counter that divides made the recomputed gradient another one, and the counter ran twice as fast."""

    def trained(settings: list[MethodSetting]) -> tuple[dict[str, torch.Tensor], list[Any]]:
        torch.manual_seed(0)
        model = nn.Sequential(*[Counting() for _ in range(3)])
        training = Training(
            model,
            build_optimizer=adamw,
            compute_loss=lambda model, batch: model(batch).square().mean(),
            blocks=(Counting,),
        )
        apply_settings(training, settings)
        for step in range(3):
            torch.manual_seed(step)
            training.step(torch.randn(4, 8))
        blocks = [module for module in training.model.modules() if isinstance(module, Counting)]
        return dict(training.state_dict()["model"]), [(one.calls, one.seen, one.mean.tolist()) for one in blocks]

    plain, counts = trained([])
    changed, recomputed_counts = trained([method])
    assert [calls for calls, *_ in counts] == [3, 3, 3]
    assert recomputed_counts == counts
    assert equal(changed, plain)


class Scaled(nn.Module):
    """A block with an attribute that a schedule of the user's sets, and one that is set to nothing at first."""

    temperature = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.size: int | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.linear(inputs) / (self.temperature * (self.size or 1))


@pytest.mark.parametrize(
    "method",
    [EVERY_BLOCK, ELEMENTWISE, use("checkpoint", every=2), use("optimal_checkpoint", budget=0.4)],
    ids=lambda method: method.label,
)
def test_what_is_set_on_a_block_afterwards_reaches_the_block(method: MethodSetting) -> None:
    """Trap: torch's wrapper kept it for itself and read it back, so that a schedule changed nothing, in silence."""
    gradients = []
    for settings in ([], [method]):
        torch.manual_seed(0)
        model = nn.Sequential(*[Scaled() for _ in range(4)])
        training = Training(model, compute_loss=lambda model, batch: model(batch).square().mean(), blocks=(Scaled,))
        apply_settings(training, settings)
        for number, block in enumerate(training.model):
            block.temperature = 2.0 + number
            block.size = 3
            block.number = number
            block.note = "the user's own"
        training.backward(training.forward(torch.ones(2, 8)))
        gradients.append([parameter.grad for parameter in training.model.parameters()])
        for number, block in enumerate(training.model):
            assert (block.note, block.number) == ("the user's own", number)
            del block.note
            assert not hasattr(block, "note")
    assert all(torch.equal(*pair) for pair in zip(*gradients, strict=True))


class Caching(nn.Module):
    """A block that makes a table when it is first needed, as rotary positions and masks are made."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.table: torch.Tensor | None = None
        self.weight_of_table = torch.ones(8, requires_grad=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.table is None:
            self.table = torch.arange(8.0) / 8
        return inputs + self.linear(inputs) * self.table * self.weight_of_table


@both
def test_what_a_block_makes_when_it_is_first_needed_stays(method: MethodSetting) -> None:
    """Trap: the recomputation took the table away from the block."""

    def trained(settings: list[MethodSetting]) -> tuple[dict[str, torch.Tensor], list[torch.Tensor | None]]:
        torch.manual_seed(0)
        model = nn.Sequential(*[Caching() for _ in range(3)])
        training = Training(
            model,
            build_optimizer=adamw,
            compute_loss=lambda model, batch: model(batch).square().mean(),
            blocks=(Caching,),
        )
        apply_settings(training, settings)
        for step in range(3):
            torch.manual_seed(step)
            training.step(torch.randn(4, 8))
        blocks = [module for module in training.model.modules() if isinstance(module, Caching)]
        assert all(block.table is not None for block in blocks)
        return dict(training.state_dict()["model"]), [block.weight_of_table.grad for block in blocks]

    plain, gradients = trained([])
    changed, recomputed = trained([method])
    assert equal(changed, plain)
    for one, other in zip(gradients, recomputed, strict=True):
        assert one is not None
        assert other is not None
        assert torch.allclose(one, other)
