"""A Trainer is tuned as it stands: its model, data, optimizer and loss reach the trials."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

import advisor
from advisor.errors import OptionError, WorkloadError
from advisor.integrations import hf
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.trainers import tune_trainer as tuning
from advisor.trainers.longest_samples import longest_samples, sample_size
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.source import resolve_source
from tests.integrations.lightning_modules import Data, Language, Module, tokens
from tests.integrations.trainers import (
    LENGTHS,
    Doubling,
    SFTTrainer,
    Streamed,
    Texts,
    padded,
    patch_forward,
    trainer_of,
)
from tests.methods.tiny import gpt2

QUIET: dict[str, Any] = {"logger": False, "enable_checkpointing": False}


class Asked:
    """What ``advisor.tune`` was asked for."""

    def __init__(self) -> None:
        self.model = Path()
        self.options: dict[str, Any] = {}

    def __call__(self, model: Path, **options: Any) -> None:
        self.model, self.options = model, options

    def workload(self) -> Workload:
        return load_workload(resolve_source(self.model))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    monkeypatch.chdir(tmp_path)
    asked = Asked()
    monkeypatch.setattr(tuning, "tune", asked)
    return asked


def test_the_model_goes_over_with_its_weights_and_stays_as_it_was(asked: Asked, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    advisor.tune_trainer(trainer)
    workload = asked.workload()
    first, second = workload.build_model(), workload.build_model()
    for model in (first, second):
        assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in model.state_dict().items())
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert next(second.parameters()).any(), "each has its own"
    assert trainer.optimizer is None
    assert (workload.batch_size, workload.max_grad_norm) == (4, 1.0)
    assert asked.options["device"] == "cpu"
    assert "global_batch" not in asked.options


def test_each_batch_has_the_longest_sample_without_the_columns_that_no_model_takes(
    asked: Asked, tmp_path: Path
) -> None:
    advisor.tune_trainer(trainer_of(tmp_path))
    make_batch = asked.workload().make_batch
    for samples in (1, 3, 20):
        batch = make_batch(samples)
        assert batch["input_ids"].shape == (samples, max(LENGTHS))
        assert set(batch) == {"input_ids", "labels"}


def test_the_optimizer_has_the_class_the_settings_and_the_groups_of_the_trainers(asked: Asked, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, optim="adamw_torch", adam_beta2=0.95)
    advisor.tune_trainer(trainer)
    own = trainer.create_optimizer()
    workload = asked.workload()
    assert workload.build_optimizer is not None
    model = workload.build_model()
    made = workload.build_optimizer(list(model.parameters()))
    assert type(made) is type(own)
    assert made.defaults == own.defaults

    def groups(optimizer: torch.optim.Optimizer) -> list[tuple[int, Any]]:
        return [(len(group["params"]), group["weight_decay"]) for group in optimizer.param_groups]

    assert groups(made) == groups(own)
    assert {decay for _, decay in groups(own)} == {0.0, 0.1}
    alone = workload.build_optimizer([next(model.parameters())])
    assert groups(alone) == [(1, 0.1)], "a method has left one parameter"


def test_a_given_optimizer_is_read_as_it_was_before_its_schedule(asked: Asked, tmp_path: Path) -> None:
    model = gpt2(2, 0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    trainer = transformers.Trainer(
        model=model,
        args=trainer_of(tmp_path).args,
        train_dataset=Texts(),
        data_collator=padded,
        optimizers=(optimizer, None),
    )
    advisor.tune_trainer(trainer)
    workload = asked.workload()
    assert workload.build_optimizer is not None
    made = workload.build_optimizer(workload.build_model().parameters())
    group = made.param_groups[0]
    assert (type(made), group["lr"], group["momentum"]) == (torch.optim.SGD, 0.5, 0.9)


@pytest.mark.parametrize(("kind", "options"), [(transformers.Trainer, {"label_smoothing_factor": 0.1}), (Doubling, {})])
def test_the_loss_is_the_trainers_own(
    kind: type[transformers.Trainer], options: dict[str, Any], asked: Asked, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, kind, **options)
    advisor.tune_trainer(trainer)
    workload = asked.workload()
    assert workload.compute_loss is not None
    model, batch = workload.build_model().eval(), workload.make_batch(4)
    found = workload.compute_loss(model, batch).item()
    assert found == pytest.approx(trainer.compute_loss(trainer.model.eval(), dict(batch)).item())
    assert found != pytest.approx(model(**batch).loss.item())


class Counting(transformers.Trainer):
    """Divides a sum by the number of targets, which it must be given."""

    def compute_loss(  # type: ignore[override]
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any, return_outputs: bool = False
    ) -> torch.Tensor:
        return model(**inputs).loss * 10 / num_items_in_batch


def test_a_loss_that_needs_the_number_of_targets_is_given_those_of_the_batch(asked: Asked, tmp_path: Path) -> None:
    advisor.tune_trainer(trainer_of(tmp_path, Counting))
    workload = asked.workload()
    assert workload.compute_loss is not None
    model, batch = workload.build_model().eval(), workload.make_batch(4)
    targets = int((batch["labels"] != -100).sum())
    assert workload.compute_loss(model, batch).item() == pytest.approx(model(**batch).loss.item() * 10 / targets)


def test_a_usual_loss_is_the_models_own_which_can_be_chunked(asked: Asked, tmp_path: Path) -> None:
    advisor.tune_trainer(trainer_of(tmp_path))
    assert asked.workload().compute_loss is None


def test_a_loss_that_trl_computes_in_chunks_is_computed_in_chunks(asked: Asked, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, SFTTrainer)
    advisor.tune_trainer(trainer)
    workload = asked.workload()
    assert workload.compute_loss is not None
    model, batch = workload.build_model().eval(), workload.make_batch(4)
    assert workload.compute_loss(model, batch).item() == pytest.approx(model(**batch).loss.item())
    assert "forward" not in vars(model)
    assert "forward" in vars(trainer.model)


def test_a_model_with_a_forward_that_cannot_be_imported_is_refused(asked: Asked, tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path)
    patch_forward(trainer.model)
    with pytest.raises(WorkloadError, match=r"the model is not: .*patch_forward\.<locals>\.forward is defined inside"):
        advisor.tune_trainer(trainer)
    assert asked.options == {}


def test_what_stands_below_the_guard_of_a_program_is_told_to_be_moved(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = "from tests.integrations.trainers import padded\n\ndef collate(samples):\n    return padded(samples)\n"
    program = tmp_path / "train.py"
    program.write_text(f"if __name__ == '__main__':\n    {below.replace(chr(10), chr(10) + '    ')}")
    main = types.ModuleType("__main__")
    main.__file__ = str(program)
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(below, vars(main))
    advisor.tune_trainer(trainer_of(tmp_path, data_collator=main.collate))
    with pytest.raises(
        WorkloadError, match=r"collate is not defined when .*train\.py is imported\. Define it at the top"
    ):
        asked.workload()


def test_what_the_trainer_does_itself_is_the_baseline(asked: Asked, tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, bf16=True, gradient_accumulation_steps=2, activation_checkpointing=True, optim="adamw_torch"
    )
    advisor.tune_trainer(trainer)
    own = load_policy_file(asked.options["baseline"]).policy
    assert own.label == "checkpoint(every=1) + precision(dtype=bf16)"
    assert (own.micro_batch, own.accumulation_steps) == (4, 2)
    module = Language()
    advisor.tune_lightning(module, Data(tokens(4), 2), trainer=Trainer(accelerator="cpu", devices=1, **QUIET))
    assert "baseline" not in asked.options
    half = Trainer(accelerator="cpu", devices=1, precision="bf16-mixed", gradient_clip_val=0.5, **QUIET)
    advisor.tune_lightning(module, Data(tokens(4), 2), trainer=half)
    own = load_policy_file(asked.options["baseline"]).policy
    assert (own.label, own.micro_batch) == ("precision(dtype=bf16)", 2)
    assert asked.workload().max_grad_norm == 0.5


class Notes:
    """A progress that keeps what is noted."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def test_a_fused_step_of_the_trainer_is_measured_as_the_method_that_attach_makes_of_it(
    asked: Asked, tmp_path: Path
) -> None:
    """The trap: every policy was timed with it, and attached without it."""
    trainer = trainer_of(tmp_path)
    assert trainer.args.optim == "adamw_torch_fused", "transformers' own default"
    advisor.tune_trainer(trainer)
    assert load_policy_file(asked.options["baseline"]).policy.methods == (use("fused_optimizer"),)
    workload = asked.workload()
    assert workload.build_optimizer is not None
    optimizer = workload.build_optimizer(list(workload.build_model().parameters()))
    assert not any(group["fused"] for group in optimizer.param_groups)


