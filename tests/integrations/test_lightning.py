"""Lightning's Trainer trains under a policy as the wrapper does, and keeps what it is used for."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    EMAWeightAveraging,
    GradientAccumulationScheduler,
    ModelCheckpoint,
    StochasticWeightAveraging,
)
from lightning.pytorch.loggers import CSVLogger

import advisor
from advisor.errors import MethodRefusedError, PolicyError, WorkloadError
from advisor.hardware.mesh import MeshAxis
from advisor.integrations import support
from advisor.integrations.lightning import ParallelPolicyStrategy, PolicyStrategy
from advisor.integrations.silent_log import silent_log
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting
from tests.contract.expected import expected
from tests.contract.observe import layers_for
from tests.integrations.lightning_modules import Data, Language, Module, Pictures, Samples, loader, pictures, tokens
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import import_bitsandbytes, text, uncompiled_optimizers

ON_ONE_DEVICE = [method for method in CATALOGUE if not (method.distributes or method.builds_on)]
ON_SEVERAL = [method for method in CATALOGUE if method.distributes or method.builds_on]
STEPS = 2


@pytest.fixture(autouse=True, scope="module")
def _quickly() -> Iterator[None]:
    import_bitsandbytes()
    with quick_compiler(), uncompiled_optimizers():
        yield


@pytest.fixture(autouse=True)
def _lightning_says_nothing() -> Iterator[None]:
    """It warns of few workers, of loggers that are not there, and of steps that no scheduler precedes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
        yield


class Seeded(Callback):
    """The same random numbers for each batch as :func:`by_the_wrapper` gives it."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        torch.manual_seed(trainer.global_step)


def policy_of(*settings: MethodSetting, micro_batch: int = 2, accumulation_steps: int = 2) -> advisor.Policy:
    methods = tuple(sorted(settings, key=lambda one: one.name))
    return advisor.Policy(methods=methods, micro_batch=micro_batch, accumulation_steps=accumulation_steps)


def trainer_of(policy: advisor.Policy, folder: Path | None = None, **options: Any) -> Trainer:
    known: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "max_steps": STEPS,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
    }
    return Trainer(strategy=PolicyStrategy(policy), **known | options)


def fitted(module: LightningModule, policy: advisor.Policy, samples: Samples, **options: Any) -> Trainer:
    more = options.pop("callbacks", [])
    size = policy.global_batch // options.get("accumulate_grad_batches", 1)
    trainer = trainer_of(policy, callbacks=[Seeded(), *more], **options)
    trainer.fit(module, loader(samples, size))
    return trainer


def state_of(trainer: Trainer) -> dict[str, torch.Tensor]:
    return dict(trainer.strategy.lightning_module_state_dict())


def by_the_wrapper(
    module: Module, policy: advisor.Policy, samples: Samples, steps: int = STEPS, **options: Any
) -> dict[str, torch.Tensor]:
    """What the policy's wrapper makes of the module: the state of a plain one after some steps."""
    with silent_log(module):
        schedulers: list[Any] = []

        def build_optimizer(parameters: Any) -> torch.optim.Optimizer:
            optimizer = torch.optim.AdamW(parameters, lr=1e-3)
            if module.scheduled:
                schedulers.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)))
            return optimizer

        if isinstance(module, Language):
            options["linear_head"] = lambda model, batch: model.linear_head(batch)
        training = advisor.apply_policy(
            policy,
            module,
            device="cpu",
            compute_loss=lambda model, batch: model.training_step(batch, 0),
            build_optimizer=build_optimizer,
            **options,
        )
        batches = list(loader(samples, policy.global_batch))
        for step in range(steps):
            torch.manual_seed(step)
            training.step(batches[step])
            for scheduler in schedulers:
                scheduler.step()
        state = training.state_dict()["model"]
        training.close()
    return dict(state)


def assert_same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(found[name], value), name


def working(method: Method) -> list[tuple[str, MethodSetting]]:
    """The first and the last setting of the method that works on a CPU, each with a model that it works on."""
    found = []
    for setting in settings_of(method):
        models = (model for model in ("gpt2", "convnet") if model not in expected(setting).refused)
        found += [(model, setting) for model in itertools.islice(models, 1)]
    return found[:1] + found[1:][-1:]


