"""trl's SFTTrainer trains by a policy as the wrapper does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from advisor.errors import MethodRefusedError, PolicyError
from advisor.integrations import hf, support
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import settings_of
from tests.integrations.small import (
    STEPS,
    TOKENS,
    VOCABULARY,
    Seeds,
    adamw,
    by_wrapper,
    error,
    model,
    policy_of,
    rows,
    state_of,
)
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import uncompiled_optimizers

trl = pytest.importorskip("trl")
datasets = pytest.importorskip("datasets")
tokenizers = pytest.importorskip("tokenizers")

NOT_HERE = ("channels_last", "expandable_segments")
OWN_HEAD = {"precision": 0.1, "fp8_activations": 1e-3, "muon": 1e-2, "randomized_linear": 1.0}
"""Methods that round logits or draw for their layer, which the trainer computes in a way of its own -> how far off."""
METHODS = [
    method
    for method in CATALOGUE
    if not (method.axis or method.builds_on or method.name in NOT_HERE or support.why_refused(method, support.SFT))
]


def sft_trainer(folder: Path, **changed: Any) -> Any:
    words = {f"w{number}": number for number in range(VOCABULARY)}
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0")),
        pad_token="w0",
        bos_token="w1",
        eos_token="w2",
        unk_token="w0",
    )
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": STEPS,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "bf16": False,
        "activation_checkpointing": False,
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "remove_unused_columns": False,
    }
    return trl.SFTTrainer(
        model=model(),
        args=trl.SFTConfig(**(usual | changed)),
        train_dataset=datasets.Dataset.from_list([{n: part.tolist() for n, part in row.items()} for row in rows()]),
        processing_class=tokenizer,
        data_collator=_collated,
        callbacks=[Seeds()],
    )


def _collated(samples: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
    parts = {name: torch.tensor([sample[name] for sample in samples]) for name in ("input_ids", "labels")}
    return {**parts, "attention_mask": torch.ones(len(samples), TOKENS, dtype=torch.long)}


@pytest.mark.parametrize("name", [method.name for method in METHODS])
@pytest.mark.filterwarnings("ignore")
def test_two_steps_equal_those_of_the_wrapper(name: str, tmp_path: Path) -> None:
    method = get_method(name)
    policy = policy_of(settings_of(method)[0], accumulation_steps=2 if method.accumulates else 1)
    max_grad_norm = 1.0 if method.accumulates else 0.0
    with quick_compiler(), uncompiled_optimizers():
        expected = by_wrapper(policy, max_grad_norm)
        own = sft_trainer(tmp_path, max_grad_norm=max_grad_norm)
        torch.manual_seed(5)
        training = hf.attach(own, policy, build_optimizer=adamw)
        own.train()
        assert error(state_of(training), expected) < OWN_HEAD.get(name, 1e-4)


@pytest.mark.filterwarnings("ignore")
def test_its_defaults_and_a_replaced_loss_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="set bf16=False, activation_checkpointing=False in SFTConfig"):
        hf.attach(sft_trainer(tmp_path, bf16=None, activation_checkpointing=None), policy_of())
    with pytest.raises(MethodRefusedError, match=r"cannot be used in trl\.SFTTrainer: it replaces the loss"):
        hf.attach(sft_trainer(tmp_path), policy_of(settings_of(get_method("chunked_cross_entropy"))[0]))


@pytest.mark.filterwarnings("ignore")
def test_it_resumes_and_saves_a_plain_model(tmp_path: Path) -> None:
    states = []
    for start in (None, str(tmp_path / "checkpoint-1")):
        own = sft_trainer(tmp_path, save_strategy="steps", save_steps=1)
        torch.manual_seed(5)
        training = hf.attach(own, policy_of(settings_of(get_method("lora"))[0]), build_optimizer=adamw)
        own.train(resume_from_checkpoint=start)
        states.append(state_of(training))
    assert error(states[1], states[0]) < 1e-6
    saved = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-2")
    assert error(dict(saved.state_dict()), states[1]) < 1e-6
