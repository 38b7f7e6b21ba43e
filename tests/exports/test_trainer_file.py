"""The user's own configuration of a trainer is read as a policy; what no method says is said in words."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import advisor
from advisor.errors import OptionError
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainer_file import TrainerFile, read_trainer_file
from advisor.exports.trainers import get_target
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import PolicyFile, write_policy_file
from advisor.policy.fingerprints import Fingerprints
from advisor.policy.policy import Policy
from advisor.session.request import TuneRequest
from advisor.workload.workload import Stated, WorkloadKind
from tests.policy.test_file import EVIDENCE

AXOLOTL: dict[str, Any] = {
    "base_model": "org/tiny-llama",
    "datasets": [{"path": "org/data", "type": "alpaca"}],
    "sequence_len": 64,
    "sample_packing": True,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "optimizer": "adamw_torch",
    "bf16": "auto",
    "gradient_checkpointing": True,
    "num_epochs": 1,
}
LLAMAFACTORY: dict[str, Any] = {
    "model_name_or_path": "org/tiny-llama",
    "stage": "sft",
    "finetuning_type": "full",
    "cutoff_len": 128,
    "packing": True,
    "per_device_train_batch_size": 3,
    "optim": "adafactor",
    "fp16": True,
}
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 16,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 0.5,
    "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
    "zero_optimization": {"stage": 1},
}
ACCELERATE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "FSDP",
    "num_processes": 4,
    "mixed_precision": "bf16",
    "fsdp_config": {"fsdp_version": 2, "fsdp_activation_checkpointing": True, "fsdp_reshard_after_forward": True},
}


def read(folder: Path, content: Any, name: str = "settings.yaml", **asked: Any) -> TrainerFile:
    path = folder / name
    path.write_text(json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content))
    return read_trainer_file(path, **asked)


def policy_of(file: TrainerFile) -> Policy:
    return file.baseline.policy


def notes_of(file: TrainerFile) -> str:
    return "\n".join(file.baseline.notes)


def test_axolotl_says_model_rows_batch_format_and_recomputation(tmp_path: Path) -> None:
    file = read(tmp_path, AXOLOTL)
    assert policy_of(file) == Policy(
        methods=(use("checkpoint", every=1), use("precision", dtype="bf16")), micro_batch=2, accumulation_steps=4
    )
    assert (file.model, file.stated) == ("hf:org/tiny-llama", Stated(batch_size=2, tokens=64, max_grad_norm=1.0))
    assert file.baseline.origin.endswith("settings.yaml (an axolotl configuration)")


def test_llamafactory_recomputes_and_clips_although_its_file_does_not_say_so(tmp_path: Path) -> None:
    file = read(tmp_path, LLAMAFACTORY)
    assert policy_of(file).methods == (
        use("adafactor"),
        use("checkpoint", every=1),
        use("precision", dtype="fp16"),
    )
    assert file.stated == Stated(batch_size=3, tokens=128, max_grad_norm=1.0)


def test_the_trainers_own_optimizer_is_the_fused_one(tmp_path: Path) -> None:
    file = read(tmp_path, {"output_dir": "out", "per_device_train_batch_size": 4})
    assert policy_of(file) == Policy(methods=(use("fused_optimizer"),), micro_batch=4)
    assert policy_of(read(tmp_path, {"per_device_train_batch_size": 4, "optim": "sgd"})).methods == ()
    assert "optim: 'sgd' is not measured: no method says it" in notes_of(
        read(tmp_path, {"per_device_train_batch_size": 4, "optim": "sgd"})
    )


def test_deepspeed_divides_its_batch_and_its_states_among_as_many_devices_as_there_are(tmp_path: Path) -> None:
    alone = read(tmp_path, DEEPSPEED, "ds.json")
    assert policy_of(alone).micro_batch == 8
    assert "stage 1 divides nothing on one device" in notes_of(alone)
    two = policy_of(read(tmp_path, DEEPSPEED, "ds.json", gpu_count=2))
    assert (two.micro_batch, two.gpu_count) == (4, 2)
    assert use("zero_1") in two.methods
    with pytest.raises(OptionError, match=r"multiple of accumulation steps and devices, but it is 16, .* 2 and 3"):
        read(tmp_path, DEEPSPEED, "ds.json", gpu_count=3)


def test_accelerate_says_no_batch_which_is_the_workloads_own(tmp_path: Path) -> None:
    file = read(tmp_path, ACCELERATE)
    assert policy_of(file).methods == (
        use("checkpoint", every=1),
        use("fsdp", reshard=True, mixed_precision="bf16", offload=False),
    )
    assert (policy_of(file).gpu_count, file.baseline.states_batch, file.model) == (4, False, "")
    assert read(tmp_path, ACCELERATE, batch=6).baseline.states_batch


def test_a_deepspeed_file_that_another_names_is_read_too(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text(json.dumps({"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}))
    own = {**LLAMAFACTORY, "deepspeed": "z3.json", "optim": "adamw_torch", "fp16": False, "bf16": True}
    methods = policy_of(read(tmp_path, own, gpu_count=2)).methods
    assert {one.name for one in methods} == {"checkpoint", "fsdp", "precision"}


def test_of_two_settings_that_exclude_each_other_one_is_measured_and_the_other_named(tmp_path: Path) -> None:
    (tmp_path / "z3.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    file = read(tmp_path, {**LLAMAFACTORY, "deepspeed": "z3.json"}, gpu_count=2)
    assert "adafactor" not in {one.name for one in policy_of(file).methods}
    assert "adafactor is not measured: " in notes_of(file)


def test_a_rank_that_lora_does_not_take_is_measured_as_the_nearest_and_said(tmp_path: Path) -> None:
    file = read(tmp_path, {**AXOLOTL, "adapter": "lora", "lora_r": 16, "lora_alpha": 32, "lora_dropout": 0.05})
    assert use("lora", rank=8) in policy_of(file).methods
    assert "lora_r: 16 is measured as 8: lora takes 8 or 32" in notes_of(file)
    assert "lora_dropout: 0.05 is measured as 0.0" in notes_of(file)


def test_what_no_method_says_and_keys_that_nobody_knows_are_named(tmp_path: Path) -> None:
    file = read(
        tmp_path, {**AXOLOTL, "micro_batch_sizes": 4, "fancy": 1, "flash_attn_cross_entropy": True, "bf16": False}
    )
    assert "micro_batch_sizes is no key of an axolotl configuration: did you mean micro_batch_size?" in notes_of(file)
    assert "flash_attn_cross_entropy: True is not measured (another loss)" in notes_of(file)
    assert "fancy" in file.baseline.notes[-1]


def test_keys_that_the_installed_trainer_does_not_have_are_told_from_those_without_a_method(tmp_path: Path) -> None:
    notes = notes_of(read(tmp_path, {**ACCELERATE, "fancy": 1, "mpirun_config": {"mpirun_ccl": "1"}}))
    assert re.search(r"keys that accelerate [\d.]+ does not have: fancy\n", notes)
    assert "keys that nothing was made of: mpirun_config" in notes


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"learning_rate": 1}, "told by a key of its own .*axolotl: base_model.* has none of these. Add"),
        ({**AXOLOTL, **DEEPSPEED}, "one trainer, but .* has keys of axolotl and deepspeed"),
        ({"schema": 1, "policy": {"micro_batch": 1}}, "is a policy without a baseline: give it with --baseline"),
        ([1, 2], "must map keys to values"),
        ({**AXOLOTL, "micro_batch_size": "two"}, "micro batch in .* must be a whole number, but got 'two'"),
        ({**AXOLOTL, "sequence_len": 0}, "sequence_len in .* must be at least 1, but got 0"),
        (
            {**LLAMAFACTORY, "deepspeed": "nowhere.json"},
            "must be there, but 'nowhere.json' is neither beside it nor in",
        ),
    ],
)
def test_a_file_that_cannot_be_read_as_a_trainers_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        read(tmp_path, content)


SETTINGS: list[tuple[str, tuple[MethodSetting, ...]]] = [
    ("axolotl", (use("adam_8bit"), use("checkpoint", every=1), use("precision", dtype="bf16"))),
    ("llamafactory", (use("adam_low_bit", state="8bit"), use("precision", dtype="bf16"))),
    ("hf", (use("checkpoint", every=2), use("compile", scope="model"), use("precision", dtype="fp16"))),
    ("deepspeed", (use("precision", dtype="bf16"),)),
    ("axolotl", ()),
    ("llamafactory", (use("lora", rank=32),)),
]


@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_what_was_exported_is_read_as_the_policy_that_it_was(
    tmp_path: Path, name: str, settings: tuple[MethodSetting, ...]
) -> None:
    policy = Policy(methods=settings, micro_batch=3, accumulation_steps=2)
    text = new_configuration(export_policy(PolicyFile(policy=policy), get_target(name), max_grad_norm=0.5))
    suffix = "json" if text.lstrip().startswith("{") else "yaml"
    named = {"axolotl": "base_model: org/name\n", "llamafactory": "model_name_or_path: org/name\n"}
    path = tmp_path / f"exported.{suffix}"
    path.write_text(text + named.get(name, ""))
    file = read_trainer_file(path)
    assert policy_of(file) == policy
    assert file.stated.max_grad_norm == 0.5


class RequestedError(Exception):
    pass


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[TuneRequest]:
    requests: list[TuneRequest] = []

    def request_only(request: TuneRequest, progress: object) -> None:
        request.check()
        requests.append(request)
        raise RequestedError

    monkeypatch.setattr("advisor.session.tune.run_session", request_only)
    return requests


def test_the_model_of_the_file_is_tuned_with_its_rows_and_its_batch(tmp_path: Path, asked: list[TuneRequest]) -> None:
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text('{"model_type": "llama"}')
    read(tmp_path, {**AXOLOTL, "base_model": "llama"})
    with pytest.raises(RequestedError):
        advisor.tune(from_=tmp_path / "settings.yaml", tokens=32)
    (request,) = asked
    assert (request.source.kind, request.source.name) == (WorkloadKind.HUGGING_FACE, "llama")
    assert request.source.stated == Stated(batch_size=2, tokens=32, max_grad_norm=1.0)
    assert request.baseline is not None
    assert request.baseline.policy.accumulation_steps == 4


def test_its_devices_are_those_that_are_tuned_for(tmp_path: Path, asked: list[TuneRequest]) -> None:
    model = tmp_path / "model.py"
    model.write_text("def build_model(): ...\ndef make_batch(batch_size): ...\n")
    read(tmp_path, ACCELERATE)
    with pytest.raises(RequestedError):
        advisor.tune(model, from_=tmp_path / "settings.yaml")
    assert asked[0].gpu_counts == (4,)


def test_a_file_without_a_model_needs_one(tmp_path: Path, asked: list[TuneRequest]) -> None:
    read(tmp_path, ACCELERATE)
    with pytest.raises(OptionError, match=r"names none, but .*settings.yaml .* does not. Give MODEL"):
        advisor.tune(from_=tmp_path / "settings.yaml")


def test_a_policy_keeps_the_settings_that_it_was_compared_with(tmp_path: Path) -> None:
    own = Policy(methods=(use("lora", rank=8),), micro_batch=2, accumulation_steps=3, settled={"lora": "{}"})
    known = Fingerprints(
        workload={"name": "llama", "fingerprint": "ab", "model": "llama.json"},
        hardware={"name": "a GPU"},
        versions={"torch": "2"},
        request="cd",
        asked={"max_grad_norm": 1.0},
    )
    path = tmp_path / "policy.yaml"
    write_policy_file(PolicyFile(policy=Policy(micro_batch=8), baseline=own, fingerprints=known), path, header="")
    found = read_trainer_file(path)
    assert found.baseline.policy == Policy(methods=own.methods, micro_batch=2, accumulation_steps=3)
    assert found.stated == Stated(batch_size=2, max_grad_norm=1.0)
    assert found.model == "llama.json"
    write_policy_file(PolicyFile(policy=Policy(micro_batch=8)), path, header="")
    with pytest.raises(OptionError, match="is a policy without a baseline"):
        read_trainer_file(path)


@pytest.mark.parametrize(("goal", "size"), [("faster", {"layers": 24}), ("bigger", {})])
def test_settings_of_a_policy_are_for_its_model_unless_that_was_made_larger(
    goal: str, size: dict[str, int], tmp_path: Path
) -> None:
    evidence = msgspec.structs.replace(EVIDENCE, goal=goal, model_size={"layers": 24})
    file = PolicyFile(policy=Policy(micro_batch=8), baseline=Policy(micro_batch=2), evidence=evidence)
    write_policy_file(file, tmp_path / "policy.yaml", header="")
    assert read_trainer_file(tmp_path / "policy.yaml").baseline.model_size == size