WORKING = [found for method in ON_ONE_DEVICE for found in working(method)]


@pytest.mark.parametrize(("model", "setting"), WORKING, ids=[setting.label for _, setting in WORKING])
def test_each_method_trains_as_its_wrapper_does(model: str, setting: MethodSetting) -> None:
    name, method = setting.name, get_method(setting.name)
    assert support.outcomes()[name, support.LIGHTNING.name] == ""
    layers = layers_for((setting,))
    samples = tokens(8) if model == "gpt2" else pictures(8)

    def build() -> Module:
        module = Language(layers) if model == "gpt2" else Pictures()
        module.scheduled = name != "muon"  # It has other parameter groups than the schedule was made for.
        return module

    policy = policy_of(setting) if method.accumulates else policy_of(setting, micro_batch=4, accumulation_steps=1)
    wanted = by_the_wrapper(build(), policy, samples)
    trainer = fitted(build(), policy, samples)
    assert trainer.global_step == STEPS
    assert_same(state_of(trainer), wanted)
    plain = build().state_dict()
    assert any(not torch.equal(wanted[name], value) for name, value in plain.items())


def test_a_schedule_of_other_parameter_groups_is_refused() -> None:
    with pytest.raises(MethodRefusedError, match="1 parameter groups, but the optimizer that replaces it has 2"):
        fitted(Language(), policy_of(advisor.use("muon")), tokens(8))


@pytest.mark.parametrize("method", ON_SEVERAL, ids=lambda method: method.name)
def test_a_policy_for_several_devices_is_refused_on_one(method: Method) -> None:
    policy = advisor.Policy(methods=(settings_of(method)[0],), micro_batch=2, accumulation_steps=1, gpu_count=2)
    if method.axis in (None, MeshAxis.DATA):
        with pytest.raises(PolicyError, match=r"is for 2\. Give the Trainer strategy=ParallelPolicyStrategy"):
            PolicyStrategy(policy)
    else:
        for strategy in (PolicyStrategy, ParallelPolicyStrategy):
            with pytest.raises(MethodRefusedError, match=r"cannot be used in lightning\.Trainer: .*the same samples"):
                strategy(policy)


def test_a_trainer_of_two_devices_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"the Trainer has 2\. Give it devices=1"):
        trainer_of(policy_of(), devices=2)


CHECKPOINTED = policy_of(advisor.use("checkpoint", every=1), advisor.use("precision", dtype="bf16"))


def test_steps_are_counted_for_checkpoints_loggers_and_schedulers(tmp_path: Path) -> None:
    saved = ModelCheckpoint(dirpath=tmp_path, every_n_train_steps=2, save_top_k=-1, filename="{step}")
    logger = CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    module = Language()
    trainer = fitted(
        module,
        CHECKPOINTED,
        tokens(16),
        max_steps=4,
        callbacks=[saved],
        logger=logger,
        log_every_n_steps=1,
        enable_checkpointing=True,
    )
    assert trainer.global_step == 4
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == ["step=2.ckpt", "step=4.ckpt"]
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(1e-3 / 5)
    metrics = (Path(logger.log_dir) / "metrics.csv").read_text().splitlines()
    assert len(metrics) == 5, "a line per step below the names"