@pytest.mark.parametrize(
    ("optim", "method"),
    [
        ("adamw_bnb_8bit", use("adam_8bit")),
        ("adamw_8bit", use("adam_8bit")),
        ("adamw_torch_8bit", use("adam_low_bit", state="8bit")),
        ("adamw_torch_4bit", use("adam_low_bit", state="4bit")),
    ],
)
def test_moments_of_few_bits_are_measured_as_the_method_that_attach_makes_of_them(
    optim: str, method: MethodSetting, asked: Asked, tmp_path: Path
) -> None:
    """The trap: attach refuses these names, since the policy decides, and the policy did not have the method."""
    trainer = trainer_of(tmp_path, optim=optim, learning_rate=0.25)
    advisor.tune_trainer(trainer)
    assert trainer.args.optim == optim
    assert load_policy_file(asked.options["baseline"]).policy.methods == (method,)
    workload = asked.workload()
    assert workload.build_optimizer is not None
    optimizer = workload.build_optimizer(list(workload.build_model().parameters()))
    assert type(optimizer) is torch.optim.AdamW
    assert {group["lr"] for group in optimizer.param_groups} == {0.25}


def test_what_the_trainer_does_is_measured_on_the_devices_that_are_asked_for(asked: Asked, tmp_path: Path) -> None:
    advisor.tune_trainer(trainer_of(tmp_path, bf16=True, optim="adamw_torch"), gpus="2")
    own = load_policy_file(asked.options["baseline"]).policy
    assert own.gpu_count == 2
    assert [one.name for one in own.methods] == ["ddp", "precision"]


