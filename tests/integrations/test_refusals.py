"""What does not go together is refused before anything is trained: the rule, the value and the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import transformers
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, GradScalerKwargs

from advisor.errors import MethodRefusedError, PolicyError
from advisor.hardware.mesh import Mesh, MeshAxis
from advisor.integrations import accelerate, hf, shared, support
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from tests.integrations.small import SAMPLES, adamw, arguments, batch, model, policy_of, rows, trainer

PLAIN = policy_of()


@pytest.fixture(autouse=True)
def accelerators_begin_anew() -> Iterator[None]:
    """Those of one process share what the first was made with."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"bf16": True}, "bf16=True.*set bf16=False in TrainingArguments"),
        ({"activation_checkpointing": True}, "set activation_checkpointing=False"),
        ({"torch_compile": True}, "set torch_compile=False"),
        ({"auto_find_batch_size": True}, "set auto_find_batch_size=False"),
        ({"optim": "adafactor"}, "set optim='adamw_torch'.*To train with that optimizer, pass build_optimizer"),
        ({"optim": "adamw_bnb_8bit"}, "set optim='adamw_torch'.* is applied by momadvise.$"),
        ({"bf16": True, "activation_checkpointing": True}, "set bf16=False, activation_checkpointing=False"),
    ],
    ids=str,
)
def test_a_trainer_leaves_to_the_policy_what_that_decides(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=words):
        hf.attach(trainer(tmp_path, layers=1, **changed), PLAIN)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("per_device_train_batch_size", 4, "must stay 2, .* was set to 4 .*args.per_device_train_batch_size = 2 again"),
        ("gradient_accumulation_steps", 1, "must stay 2, .* was set to 1 .*args.gradient_accumulation_steps = 2 again"),
        ("activation_checkpointing", True, "set activation_checkpointing=False in TrainingArguments"),
    ],
)
def test_arguments_that_are_changed_after_attach_are_refused_before_a_step_is_made(
    name: str, value: Any, words: str, tmp_path: Path
) -> None:
    own = trainer(tmp_path, layers=1)
    hf.attach(own, PLAIN)
    setattr(own.args, name, value)
    with pytest.raises(PolicyError, match=words):
        own.train()
    assert own.state.global_step == 0


def replace_the_model(own: Any) -> None:
    own.model = model(1)


def replace_the_loss(own: Any) -> None:
    own.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.logits.mean()


