"""A configuration of the user's is changed where the policy says so, and stays as it is everywhere else."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
import yaml

from advisor.errors import OptionError
from advisor.exports import config_file
from advisor.exports.config_file import patched_file
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.methods.setting import MethodSetting, use
from advisor.policy.fingerprints import Fingerprints
from tests.exports.policies import file_of

AXOLOTL = """\
# Our best recipe so far.
base_model: "org/model"   # do not change

datasets:
    - path: data.jsonl   # four spaces
      type: alpaca

micro_batch_size: 1   # all that fits
gradient_accumulation_steps: 16
batch_size: 16
optimizer: lion_8bit   # ours
learning_rate: 2e-5

# -- memory --
gradient_checkpointing: true
gradient_checkpointing_kwargs:
    use_reentrant: true   # old
# Formats: bf16 on our machines.
bf16: auto
tf32: yes
fsdp:
    - full_shard
    - auto_wrap
fsdp_config: {fsdp_version: 1, fsdp_transformer_layer_cls_to_wrap: Block}
# The end.
"""


def into(
    text: str, name: str, folder: Path, *settings: MethodSetting, norm: float | None = None
) -> tuple[str, list[str]]:
    """The changed text, and the changes in words."""
    path = folder / {"deepspeed": "ds_config.json"}.get(name, "config.yaml")
    path.write_text(text)
    patched = patched_file(path, export_policy(file_of(*settings), get_target(name), max_grad_norm=norm))
    patched.write()
    return path.read_text(), [change.words for change in patched.changes]


def test_comments_order_quotes_and_other_keys_of_a_yaml_stay(tmp_path: Path) -> None:
    text, words = into(AXOLOTL, "axolotl", tmp_path, use("precision", dtype="tf32"))
    own = [line for line in text.splitlines() if not line.startswith("# momadvise")]
    kept = [
        line
        for line in AXOLOTL.splitlines()
        if not line.startswith(("micro_batch", "gradient", "batch_size", "    use_re", "bf16", "tf32", "fsdp"))
        and "full_shard" not in line
        and "auto_wrap" not in line
    ]
    assert [line for line in own if line in kept] == kept
    assert "micro_batch_size: 4   # all that fits" in own
    assert "bf16: false" in own
    found = yaml.safe_load(text)
    assert found["optimizer"] == "lion_8bit"
    assert {"batch_size", "gradient_checkpointing_kwargs", "fsdp", "fsdp_config"}.isdisjoint(
        found.keys() - {"fsdp_config"}
    )
    assert found["gradient_checkpointing"] is False
    assert found["tf32"] is True
    assert found["max_grad_norm"] == 0.0
    assert "optimizer: lion_8bit stays (the policy decides nothing here, and was not measured with it)" in words


def test_a_second_export_changes_nothing(tmp_path: Path) -> None:
    first, _ = into(AXOLOTL, "axolotl", tmp_path, use("checkpoint", every=1))
    again, words = into(first, "axolotl", tmp_path, use("checkpoint", every=1))
    assert again == first
    assert [word for word in words if " stays " not in word] == []


def test_the_version_and_what_is_missing_stand_once_in_the_file(tmp_path: Path) -> None:
    text, _ = into(AXOLOTL, "axolotl", tmp_path, use("swap", min_bytes=2**20))
    text, _ = into(text, "axolotl", tmp_path, use("checkpoint", every=2))
    marked = [line for line in text.splitlines() if line.startswith("# momadvise")]
    assert any("keys checked with axolotl 0.19.0" in line for line in marked)
    assert any("checkpoint every=2 needs the adapter" in line for line in marked)
    assert not any("swap" in line for line in marked)


def test_older_spellings_and_rivals_of_the_trainer_go(tmp_path: Path) -> None:
    text, words = into(
        "gradient_checkpointing: true\nfp16: true\ndeepspeed: ds.json\ntorch_compile_mode: default\nseed: 3\n"
        "fsdp_config:\n  fsdp_version: 1\n  xla: false\n",
        "hf",
        tmp_path,
        use("precision", dtype="bf16"),
        use("fsdp", reshard=True, mixed_precision="none", offload=False),
    )
    found = yaml.safe_load(text)
    assert {"gradient_checkpointing", "deepspeed", "torch_compile_mode"}.isdisjoint(found)
    assert (found["bf16"], found["fp16"], found["seed"]) == (True, False, 3)
    assert found["fsdp"] is True
    assert found["fsdp_config"]["version"] == 2
    assert found["fsdp_config"]["xla"] is False
    assert "fsdp_version" not in found["fsdp_config"]
    assert any(word.startswith("gradient_checkpointing: true is removed") for word in words)
    assert any(word.startswith("deepspeed: ds.json is removed") for word in words)


def test_clipping_stays_the_users_unless_it_is_given(tmp_path: Path) -> None:
    text, _ = into("max_grad_norm: 0.5\n", "hf", tmp_path)
    assert yaml.safe_load(text)["max_grad_norm"] == 0.5
    text, _ = into(text, "hf", tmp_path, norm=1.0)
    assert yaml.safe_load(text)["max_grad_norm"] == 1.0


def test_clipping_is_what_the_policy_was_measured_with_where_the_file_says_nothing(tmp_path: Path) -> None:
    here = Fingerprints(workload={}, hardware={}, versions={}, request="", asked={"max_grad_norm": 1.0})
    file = msgspec.structs.replace(file_of(), fingerprints=here)
    path = tmp_path / "config.yaml"
    for before, given, after in (("", None, 1.0), ("max_grad_norm: 0.3\n", None, 0.3), ("", 0.5, 0.5), ("", 0.0, 0.0)):
        path.write_text(f"seed: 1\n{before}")
        patched_file(path, export_policy(file, get_target("hf"), max_grad_norm=given)).write()
        assert yaml.safe_load(path.read_text())["max_grad_norm"] == after


def test_json_keeps_its_order_and_indentation(tmp_path: Path) -> None:
    before = json.dumps({"steps_per_print": 10, "bf16": {"enabled": True}, "wall_clock_breakdown": False}, indent=4)
    text, _ = into(before, "deepspeed", tmp_path, use("precision", dtype="bf16"))
    found = json.loads(text)
    assert list(found)[:3] == ["steps_per_print", "bf16", "wall_clock_breakdown"]
    assert found["bf16"] == {"enabled": False}
    assert found["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert text.startswith('{\n    "steps_per_print": 10,\n    "bf16": {\n        "enabled": false\n')


OWN_JSON = """\
{
    "zero_optimization": {
        "reduce_bucket_size": 5e8, "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": true}
    },
    "optimizer": {"type": "AdamW", "params": {"betas": [0.9, 0.95], "lr": 1E-4}},
    "train_batch_size": "auto"
}
"""


def test_numbers_and_lists_of_a_json_stay_as_they_are_written(tmp_path: Path) -> None:
    text, _ = into(OWN_JSON, "deepspeed", tmp_path, use("precision", dtype="bf16"))
    kept = OWN_JSON.replace('"stage": 2', '"stage": 0').replace('"device": "cpu", ', "").replace('"auto"', "8")
    assert text.startswith(kept.removesuffix("\n}\n"))
    assert json.loads(text)["torch_autocast"] == {"enabled": True, "dtype": "bfloat16"}
    assert json.loads(text)["zero_optimization"]["offload_optimizer"] == {"pin_memory": True}


@pytest.mark.parametrize(
    "before",
    [
        OWN_JSON.replace("    ", "\t"),
        OWN_JSON.replace('"device": "cpu", "pin_memory": true', '\n"pin_memory": true,\n"device": "cpu"\n'),
        json.dumps(json.loads(OWN_JSON)),
        "{}",
    ],
    ids=["tabs", "the last entry goes", "one line", "empty"],
)
def test_whatever_a_json_looks_like_it_says_what_is_meant(before: str, tmp_path: Path) -> None:
    text, _ = into(before, "deepspeed", tmp_path, use("precision", dtype="bf16"))
    found, own = json.loads(text), json.loads(before)
    assert found["train_micro_batch_size_per_gpu"] == 4
    assert found["zero_optimization"]["stage"] == 0
    assert "device" not in found["zero_optimization"].get("offload_optimizer", {})
    assert found.get("optimizer") == own.get("optimizer")


def test_a_word_and_a_mapping_take_each_others_place(tmp_path: Path) -> None:
    ddp = use("ddp", bucket_views=True, static_graph=False)
    text, _ = into("trainer:\n  strategy: ddp  # ours\n  max_epochs: 3\nmodel: x\n", "lightning", tmp_path, ddp)
    found = yaml.safe_load(text)
    assert found["trainer"]["strategy"]["class_path"].endswith("DDPStrategy")
    assert (found["trainer"]["max_epochs"], found["model"]) == (3, "x")
    text, _ = into(text, "lightning", tmp_path)
    assert yaml.safe_load(text)["trainer"]["strategy"] == "auto"


def test_what_yaml_1_1_takes_for_something_else_is_quoted(tmp_path: Path) -> None:
    text, _ = into("mixed_precision: bf16\ndistributed_type: MULTI_GPU\nnum_processes: 2\n", "accelerate", tmp_path)
    assert yaml.safe_load(text)["mixed_precision"] == "no"
    assert yaml.safe_load(text)["distributed_type"] == "NO"


def test_line_ends_links_and_permissions_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "link.yaml"
    real.write_bytes(b"# ours\r\nseed: 1\r\n")
    real.chmod(0o640)
    link.symlink_to(real)
    patched_file(link, export_policy(file_of(), get_target("hf"))).write()
    assert link.is_symlink()
    assert b"# ours\r\nseed: 1\r\n" in real.read_bytes()
    assert real.read_bytes().count(b"\n") == real.read_bytes().count(b"\r\n")
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        ("config.yaml", "- a\n- b\n", "must hold a mapping of keys, but .* is a list"),
        ("config.yaml", "", "must hold a mapping of keys, but .* is empty"),
        ("config.yaml", "a: [1\n", "must be valid YAML, but .* is not: line 2"),
        ("config.yaml", "seed: 1\n---\nseed: 2\n", r"line 2: it holds several documents \(--- begins one\); keep one"),
        ("config.yaml", "seed: 1\nseed: 2\n", "line 2: the key 'seed' stands twice; remove one"),
        ("config.yaml", "bf16: &on true\nfp16: *on\n", "must have a value of its own for each key"),
        (
            "config.yaml",
            "mine: &on\n  use_reentrant: true\nactivation_checkpointing_kwargs: *on\n",
            "a value of its own",
        ),
        ("config.json", '{"seed": 1, "seed": 2}', "'seed' twice"),
        ("config.json", "{,}", "must be valid JSON"),
        ("config.toml", "a = 1\n", r"must name TrainingArguments as \.yaml or \.json"),
        ("config.yaml", "fsdp_config: fsdp.json\n", "fsdp_config must be a mapping, because fsdp_config.version goes"),
    ],
)
def test_a_file_that_cannot_be_changed_is_an_error_and_stays(
    name: str, content: str, rule: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    fsdp = use("fsdp", reshard=True, mixed_precision="none", offload=False)
    with pytest.raises(OptionError, match=rule):
        patched_file(path, export_policy(file_of(fsdp), get_target("hf")))
    assert path.read_text() == content


def test_a_text_that_would_not_say_what_is_meant_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config_file, "changed_yaml", lambda text, changes: text)
    path = tmp_path / "config.yaml"
    path.write_text("seed: 1\n")
    with pytest.raises(OptionError, match="each key on a line of its own"):
        patched_file(path, export_policy(file_of(), get_target("hf")))


def test_comments_in_braces_stay_beside_what_is_set_and_removed(tmp_path: Path) -> None:
    before = "fsdp_config: {fsdp_version: 1, # old\n  xla: false, # not on our machines\n  wrap: [a, # first\n    b]}\n"
    fsdp = use("fsdp", reshard=True, mixed_precision="none", offload=False)
    text, _ = into(before, "hf", tmp_path, fsdp)
    assert "xla: false, # not on our machines\n  wrap: [a, # first\n    b], version: 2" in text
    assert yaml.safe_load(text)["fsdp_config"].keys() >= {"xla", "wrap", "version", "cpu_offload"}
    assert "fsdp_version" not in yaml.safe_load(text)["fsdp_config"]


def test_a_key_that_looks_misspelled_is_pointed_out(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("activation_checkpoint: true\nper_device_eval_batch_size: 3\nadam_beta1: 0.9\n")
    patched = patched_file(path, export_policy(file_of(), get_target("hf")))
    assert patched.misspelled == {"activation_checkpoint": "activation_checkpointing"}


def test_adapters_that_the_policy_has_not_stay_and_are_named(tmp_path: Path) -> None:
    own = "adapter: qlora\nload_in_4bit: true\nlora_r: 16\nlora_dropout:\n"
    _, words = into(own, "axolotl", tmp_path, use("precision", dtype="bf16"))
    stays = "stays (the policy decides nothing here, and was not measured with it)"
    assert {f"adapter: qlora {stays}", f"load_in_4bit: true {stays}", f"lora_r: 16 {stays}"} <= set(words)
    assert not any(word.startswith("lora_dropout") for word in words)
    _, words = into(own, "axolotl", tmp_path, use("lora", rank=8))
    assert not any(word.startswith("adapter: qlora stays") for word in words)


@pytest.mark.parametrize(
    ("target", "bits"), [("axolotl", "load_in_4bit: true"), ("llamafactory", "quantization_bit: 4")]
)
def test_weights_of_four_bits_go_where_the_policy_has_them_not(target: str, bits: str, tmp_path: Path) -> None:
    text, words = into(f"{bits}\n", target, tmp_path, use("lora", rank=8))
    assert f"{bits} is removed (the policy's adapters have it not)" in words
    assert bits not in text
    text, words = into(f"{bits}\n", target, tmp_path, use("qlora", rank=8))
    assert bits in text
    assert not any("is removed" in word for word in words)


def test_a_text_that_looks_like_a_number_is_told_from_one(tmp_path: Path) -> None:
    text, words = into('per_device_train_batch_size: "4"\nbf16: "true"\n', "hf", tmp_path)
    assert 'per_device_train_batch_size: "4" -> 4' in words
    assert 'bf16: "true" -> false' in words
    assert yaml.safe_load(text)["per_device_train_batch_size"] == 4


def test_a_value_that_equals_nothing_stays(tmp_path: Path) -> None:
    text, _ = into("logging_nan: .nan\n", "hf", tmp_path)
    assert "logging_nan: .nan\n" in text


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--into must name a file that exists, but .* is a folder\. Leave"):
        patched_file(tmp_path, export_policy(file_of(), get_target("hf")))
