"""What a trainer with a policy saves: it resumes from it, and a plain model reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from accelerate import Accelerator

from advisor.integrations import accelerate, hf
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.integrations.small import TOKENS, adamw, batch, model, policy_of, rows, trainer

POLICIES = {
    "adapters": (use("checkpoint", every=1), use("lora", rank=8), use("precision", dtype="bf16")),
    "rounding": (
        use("adafactor"),
        use("chunked_cross_entropy", chunks=8),
        use("pure_bf16", rounding="stochastic"),
    ),
    "draws": (use("randomized_linear", keep=0.5),),
}
"""Methods that save other weights than a plain model has, a state of their own, or both."""


class Trained(NamedTuple):
    settings: tuple[MethodSetting, ...]
    folder: Path
    trainer: Any
    training: Training


def attached(settings: tuple[MethodSetting, ...], folder: Path) -> tuple[Any, Training]:
    own = trainer(
        folder,
        max_steps=4,
        lr_scheduler_type="linear",
        save_strategy="steps",
        save_steps=2,
        eval_strategy="steps",
        eval_steps=2,
        eval_dataset=rows(),
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    torch.manual_seed(5)
    return own, hf.attach(own, policy_of(*settings))


@pytest.fixture(scope="module", params=POLICIES)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Four steps with a schedule, saved and evaluated after the second and the last."""
    folder = tmp_path_factory.mktemp(request.param)
    settings = POLICIES[request.param]
    own, training = attached(settings, folder)
    own.train()
    yield Trained(settings, folder, own, training)
    training.close()


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(found), dict(expected), rtol=1e-6, atol=1e-7)


def read(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_a_resumed_training_ends_as_one_that_was_not_interrupted(trained: Trained, tmp_path: Path) -> None:
    own, training = attached(trained.settings, tmp_path)
    own.train(resume_from_checkpoint=str(trained.folder / "checkpoint-2"))
    same(training.state_dict()["model"], trained.training.state_dict()["model"])
    assert own.optimizer.param_groups[0]["lr"] == trained.trainer.optimizer.param_groups[0]["lr"]
    training.close()


def test_a_checkpoint_is_a_plain_model(trained: Trained) -> None:
    saved = read(trained.folder / "checkpoint-4")
    assert saved.state_dict().keys() == model().state_dict().keys()
    same(saved.state_dict(), trained.training.state_dict()["model"])


def test_the_best_model_is_in_place_at_the_end(trained: Trained) -> None:
    best = trained.trainer.state.best_model_checkpoint
    same(read(Path(best)).state_dict(), trained.training.state_dict()["model"])


def test_the_trained_model_evaluates_and_generates_as_the_saved_one(trained: Trained) -> None:
    saved = read(trained.folder / "checkpoint-4").eval()
    prompt = {"input_ids": rows()[0]["input_ids"][None, :4], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
    made = trained.training.model.eval().generate(**prompt, max_new_tokens=TOKENS - 4, do_sample=False)
    if not any(setting.name == "lora" for setting in trained.settings):  # The sum of both is rounded.
        assert torch.equal(made, saved.generate(**prompt, max_new_tokens=TOKENS - 4, do_sample=False))
    whole = {name: torch.stack([row[name] for row in rows()]) for name in rows()[0]}
    with torch.no_grad():
        expected = float(saved(**whole).loss)
    assert trained.trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)


def test_an_average_of_weights_follows_the_training_and_is_saved_under_plain_names(
    trained: Trained, tmp_path: Path
) -> None:
    averaged = torch.optim.swa_utils.AveragedModel(
        trained.training.model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)
    )
    averaged.update_parameters(trained.training.model)
    same(averaged.module.state_dict(), trained.training.model.state_dict())
    trained.training.model.load_state_dict(averaged.module.state_dict())
    trained.trainer.save_model(tmp_path)
    same(read(tmp_path).state_dict(), trained.training.state_dict()["model"])


@pytest.mark.parametrize("policy", POLICIES)
def test_a_loop_with_an_accelerator_goes_on_from_a_saved_state(policy: str, tmp_path: Path) -> None:
    first = prepared(policy)
    step(first, 0)
    first.accelerator.save_state(str(tmp_path))
    step(first, 1)
    own = first.prepared.model
    own.save_pretrained(tmp_path / "plain", state_dict=first.accelerator.get_state_dict(own))  # as is usual there
    same(read(tmp_path / "plain").state_dict(), first.prepared.training.state_dict()["model"])
    second = prepared(policy)
    second.accelerator.load_state(str(tmp_path))
    step(second, 1)
    same(second.prepared.training.state_dict()["model"], first.prepared.training.state_dict()["model"])
    for one in (first, second):
        one.prepared.training.close()


class Loop(NamedTuple):
    accelerator: Any
    prepared: accelerate.Prepared
    scheduler: Any


def prepared(policy: str) -> Loop:
    accelerator = Accelerator(cpu=True)
    own = accelerate.prepare(model(), policy_of(*POLICIES[policy]), accelerator=accelerator, build_optimizer=adamw)
    scheduler = torch.optim.lr_scheduler.LinearLR(own.optimizer)
    return Loop(accelerator, own, accelerator.prepare(scheduler))


def step(loop: Loop, number: int) -> None:
    torch.manual_seed(number)
    for micro_batch in loop.prepared.micro_batches(
        [
            {name: part[:2] for name, part in batch(number).items()},
            {name: part[2:] for name, part in batch(number).items()},
        ]
    ):
        loop.accelerator.backward(loop.prepared.forward(micro_batch))
        loop.prepared.optimizer.step()
        loop.scheduler.step()
        loop.prepared.optimizer.zero_grad()