def checkpoint(own: Any) -> None:
    own.model.activation_checkpointing_enable()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            replace_the_model,
            "keep its model, but trainer.model was replaced after attach; attach the policy to a trainer",
        ),
        (replace_the_loss, "keep its loss, but compute_loss_func .* changed after attach; set it before"),
        (checkpoint, "keep the policy's recomputation, .*leave activation_checkpointing_enable out"),
    ],
)
def test_another_model_or_loss_after_attach_is_refused(change: Any, words: str, tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    hf.attach(own, PLAIN)
    change(own)
    with pytest.raises(PolicyError, match=words):
        own.train()


class Loading(transformers.Trainer):
    """Has a loader of its own."""

    own_size = SAMPLES

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(rows(), batch_size=self.own_size, collate_fn=self.data_collator)


class Sampling(Loading):
    """Has batches that no number describes."""

    def get_train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(rows(), batch_sampler=[[0], [1, 2, 3, 4]], collate_fn=self.data_collator)


@pytest.mark.parametrize("size", [1, SAMPLES])
def test_a_loader_of_another_size_is_refused_and_one_of_the_policys_is_taken(size: int, tmp_path: Path) -> None:
    own = trainer(tmp_path, kind=Loading, layers=1)
    own.own_size = size
    hf.attach(own, PLAIN)
    with pytest.raises(PolicyError, match=f"The loader of Loading must give batches of micro_batch: 2 .* have {size}"):
        own.train()
    own.own_size = PLAIN.micro_batch
    own.train()
    assert own.state.global_step == 2


def test_a_batch_that_is_larger_than_the_policys_is_refused(tmp_path: Path) -> None:
    own = trainer(tmp_path, kind=Sampling, layers=1)
    hf.attach(own, PLAIN)
    with pytest.raises(PolicyError, match="but its batches have 4"):
        own.train()


def test_a_collator_may_make_several_rows_of_each_sample(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    usual = own.data_collator
    own.data_collator = lambda samples: usual([*samples, *samples])  # chosen and rejected
    hf.attach(own, PLAIN)
    own.train()
    assert own.state.global_step == 2


def test_an_accumulation_that_a_callback_changes_between_two_steps_is_refused(tmp_path: Path) -> None:
    class Grow(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
            args.gradient_accumulation_steps = 4

    own = trainer(tmp_path, layers=1)
    own.add_callback(Grow())
    hf.attach(own, PLAIN)
    with pytest.raises(PolicyError, match="gradient_accumulation_steps must stay 2"):
        own.train()
    assert own.state.global_step == 1


def test_a_trainer_with_an_optimizer_of_its_own_is_told_how_to_pass_it(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    own.optimizer = adamw(own.model.parameters())
    with pytest.raises(PolicyError, match=r"pass build_optimizer to attach"):
        hf.attach(own, PLAIN)


def test_a_model_that_checkpoints_already_is_refused(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    own.model.activation_checkpointing_enable()
    with pytest.raises(PolicyError, match=r"activation_checkpointing_disable"):
        hf.attach(own, PLAIN)


def test_a_trainer_that_divides_batches_among_processes_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = {"accelerator_config": {"split_batches": True}}
    hf.attach(trainer(tmp_path, layers=1, **split), PLAIN).close()
    own = trainer(tmp_path, layers=1, **split)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    with pytest.raises(PolicyError, match="split_batches=True, which divides each among them; leave it out"):
        hf.attach(own, PLAIN)


def test_a_policy_is_attached_once(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1)
    hf.attach(own, PLAIN)
    with pytest.raises(PolicyError, match=r"trained already"):
        hf.attach(own, PLAIN)


def test_what_is_no_trainer_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"transformers\.Trainer, but got Linear"):
        hf.attach(torch.nn.Linear(1, 1), PLAIN)


def test_a_damaged_policy_and_one_for_two_devices_are_refused(tmp_path: Path) -> None:
    damaged = tmp_path / "policy.yaml"
    damaged.write_text("schema: 1\npolicy: {micro_batch: no}\n")
    two = Policy(methods=(use("ddp", bucket_views=True, static_graph=False),), micro_batch=2, gpu_count=2)
    for loop in (in_trainer(tmp_path), in_loop):
        with pytest.raises(PolicyError, match=r"policy\.yaml"):
            loop(damaged)
        with pytest.raises(PolicyError, match=r"for 2 devices .* runs in 1 process; .*torchrun --nproc-per-node 2"):
            loop(two)


def in_trainer(folder: Path) -> Callable[[Any], object]:
    return lambda policy: hf.attach(trainer(folder, layers=1), policy)


def in_loop(policy: Any) -> object:
    return accelerate.prepare(model(1), policy, accelerator=Accelerator(cpu=True))


def test_an_unknown_version_is_refused_until_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared.importlib.metadata, "version", lambda library: "99.1.0")
    for loop in (in_trainer(tmp_path), in_loop):
        with pytest.raises(PolicyError, match=r"99\.1\.0 is installed.*untested=True"):
            loop(PLAIN)
    hf.attach(trainer(tmp_path, layers=1), PLAIN, untested=True).close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"accelerator": None}, r"got NoneType; pass accelerator=Accelerator\(\)"),
        ({"optimizer": None}, r"Pass build_optimizer=lambda parameters.* and use prepared\.optimizer"),
        ({"max_grad_norm": -1.0}, r"above 0, but got -1\.0\. Leave it out"),
        ({"build_optimizer": 1e-3}, r"a function .* but got a float\. Pass build_optimizer=lambda parameters"),
    ],
    ids=str,
)
def test_what_prepare_cannot_use_is_refused_with_what_to_pass(options: dict[str, Any], words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        accelerate.prepare(model(1), PLAIN, **({"accelerator": Accelerator(cpu=True)} | options))


@pytest.mark.parametrize("layer", ["down_proj", "q_proj"])  # the second is too small for those of the method
def test_a_model_with_adapters_of_its_own_gets_no_second_ones(layer: str) -> None:
    own = peft.inject_adapter_in_model(peft.LoraConfig(r=4, target_modules=[layer]), model(1))
    with pytest.raises(MethodRefusedError, match=r"has adapters already; leave the method out, or merge yours"):
        accelerate.prepare(own, policy_of(use("lora", rank=8)), accelerator=Accelerator(cpu=True))


@pytest.mark.parametrize("norm", [None, -1.0])
def test_a_trainer_that_clips_nothing_is_left_so(norm: float | None, tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1, max_steps=1, max_grad_norm=norm)
    hf.attach(own, PLAIN)
    own.train()
    assert own.state.global_step == 1


def test_an_accumulation_of_the_accelerator_that_the_policy_replaces_is_noted() -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=8)
    notes = accelerate.prepare(model(1), PLAIN, accelerator=accelerator).training.notes
    assert "gradient_accumulation_steps of the accelerator was 8 and is 2 now" in notes


def test_an_accelerator_with_mixed_precision_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"mixed_precision='bf16'.*set mixed_precision='no' in Accelerator"):
        accelerate.prepare(model(1), PLAIN, accelerator=Accelerator(cpu=True, mixed_precision="bf16"))