def test_a_parameter_that_the_optimizer_does_not_train_is_in_none_of_its_groups(asked: Asked, tmp_path: Path) -> None:
    """The trap: a backbone that was left out, not frozen, had moments in every trial."""
    trainer = trainer_of(tmp_path)
    head = list(trainer.model.parameters())[-1]
    trainer.optimizer = torch.optim.AdamW([head], lr=0.5)
    advisor.tune_trainer(trainer)
    workload = asked.workload()
    assert workload.build_optimizer is not None
    parameters = list(workload.build_model().parameters())
    (group,) = workload.build_optimizer(parameters).param_groups
    assert [one is parameters[-1] for one in group["params"]] == [True]


@pytest.mark.parametrize(("variable", "scope"), [("false", "model"), ("true", "blocks")])
def test_a_compiled_trainer_is_the_baseline(
    variable: str, scope: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION", variable)
    advisor.tune_trainer(trainer_of(tmp_path, torch_compile=True, optim="adamw_torch"))
    assert load_policy_file(asked.options["baseline"]).policy.methods == (use("compile", scope=scope),)


def test_what_no_method_says_of_a_trainer_is_named(asked: Asked, tmp_path: Path) -> None:
    notes = Notes()
    arguments = {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"offload": True}}
    advisor.tune_trainer(trainer_of(tmp_path, use_liger_kernel=True, **arguments), progress=notes)
    assert notes.texts[1:] == [
        "use_liger_kernel=True is not measured",
        "activation_checkpointing_kwargs.offload=True is not measured",
    ]


