"""``save_pretrained`` of a trained model, and of one with adapters of the user's own, writes what was trained."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers

from advisor.errors import PolicyError
from advisor.integrations import hf
from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.training.training import Training
from tests.integrations.small import Seeds, adamw, arguments, batch, model, policy_of, rows

# transformers says so of its own Trainer, beside a model of peft's.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")

WRAPPING = [(use("checkpoint", every=1),), (use("sqrt_checkpoint"),), (use("swap", min_bytes=2**20),)]
CHANGING = [(use("lora", rank=8),), (use("lora", rank=8), use("checkpoint", every=1)), (use("checkpoint", every=1),)]


def words(settings: tuple[MethodSetting, ...]) -> str:
    return " + ".join(one.words for one in settings)


def with_adapters() -> Any:
    options = peft.LoraConfig(r=4, target_modules="all-linear", modules_to_save=["norm"], task_type="CAUSAL_LM")
    return peft.get_peft_model(model(), options)


def attached(folder: Path, settings: tuple[MethodSetting, ...], **changed: Any) -> tuple[Any, Training]:
    torch.manual_seed(3)
    given = {name: changed.pop(name) for name in ("eval_dataset",) if name in changed}
    own = transformers.Trainer(
        model=with_adapters(),
        args=arguments(folder, save_strategy="steps", save_steps=1, **changed),
        train_dataset=rows(),
        callbacks=[Seeds()],
        **given,
    )
    own.remove_callback(transformers.PrinterCallback)
    return own, hf.attach(own, policy_of(*settings))


def trained(settings: tuple[MethodSetting, ...]) -> tuple[Any, Training]:
    """A model after one step, and its training."""
    own = model()
    training = apply_policy(policy_of(*settings), own, device="cpu", build_optimizer=adamw)
    training.step(batch(0))
    return own, training


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    torch.testing.assert_close(dict(found), dict(expected), rtol=0.0, atol=1e-6)


def adapters_in(folder: str | Path) -> dict[str, torch.Tensor]:
    return dict(peft.PeftModel.from_pretrained(model(), folder).state_dict())


def plain_in(folder: Path) -> dict[str, torch.Tensor]:
    return dict(transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict())


@pytest.mark.parametrize("settings", WRAPPING, ids=words)
def test_adapters_of_the_users_own_are_saved_and_resumed_whatever_wraps_the_blocks(
    settings: tuple[MethodSetting, ...], tmp_path: Path
) -> None:
    own, training = attached(tmp_path / "first", settings)
    own.train()
    state = training.state_dict()["model"]
    assert any(".lora_B." in name and value.any() for name, value in state.items())
    same(adapters_in(tmp_path / "first" / "checkpoint-2"), state)
    own.model.save_pretrained(tmp_path / "direct")
    same(adapters_in(tmp_path / "direct"), state)

    resumed, again = attached(tmp_path / "second", settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-1"))
    same(again.state_dict()["model"], state)
    again.close()
    training.close()
    own.model.save_pretrained(tmp_path / "closed")
    same(adapters_in(tmp_path / "closed"), state)


def test_the_best_adapters_are_in_place_at_the_end(tmp_path: Path) -> None:
    own, training = attached(
        tmp_path,
        (use("checkpoint", every=1),),
        learning_rate=1.0,  # the last are not the best
        max_steps=4,
        eval_strategy="steps",
        eval_steps=1,
        eval_dataset=rows(),
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    own.train()
    best = own.state.best_model_checkpoint
    assert not best.endswith("-4")
    same(adapters_in(best), training.state_dict()["model"])
    training.close()


@pytest.mark.parametrize("settings", CHANGING, ids=words)
def test_a_model_that_is_saved_by_itself_is_a_plain_one(settings: tuple[MethodSetting, ...], tmp_path: Path) -> None:
    own, training = trained(settings)
    state = training.state_dict()["model"]
    own.save_pretrained(tmp_path / "whole")
    same(plain_in(tmp_path / "whole"), state)
    own.model.save_pretrained(tmp_path / "inside")  # without its head
    inside = transformers.AutoModel.from_pretrained(tmp_path / "inside").state_dict()
    same(inside, {name: state[f"model.{name}"] for name in inside})
    training.close()
    own.save_pretrained(tmp_path / "closed")
    same(plain_in(tmp_path / "closed"), state)


def test_a_copy_saves_its_own_weights(tmp_path: Path) -> None:
    own, training = trained((use("lora", rank=8), use("checkpoint", every=1)))
    average = copy.deepcopy(own)
    before = training.state_dict()["model"]
    training.step(batch(1))
    average.save_pretrained(tmp_path)
    same(plain_in(tmp_path), before)
    training.close()


def test_a_copy_of_a_part_saves_its_own_weights_and_copies_nothing_else(tmp_path: Path) -> None:
    own: Any = torch.nn.Module()
    own.inside = model()
    own.rest = NotCopied()
    policy = policy_of(use("lora", rank=8), use("checkpoint", every=1))
    training = apply_policy(
        policy, own, device="cpu", build_optimizer=adamw, compute_loss=lambda own, batch: own.inside(**batch).loss
    )
    training.step(batch(0))
    average = copy.deepcopy(own.inside)
    before = training.state_dict()["model"]
    training.step(batch(1))
    average.save_pretrained(tmp_path / "before")
    same(plain_in(tmp_path / "before"), inside(before))
    own.inside.save_pretrained(tmp_path / "after")
    same(plain_in(tmp_path / "after"), inside(training.state_dict()["model"]))
    training.close()


class NotCopied:
    """As a trainer that a module holds."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise AssertionError("it is copied")


def inside(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix("inside."): value for name, value in state.items()}


def test_a_model_that_was_pickled_saves_its_own_weights(tmp_path: Path) -> None:
    own, training = trained((use("lora", rank=8),))
    training.close()
    read = pickle.loads(pickle.dumps(own))
    read.save_pretrained(tmp_path)
    same(plain_in(tmp_path), training.state_dict()["model"])


def test_a_state_that_is_given_is_the_one_that_is_saved(tmp_path: Path) -> None:
    own, training = trained((use("lora", rank=8),))
    given = {name: torch.zeros_like(value) for name, value in training.state_dict()["model"].items()}
    own.save_pretrained(tmp_path, state_dict=dict(given))
    same(plain_in(tmp_path), given)
    training.close()


def test_a_model_of_which_each_process_has_a_part_is_saved_by_all(tmp_path: Path) -> None:
    own, training = trained((use("checkpoint", every=1),))
    own.save_pretrained._divided = True
    with pytest.raises(PolicyError, match=r"saved with a state that all of them .* state_dict=state\) in the first"):
        own.save_pretrained(tmp_path)
    training.close()