def test_options_of_accelerates_own_parts_are_refused() -> None:
    accelerator = Accelerator(cpu=True, kwargs_handlers=[GradScalerKwargs(init_scale=4.0)])
    with pytest.raises(
        PolicyError, match=r"kwargs_handlers='GradScalerKwargs'.*set kwargs_handlers=None in Accelerator"
    ):
        accelerate.prepare(model(1), PLAIN, accelerator=accelerator)


def test_a_method_that_needs_the_whole_gradient_goes_with_neither_accumulation_nor_clipping(tmp_path: Path) -> None:
    early = use("optimizer_in_backward")
    with pytest.raises(MethodRefusedError, match=r"accumulation_steps: 2"):
        hf.attach(trainer(tmp_path, layers=1), policy_of(early))
    with pytest.raises(MethodRefusedError, match=r"max_grad_norm=1.0"):
        hf.attach(trainer(tmp_path, layers=1), policy_of(early, accumulation_steps=1))
    hf.attach(trainer(tmp_path, layers=1), policy_of(early, accumulation_steps=1), max_grad_norm=0.0).close()


def test_methods_that_divide_the_model_are_refused_in_every_trainer(tmp_path: Path) -> None:
    for kind in support.TRAINERS:
        refused = {method.name for method in CATALOGUE if support.why_refused(method, kind)}
        assert {method.name for method in CATALOGUE if method.axis not in (None, MeshAxis.DATA)} <= refused
    divided = Policy(methods=(use("pipeline", **first("pipeline")),), micro_batch=2, gpu_count=2, mesh=Mesh(pipeline=2))
    for loop in (in_trainer(tmp_path), in_loop):
        with pytest.raises(MethodRefusedError, match=r"must be given the same samples.*wrapper.py"):
            loop(divided)


def first(name: str) -> dict[str, Any]:
    method = next(one for one in CATALOGUE if one.name == name)
    return {parameter.name: parameter.choices[0] for parameter in method.parameters}


class OwnLoss(transformers.Trainer):
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **rest: Any) -> Any:
        outputs = model(**inputs)
        return (2 * outputs.loss, outputs) if return_outputs else 2 * outputs.loss


def test_a_loss_of_the_trainer_is_kept_and_one_that_would_replace_it_refused(tmp_path: Path) -> None:
    with pytest.raises(MethodRefusedError, match=r"chunked.* cannot be used in OwnLoss: it replaces the loss"):
        hf.attach(trainer(tmp_path, layers=1, kind=OwnLoss), policy_of(use("chunked_cross_entropy", chunks=8)))
    losses = []
    for kind in (transformers.Trainer, OwnLoss):
        own = trainer(tmp_path, layers=1, kind=kind, max_steps=1)
        hf.attach(own, policy_of(use("precision", dtype="bf16")))
        losses.append(own.train().training_loss)
    assert losses[1] == pytest.approx(2 * losses[0], rel=1e-6)


class StepLoss(OwnLoss):
    loss_is_scaled_for_ga = True


def test_a_loss_that_the_trainer_divides_by_the_targets_of_a_step_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"mean loss of one micro-batch.*training\.step"):
        hf.attach(trainer(tmp_path, layers=1, kind=StepLoss), PLAIN)


def test_a_trainer_that_builds_its_model_anew_is_refused(tmp_path: Path) -> None:
    own = transformers.Trainer(model_init=lambda: model(1), args=arguments(tmp_path), train_dataset=rows())
    with pytest.raises(PolicyError, match="pass model=model_init"):
        hf.attach(own, PLAIN)


def test_a_step_of_padding_alone_in_one_micro_batch_is_finite(tmp_path: Path) -> None:
    own = trainer(tmp_path, layers=1, max_steps=1)
    for row in own.train_dataset[:2]:
        row["labels"][:] = -100
    training = hf.attach(own, policy_of())
    assert 0 < own.train().training_loss < 10
    assert all(torch.isfinite(parameter).all() for parameter in training.model.parameters())


def test_a_loader_with_larger_batches_than_the_policy_is_refused() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), PLAIN, accelerator=accelerator)
    with pytest.raises(PolicyError, match=f"at most micro_batch: 2 samples, but one has {SAMPLES}"):
        next(prepared.micro_batches([batch(0)]))


