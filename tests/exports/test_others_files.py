"""Configurations as they stand among the examples of their trainers, and what is measured of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import OptionError
from advisor.exports.trainer_file import TrainerFile, read_trainer_file
from advisor.methods.setting import MethodSetting, use
from advisor.workload.workload import Stated

LLAMAFACTORY_QLORA = """\
### model
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
quantization_bit: 4
quantization_method: bnb
double_quantization: true
trust_remote_code: true

### method
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8
lora_target: all

### dataset
dataset: identity,alpaca_en_demo
template: llama3
cutoff_len: 2048
overwrite_cache: true
preprocessing_num_workers: 16

### train
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
bf16: true
ddp_timeout: 180000000
"""
SFT_SCRIPT = """\
# Model arguments
model_name_or_path: Qwen/Qwen2.5-0.5B
attn_implementation: flash_attention_2
use_peft: true
lora_r: 16

# SFT trainer config
bf16: true
gradient_accumulation_steps: 8
gradient_checkpointing: true
max_length: 2048
packing: true
per_device_train_batch_size: 4
learning_rate: 2.0e-04
output_dir: data/qwen
"""
ACCELERATE_DEEPSPEED = """\
compute_environment: LOCAL_MACHINE
debug: false
deepspeed_config:
  deepspeed_multinode_launcher: standard
  gradient_accumulation_steps: 4
  gradient_clipping: 1.0
  offload_optimizer_device: none
  offload_param_device: none
  zero3_init_flag: true
  zero3_save_16bit_model: true
  zero_stage: 3
distributed_type: DEEPSPEED
downcast_bf16: 'no'
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 8
use_cpu: false
"""
ACCELERATE_FSDP = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_backward_prefetch: BACKWARD_PRE
  fsdp_cpu_ram_efficient_loading: true
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_sync_module_states: true
  fsdp_use_orig_params: true
mixed_precision: 'no'
num_processes: 2
"""
OFFLOADING: dict[str, Any] = {
    "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "torch_adam": True, "adam_w_mode": True}},
    "zero_optimization": {
        "stage": 2,
        "offload_optimizer": {"device": "cpu", "pin_memory": True},
        "allgather_bucket_size": 2e8,
        "reduce_bucket_size": "auto",
    },
    "gradient_clipping": "auto",
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
}


def read(folder: Path, text: str, name: str = "config.yaml", **asked: Any) -> TrainerFile:
    path = folder / name
    path.write_text(text)
    return read_trainer_file(path, **asked)


def methods_of(file: TrainerFile) -> tuple[MethodSetting, ...]:
    return file.baseline.policy.methods


def notes_of(file: TrainerFile) -> str:
    return "\n".join(file.baseline.notes)


def fsdp(*, reshard: bool, offload: bool) -> MethodSetting:
    return use("fsdp", reshard=reshard, mixed_precision="none", offload=offload)


def test_weights_of_four_bits_are_measured_so(tmp_path: Path) -> None:
    methods = methods_of(read(tmp_path, LLAMAFACTORY_QLORA))
    assert use("qlora", rank=8) in methods
    assert "lora" not in {one.name for one in methods}


def test_weights_of_eight_bits_are_said_not_to_be_measured_so(tmp_path: Path) -> None:
    file = read(tmp_path, LLAMAFACTORY_QLORA.replace("quantization_bit: 4", "quantization_bit: 8"))
    assert use("lora", rank=8) in methods_of(file)
    assert "quantization_bit: 8 is not measured" in notes_of(file)


def test_a_file_of_a_script_with_a_model_is_not_taken_for_llamafactorys(tmp_path: Path) -> None:
    file = read(tmp_path, SFT_SCRIPT)
    assert file.baseline.origin.endswith("(TrainingArguments)")
    full = (use("checkpoint", every=1), use("fused_optimizer"))
    assert methods_of(file) == (*full, use("lora", rank=8), use("precision", dtype="bf16"))
    assert file.model == "hf:Qwen/Qwen2.5-0.5B"
    assert file.stated == Stated(batch_size=4, tokens=2048, max_grad_norm=1.0)
    for words in (
        "lora_r: 16 is measured as 8: lora takes 8 or 32",
        "lora_target_modules: None is measured as every linear layer",
        "lora_dropout: 0.05 is measured as 0",
        "keys that nothing was made of: attn_implementation",
    ):
        assert words in notes_of(file)
    assert "use_peft" not in notes_of(file)