def test_the_loss_that_hooks_see_is_that_of_the_whole_batch() -> None:
    seen: list[float] = []

    class Losses(Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(float(outputs["loss"]))

    samples = tokens(4)
    fitted(Language(), policy_of(), samples, max_steps=1, callbacks=[Losses()])
    plain = Language()
    batch = next(iter(loader(samples, 4)))
    assert seen == [pytest.approx(plain.model(**batch).loss.item(), rel=1e-6)]


def test_micro_batches_weigh_by_their_targets() -> None:
    batch = text(4, 16)
    for row, length in enumerate((2, 16, 3, 9)):
        batch["labels"][row, length:] = -100
    samples, seen = Samples(batch), []

    class Gradients(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.extend(one.grad.clone() for one in pl_module.parameters())

    fitted(Language(), policy_of(), samples, max_steps=1, callbacks=[Gradients()])
    plain = Language()
    plain.model(**batch).loss.backward()
    for found, parameter in zip(seen, plain.parameters(), strict=True):
        torch.testing.assert_close(found, parameter.grad, rtol=1e-4, atol=1e-7)


def test_clipping_is_the_trainers_and_happens_once() -> None:
    samples = tokens(8)
    policy = policy_of()
    wanted = by_the_wrapper(Language(), policy, samples, max_grad_norm=0.1)
    assert_same(state_of(fitted(Language(), policy, samples, gradient_clip_val=0.1)), wanted)
    assert any(not torch.equal(by_the_wrapper(Language(), policy, samples)[name], wanted[name]) for name in wanted)


def test_hooks_before_the_optimizer_see_true_gradients() -> None:
    norms: list[float] = []

    class Norms(Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in pl_module.parameters()])))

    samples = pictures(8)
    for policy in (policy_of(), policy_of(advisor.use("precision", dtype="fp16"))):
        fitted(Pictures(), policy, samples, max_steps=1, callbacks=[Norms()])
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


def test_what_the_trainer_accumulates_is_a_step_of_the_same_samples() -> None:
    samples, policy = tokens(16), policy_of(micro_batch=2, accumulation_steps=4)
    wanted = by_the_wrapper(Language(), policy, samples)
    trainer = fitted(Language(), policy, samples, accumulate_grad_batches=2)
    assert trainer.global_step == STEPS
    for name, value in state_of(trainer).items():
        torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-6)


def test_a_checkpoint_has_the_names_of_a_plain_module(tmp_path: Path) -> None:
    path, module = tmp_path / "last.ckpt", Language()
    fitted(module, policy_of(advisor.use("lora", rank=8)), tokens(8)).save_checkpoint(path)
    assert torch.load(path, weights_only=False)["state_dict"].keys() == Language().state_dict().keys()
    batch = next(iter(loader(tokens(4), 4)))
    with torch.no_grad():
        loaded, trained, before = (
            one.eval().model(**batch).loss.item() for one in (Language.load_from_checkpoint(path), module, Language())
        )
    assert loaded == pytest.approx(trained, rel=1e-5)
    assert loaded != pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize(
    "setting",
    [
        advisor.use("lora", rank=8),
        advisor.use("adam_8bit"),
        advisor.use("pure_bf16", rounding="nearest"),
        advisor.use("host_optimizer"),
    ],
    ids=lambda setting: setting.name,
)
def test_a_training_goes_on_from_a_checkpoint(setting: MethodSetting, tmp_path: Path) -> None:
    # An epoch is one batch: which batch comes next after the middle of an epoch is Lightning's affair.
    policy, samples, path = policy_of(setting), tokens(4), tmp_path / "last.ckpt"
    fitted(Language(), policy, samples).save_checkpoint(path)
    resumed = trainer_of(policy, callbacks=[Seeded()], max_steps=4)
    resumed.fit(Language(), loader(samples, 4), ckpt_path=path, weights_only=False)
    assert resumed.global_step == 4
    assert_same(state_of(resumed), state_of(fitted(Language(), policy, samples, max_steps=4)))


def test_validation_and_tests_run_and_averages_are_kept(tmp_path: Path) -> None:
    averages = EMAWeightAveraging(decay=0.5)
    module, samples = Language(), tokens(8)
    trainer = trainer_of(CHECKPOINTED, callbacks=[averages], max_epochs=1, max_steps=-1)
    trainer.fit(module, loader(samples, 4), loader(samples, 4))
    assert float(trainer.callback_metrics["val_loss"]) > 0
    plain = trainer_of(policy_of(), max_epochs=1, max_steps=-1)
    assert plain.validate(module, loader(samples, 4), verbose=False)[0]["val_loss"] > 0