def test_a_loader_whose_first_batch_is_smaller_than_the_policys_is_refused() -> None:
    policy = Policy(micro_batch=SAMPLES, accumulation_steps=2)
    prepared = accelerate.prepare(model(1), policy, accelerator=Accelerator(cpu=True))
    small = {name: value[: SAMPLES // 2] for name, value in batch(0).items()}
    with pytest.raises(PolicyError, match=f"of which the last may have fewer, but the first has {SAMPLES // 2}"):
        next(prepared.micro_batches([small, batch(0)]))
    assert len(list(prepared.micro_batches([batch(0), small]))) == 2


def test_without_accumulation_only_a_batch_that_stands_alone_may_be_smaller() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), Policy(micro_batch=SAMPLES), accelerator=accelerator)
    small = {name: value[: SAMPLES // 2] for name, value in batch(0).items()}
    assert len(list(prepared.micro_batches([small]))) == 1
    with pytest.raises(PolicyError, match=f"the first has {SAMPLES // 2}; make it with batch_size={SAMPLES}"):
        list(prepared.micro_batches([small, small]))


def test_a_loader_whose_batches_are_split_among_processes_has_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split_batches=True))
    prepared = accelerate.prepare(model(1), Policy(micro_batch=SAMPLES), accelerator=accelerator)
    monkeypatch.setattr(Accelerator, "num_processes", 2)
    small = {name: value[: SAMPLES // 2] for name, value in batch(0).items()}
    with pytest.raises(PolicyError, match=rf"batch_size={2 * SAMPLES}, of which .* 2 processes .*split_batches=True"):
        list(prepared.micro_batches([small, small]))


def change(accelerator: Accelerator) -> None:
    accelerator.gradient_accumulation_steps = 4


def make_another(accelerator: Accelerator) -> None:
    Accelerator(cpu=True, gradient_accumulation_steps=4)


@pytest.mark.parametrize("how", [change, make_another])
def test_an_accelerators_accumulation_that_is_changed_after_prepare_is_refused(
    how: Callable[[Accelerator], None],
) -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), PLAIN, accelerator=accelerator)
    how(accelerator)
    small = {name: value[: PLAIN.micro_batch] for name, value in batch(0).items()}
    with pytest.raises(PolicyError, match=r"must stay 2, .* was set to 4 .*gradient_accumulation_steps = 2 again"):
        prepared.forward(small)


def loss_of_one_micro_batch(**options: Any) -> tuple[Accelerator, accelerate.Prepared]:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), PLAIN, accelerator=accelerator, build_optimizer=adamw, **options)
    accelerator.backward(prepared.forward({name: part[:2] for name, part in batch(0).items()}))
    return accelerator, prepared


def test_two_norms_to_clip_to_are_refused_and_one_that_is_said_twice_clips_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accelerator, prepared = loss_of_one_micro_batch(max_grad_norm=0.5)
    parameters = prepared.model.parameters()
    with pytest.raises(PolicyError, match=r"max_grad_norm=0\.5 and the loop clips to 1\. Leave out max_grad_norm"):
        accelerator.clip_grad_norm_(parameters, 1.0)
    clip, norms = prepared.training.clip_grad_norm, []
    monkeypatch.setattr(prepared.training, "clip_grad_norm", lambda norm: norms.append(norm) or clip(norm))
    accelerator.clip_grad_norm_(parameters, 0.5)
    prepared.optimizer.step()
    accelerator.backward(prepared.forward({name: part[:2] for name, part in batch(0).items()}))
    accelerator.clip_grad_norm_(parameters, float("inf"))  # measured only
    prepared.optimizer.step()
    assert norms == [0.5, float("inf"), 0.5]


def test_gradients_of_a_part_of_a_step_are_not_clipped() -> None:
    accelerator, prepared = loss_of_one_micro_batch()
    accelerator.gradient_state._set_sync_gradients(False)
    with pytest.raises(MethodRefusedError, match=r"micro-batches of this step follow; clip inside of `if accelerator"):
        accelerator.clip_grad_norm_(prepared.model.parameters(), 1.0)


def test_clipping_by_value_and_new_groups_are_refused() -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(1), PLAIN, accelerator=accelerator)
    with pytest.raises(MethodRefusedError, match=r"clip_grad_norm_"):
        accelerator.clip_grad_value_(prepared.model.parameters(), 1.0)
    with pytest.raises(MethodRefusedError, match=r"unfreeze"):
        prepared.optimizer.add_param_group({"params": []})


def test_each_outcome_has_a_reason_or_works() -> None:
    outcomes = support.outcomes()
    assert len(outcomes) == len(CATALOGUE) * len(support.TRAINERS)
    assert all(reason == "" or "; " in reason for reason in outcomes.values()), "a reason and a fix"


def test_a_loss_that_is_not_scaled_is_refused() -> None:
    policy = policy_of(use("precision", dtype="fp16"), accumulation_steps=1)
    prepared = accelerate.prepare(model(1), policy, accelerator=Accelerator(cpu=True), build_optimizer=adamw)
    prepared.forward(batch(0)).backward()  # type: ignore[no-untyped-call]
    with pytest.raises(MethodRefusedError, match=r"call accelerator\.backward\(loss\), not loss\.backward\(\)"):
        prepared.optimizer.step()