def test_adapters_of_trl_are_measured_beside_weights_of_four_bits(tmp_path: Path) -> None:
    own = "lora_target_modules: all-linear\nlora_dropout: 0\nload_in_4bit: true\nuse_dora: true\nlora_r: 24\n"
    file = read(tmp_path, SFT_SCRIPT.replace("lora_r: 16\n", own))
    assert use("qlora", rank=32) in methods_of(file)
    assert "use_dora: True is not measured" in notes_of(file)
    assert "lora_target_modules" not in notes_of(file)
    file = read(tmp_path, SFT_SCRIPT.replace("use_peft: true", "use_peft: false"))
    assert "lora" not in {one.name for one in methods_of(file)}


def test_numbers_and_truth_values_in_quotes_are_read_as_trainers_read_them(tmp_path: Path) -> None:
    quoted = SFT_SCRIPT.replace("device_train_batch_size: 4", "device_train_batch_size: '4'").replace(
        "bf16: true", "bf16: 'True'"
    )
    assert read(tmp_path, quoted).baseline == read(tmp_path, SFT_SCRIPT).baseline
    batch = {"train_batch_size": "32", "train_micro_batch_size_per_gpu": "4", "gradient_clipping": "0.5"}
    file = read(tmp_path, json.dumps({**batch, "zero_optimization": {"stage": "2"}}), "ds.json", gpu_count=2)
    assert (file.baseline.policy.accumulation_steps, file.stated.max_grad_norm) == (4, 0.5)
    assert methods_of(file) == (fsdp(reshard=False, offload=False),)
    with pytest.raises(OptionError, match=r"must be a whole number, but got 'four'\. Write a number such as 4\."):
        read(tmp_path, quoted.replace("'4'", "four"))


def test_accelerate_has_accumulation_and_clipping_in_its_part_for_deepspeed(tmp_path: Path) -> None:
    file = read(tmp_path, ACCELERATE_DEEPSPEED)
    assert methods_of(file) == (fsdp(reshard=True, offload=False), use("precision", dtype="bf16"))
    assert (file.baseline.policy.accumulation_steps, file.stated.max_grad_norm) == (4, 1.0)
    assert "distributed_type" not in notes_of(file)