def test_a_trainer_that_has_trained_is_taken_as_it_is_and_one_with_a_policy_refused(
    asked: Asked, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, max_steps=1, learning_rate=1e-2, save_strategy="no")
    trainer.train()
    advisor.tune_trainer(trainer)
    model = asked.workload().build_model()
    assert all(torch.equal(value, trainer.model.state_dict()[name]) for name, value in model.state_dict().items())
    trainer = trainer_of(tmp_path)
    training = hf.attach(trainer, Policy(micro_batch=2))
    with pytest.raises(WorkloadError, match=r"must have no policy yet, .* before hf\.attach"):
        advisor.tune_trainer(trainer)
    training.close()


def test_equal_trainers_are_one_study_and_another_structure_is_another(asked: Asked, tmp_path: Path) -> None:
    found = []
    for model in (gpt2(2, 0.0), gpt2(2, 0.0).apply(_moved), gpt2(3, 0.0)):
        advisor.tune_trainer(trainer_of(tmp_path, model=model))
        found.append(resolve_source(asked.model).fingerprint)
    assert found[0] == found[1] != found[2]


def _moved(module: torch.nn.Module) -> None:
    for parameter in module.parameters(recurse=False):
        parameter.data += 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"train_dataset": None}, r"its train_dataset is None\. Give it to the constructor"),
        ({"train_dataset": Streamed(), "max_steps": 1}, "it is Streamed, which is read from beginning to end"),
        ({"train_dataset": Texts(())}, "at least one sample, but it is empty"),
        ({"data_collator": lambda samples: padded(samples)}, r"must be picklable.*'collate' is not.*top level"),
    ],
)
def test_what_cannot_be_tuned_is_said_before_anything_is_measured(
    options: dict[str, Any], words: str, asked: Asked, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, **options)
    with pytest.raises(WorkloadError, match=re.compile(words, re.DOTALL)):
        advisor.tune_trainer(trainer)
    assert asked.options == {}


def test_a_model_without_weights_is_refused(asked: Asked, tmp_path: Path) -> None:
    trainer, module = trainer_of(tmp_path), Language()
    trainer.model = gpt2(2, 0.0).to("meta")
    with pytest.raises(WorkloadError, match=r"is on the meta device\. Build the model on the CPU"):
        advisor.tune_trainer(trainer)
    with pytest.raises(WorkloadError, match="The model of Language must have its weights"):
        advisor.tune_lightning(module.to("meta"), Data(tokens(4)))
    assert asked.options == {}


def test_what_is_no_trainer_is_refused_and_so_are_functions(asked: Asked, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"takes a transformers\.Trainer, but got Language"):
        advisor.tune_trainer(Language())
    with pytest.raises(OptionError, match=r"takes a lightning\.pytorch\.LightningModule, but got str"):
        advisor.tune_lightning("model")
    with pytest.raises(OptionError, match="takes make_batch from what it is given"):
        advisor.tune_trainer(trainer_of(tmp_path), make_batch=print)
    assert asked.options == {}


def test_a_lightning_module_is_tuned_by_its_training_step(asked: Asked) -> None:
    module = Language()
    advisor.tune_lightning(module, Data(tokens(8), batch_size=2))
    workload = asked.workload()
    model, batch = workload.build_model(), workload.make_batch(3)
    assert workload.batch_size == 2
    assert workload.compute_loss is not None
    assert workload.build_optimizer is not None
    assert workload.compute_loss(model, batch).item() == pytest.approx(module.model(**batch).loss.item())
    assert workload.build_optimizer(model.parameters()).param_groups[0]["lr"] == 1e-3