@pytest.mark.parametrize("callback", [EMAWeightAveraging(), StochasticWeightAveraging(1e-3)])
def test_averages_of_replaced_parameters_are_refused(callback: Callback) -> None:
    with pytest.raises(MethodRefusedError, match="WeightAveraging averages parameters one by one"):
        fitted(Language(), policy_of(advisor.use("lora", rank=8)), tokens(8), callbacks=[callback])


class Thaw(BaseFinetuning):
    """Trains the first block from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.model.transformer.h[0])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.model.transformer.h[0], optimizer)


def test_parameters_are_unfrozen_later_where_the_optimizer_has_those_of_the_module() -> None:
    module = Language()
    block: Any = module.model.transformer
    before = block.h[0].attn.c_attn.weight.detach().clone()
    with pytest.raises(MethodRefusedError, match=r"Thaw looks for the optimizer's parameters .*such as host_optimizer"):
        fitted(Language(), policy_of(advisor.use("host_optimizer")), tokens(8), callbacks=[Thaw()])
    fitted(module, policy_of(), tokens(8), callbacks=[Thaw()], max_steps=-1, max_epochs=2)
    assert not torch.equal(block.h[0].attn.c_attn.weight, before)


def test_a_data_module_gets_the_batch_size_of_the_policy() -> None:
    data = Data(tokens(16), batch_size=1)
    trainer = trainer_of(policy_of())
    trainer.fit(Language(), datamodule=data)
    assert data.batch_size == 4
    assert trainer.global_step == STEPS


def test_a_loader_of_another_size_is_refused_at_the_first_batch() -> None:
    trainer = trainer_of(policy_of())
    with pytest.raises(WorkloadError, match=r"must have the policy's 4 samples.*it has 8.*DataLoader\(batch_size=4\)"):
        trainer.fit(Language(), loader(tokens(16), 8))
    assert trainer.global_step == 0


def test_a_chunked_loss_says_that_training_step_is_not_called(caplog: pytest.LogCaptureFixture) -> None:
    fitted(Language(), policy_of(advisor.use("chunked_cross_entropy", chunks=8)), tokens(8), max_steps=1)
    assert "training_step is not called" in caplog.text


class ByHand(Language):
    automatic_optimization = False


class TwoOptimizers(Language):
    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.parameters(), lr=1e-3), torch.optim.SGD(self.parameters(), lr=1e-3)]


class NoOptimizer(Language):
    def configure_optimizers(self) -> Any:
        return None


class WithoutLoss(Language):
    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None


IN_BACKWARD = policy_of(advisor.use("optimizer_in_backward"), micro_batch=4, accumulation_steps=1)


@pytest.mark.parametrize(
    ("module", "policy", "options", "words"),
    [
        (
            Language,
            policy_of(),
            {"precision": "bf16-mixed"},
            "has precision='bf16-mixed'.*set precision='32-true' in the Trainer",
        ),
        (Language, policy_of(), {"accumulate_grad_batches": 3}, "must divide the policy's 4 samples"),
        (Language, IN_BACKWARD, {"gradient_clip_val": 1.0}, "gradient clipping"),
        (Language, IN_BACKWARD, {"accumulate_grad_batches": 2}, "whole gradient in one backward pass"),
        (Language, policy_of(), {"callbacks": [GradientAccumulationScheduler({1: 2})]}, "must stay what it is"),
        (Language, policy_of(), {"callbacks": [BatchSizeFinder()]}, "but a BatchSizeFinder looks for another one"),
        (ByHand, policy_of(), {}, "automatic_optimization=False"),
        (
            TwoOptimizers,
            policy_of(),
            {},
            "but .* of TwoOptimizers returned 2; return one optimizer with a",
        ),
        (NoOptimizer, policy_of(), {}, "one optimizer, but .* of NoOptimizer returned None; return an optimizer"),
        (WithoutLoss, policy_of(), {}, "it returned None"),
        (Pictures, policy_of(advisor.use("channels_last")), {"precision": "16-true"}, "precision='16-true'"),
    ],
)
def test_what_cannot_go_together_is_said_before_a_step(
    module: type[Module], policy: advisor.Policy, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Exception, match=words) as raised:
        fitted(module(), policy, tokens(8), **options)
    assert "Traceback" not in str(raised.value)