def test_accelerate_takes_the_batch_of_the_deepspeed_configuration_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(json.dumps({"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}))
    file = read(
        tmp_path,
        "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 2\n"
        "deepspeed_config: {deepspeed_config_file: ds.json}\n",
    )
    policy = file.baseline.policy
    assert (policy.micro_batch, policy.accumulation_steps, policy.gpu_count) == (4, 4, 2)
    assert file.baseline.states_batch


@pytest.mark.parametrize(
    ("strategy", "reshard"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", True),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", False),
        ("fsdp_sharding_strategy: 2", False),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", False),
        ("fsdp_reshard_after_forward: FULL_SHARD", True),
        ("fsdp_sharding_strategy: HYBRID_SHARD", True),
    ],
)
def test_a_sharding_strategy_is_measured_as_what_the_second_version_has_for_it(
    strategy: str, reshard: bool, tmp_path: Path
) -> None:
    file = read(tmp_path, ACCELERATE_FSDP.replace("fsdp_sharding_strategy: FULL_SHARD", strategy))
    assert methods_of(file) == (fsdp(reshard=reshard, offload=False),)
    assert ("HYBRID_SHARD is measured as divided among all devices" in notes_of(file)) == ("HYBRID" in strategy)
    assert "is not measured" not in notes_of(file)


def test_a_strategy_that_divides_nothing_is_measured_as_ddp(tmp_path: Path) -> None:
    file = read(tmp_path, ACCELERATE_FSDP.replace("FULL_SHARD", "NO_SHARD"))
    assert methods_of(file) == (use("ddp", bucket_views=False, static_graph=False),)
    assert "NO_SHARD divides nothing: measured as ddp" in notes_of(file)


def test_the_words_of_transformers_older_option_say_the_same(tmp_path: Path) -> None:
    own = 'per_device_train_batch_size: 2\nfsdp: "shard_grad_op auto_wrap offload"\noptim: adamw_torch\n'
    assert methods_of(read(tmp_path, own, gpu_count=2)) == (fsdp(reshard=False, offload=True),)
    named = own.replace("shard_grad_op auto_wrap offload", "full_shard") + "fsdp_config: fsdp.json\n"
    missing = notes_of(read(tmp_path, named, gpu_count=2))
    assert "fsdp_config: 'fsdp.json' is neither beside this file nor in the current folder, and not read" in missing
    (tmp_path / "fsdp.json").write_text('{"reshard_after_forward": false, "cpu_offload": true}')
    file = read(tmp_path, named, gpu_count=2)
    assert methods_of(file) == (fsdp(reshard=False, offload=True),)
    assert "fsdp.json" not in notes_of(file)


def test_states_on_the_host_are_measured_there(tmp_path: Path) -> None:
    on_two = read(tmp_path, json.dumps(OFFLOADING), "ds.json", gpu_count=2)
    assert methods_of(on_two) == (fsdp(reshard=False, offload=True),)
    assert methods_of(read(tmp_path, json.dumps(OFFLOADING), "ds.json")) == (use("host_optimizer"),)


@pytest.mark.parametrize(
    ("zero", "words"),
    [
        ({"stage": 1, "offload_optimizer": {"device": "cpu"}}, "offload_optimizer.device: 'cpu' is not measured"),
        ({"stage": 3, "offload_optimizer": {"device": "nvme"}}, "offload_optimizer.device: 'nvme' is not measured"),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, "offload_param.device: 'cpu' is not measured"),
    ],
)
def test_what_no_method_moves_to_the_host_is_named(zero: dict[str, Any], words: str, tmp_path: Path) -> None:
    file = read(tmp_path, json.dumps({"zero_optimization": zero}), "ds.json", gpu_count=2)
    assert words in notes_of(file)


def test_a_format_that_does_not_go_with_what_divides_the_training_is_named(tmp_path: Path) -> None:
    own = {**OFFLOADING, "bf16": {"enabled": False}, "fp16": {"enabled": True}}
    file = read(tmp_path, json.dumps(own), "ds.json", gpu_count=2)
    assert "precision fp16 is not measured: " in notes_of(file)


@pytest.mark.parametrize(("gpu_count", "accumulation"), [(1, 8), (2, 4)])
def test_deepspeeds_third_number_follows_from_the_other_two(gpu_count: int, accumulation: int, tmp_path: Path) -> None:
    own = {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 4}
    policy = read(tmp_path, json.dumps(own), "ds.json", gpu_count=gpu_count).baseline.policy
    assert (policy.micro_batch, policy.accumulation_steps) == (4, accumulation)


def test_training_in_bfloat16_alone_is_measured_as_the_nearest_and_said(tmp_path: Path) -> None:
    file = read(tmp_path, "base_model: org/model\nbf16: full\noptimizer: adamw_torch\n")
    assert methods_of(file) == (use("precision", dtype="bf16"),)
    assert "bf16: full is measured as bf16" in notes_of(file)


def test_a_text_that_says_no_is_no_recomputation(tmp_path: Path) -> None:
    own = "base_model: org/model\noptimizer: adamw_torch\ngradient_checkpointing: "
    assert methods_of(read(tmp_path, f'{own}"false"\n')) == ()
    assert methods_of(read(tmp_path, f"{own}unsloth\n")) == (use("checkpoint", every=1),)


DEEPSPEED = json.dumps({"train_batch_size": 8, "zero_optimization": True, "fp16": {"enabled": False}})


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("base_model: org/m\nadapter: lora\n", "adapter: 'lora' is not measured, as no lora_r is said"),
        ("distributed_type: 'NO'\nmixed_precision: fp8\n", "mixed_precision: 'fp8' is measured as bf16: of its"),
        (DEEPSPEED, "zero_optimization: True is not measured: it is no mapping"),
    ],
)
def test_what_is_not_measured_as_it_stands_is_said(text: str, note: str, tmp_path: Path) -> None:
    assert note in notes_of(read(tmp_path, text))


def test_a_mapping_in_quotes_is_one(tmp_path: Path) -> None:
    text = "per_device_train_batch_size: 1\nfsdp: full_shard\nfsdp_config: '{\"cpu_offload\": true}'\noptim: sgd\n"
    assert methods_of(read(tmp_path, text, gpu_count=2)) == (fsdp(reshard=True, offload=True),)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "max_grad_norm: .nan",
            r"Clipping in .* must be a finite number, but it is nan\. Write one such as 1\.0, or 0",
        ),
        ("max_grad_norm: yes", "finite number, but it is True"),
        ("1: 2", r"must have texts as keys, but .* has 1\. Put it in quotes"),
        ("bf16: true\nbf16: false", "line 3: the key 'bf16' stands twice; remove one"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused(line: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read(tmp_path, f"per_device_train_batch_size: 1\n{line}\n")


def test_a_key_may_stand_beside_the_mapping_that_it_is_merged_with(tmp_path: Path) -> None:
    text = "x: &x {seed: 1, per_device_train_batch_size: 1}\ny: &y\n  <<: *x\n  seed: 2\n<<: *y\n"
    assert read(tmp_path, f"{text}per_device_train_batch_size: 3\n").stated.batch_size == 3
    assert read(tmp_path, f"{text}max_grad_norm: -1\n").stated.max_grad_norm is None