class Asking(Language):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1 / self.trainer.max_steps)


class ByHand(Language):
    automatic_optimization = False


@pytest.mark.parametrize(
    ("module", "data", "words"),
    [
        (Language, None, "must give its training data without a Trainer"),
        (Asking, Data(tokens(4)), "must work without a Trainer"),
        (ByHand, Data(tokens(4)), "automatic_optimization=False"),
    ],
)
def test_a_module_that_cannot_be_tuned_is_refused(module: type[Module], data: Any, words: str, asked: Asked) -> None:
    with pytest.raises(WorkloadError, match=words):
        advisor.tune_lightning(module(), data)
    assert asked.options == {}


class Without(Language):
    def configure_optimizers(self) -> Any:
        return None


def unbatched() -> Any:
    return torch.utils.data.DataLoader(tokens(4), batch_size=None)


@pytest.mark.parametrize(
    ("module", "data", "kind", "words"),
    [
        (Without, Data(tokens(4)), WorkloadError, "configure_optimizers must return an optimizer to be tuned"),
        (Language, [1, 2], OptionError, r"takes a data module or the DataLoader .* but got list\. Give"),
        (Language, Trainer(**QUIET, accelerator="cpu"), OptionError, r"but got Trainer\. Give .* trainer=trainer"),
        (Language, unbatched(), WorkloadError, r"must make batches of samples, .* batch_size=None\. Give"),
    ],
)
def test_data_and_optimizers_that_are_none_are_refused(
    module: type[Module], data: Any, kind: type[Exception], words: str, asked: Asked
) -> None:
    with pytest.raises(kind, match=words):
        advisor.tune_lightning(module(), data)
    assert asked.options == {}


@pytest.mark.parametrize(
    "sampler", [torch.utils.data.BatchSampler(range(8), 4, drop_last=False), [[0, 1, 2, 3], [4, 5]]]
)
def test_the_batch_size_is_that_of_the_loaders_own_sampler(sampler: Any, asked: Asked) -> None:
    advisor.tune_lightning(Language(), torch.utils.data.DataLoader(tokens(8), batch_sampler=sampler))
    assert asked.workload().batch_size == 4


def test_what_no_method_says_of_lightnings_trainer_is_named(asked: Asked) -> None:
    notes = Notes()
    options: dict[str, Any] = {
        "precision": "bf16-true",
        "gradient_clip_val": 0.5,
        "gradient_clip_algorithm": "value",
        "callbacks": [GradientAccumulationScheduler({0: 4})],
    }
    trainer = Trainer(**QUIET, accelerator="cpu", **options)
    advisor.tune_lightning(Language(), Data(tokens(8), batch_size=2), trainer=trainer, progress=notes)
    assert notes.texts[1:] == [
        "precision='bf16-true' is not measured",
        "gradient_clip_algorithm='value' is not measured",
        "GradientAccumulationScheduler is not measured",
    ]
    assert asked.workload().max_grad_norm is None


def test_the_longest_samples_are_found_among_all_or_among_many() -> None:
    found = longest_samples(Texts(), 3)
    assert [len(sample["input_ids"]) for sample in found.samples] == [16, 12, 9]
    assert (found.looked_at, found.total) == (8, 8)
    some = longest_samples(Texts(tuple(range(1, 1001))), 2, looked_at=100)
    assert (some.looked_at, some.total, len(some.samples)) == (100, 1000, 2)
    assert some.samples == longest_samples(Texts(tuple(range(1, 1001))), 2, looked_at=100).samples
    assert longest_samples(Texts(), 3, seconds=0).looked_at == 1


def test_a_sample_is_as_long_as_its_parts_together() -> None:
    pair = {"image": torch.zeros(3, 4), "text": [1, 2, 3], "words": ["ab", "c"], "label": 1}
    assert sample_size(pair) == 12 + 3 + 3 + 1
    assert sample_size(([1.0], torch.zeros(2).numpy())) == 3
