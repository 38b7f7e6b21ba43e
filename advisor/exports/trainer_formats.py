"""How a trainer's configuration is told from others, and what its silence means."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from advisor.exports.accelerate_keys import ACCELERATE
from advisor.exports.axolotl_keys import AXOLOTL
from advisor.exports.deepspeed_keys import DEEPSPEED
from advisor.exports.hf_keys import HF
from advisor.exports.llamafactory_keys import LLAMAFACTORY
from advisor.exports.rules import Target

__all__ = ["FORMATS", "TrainerFormat", "is_among"]

_OF_EVERY_TRAINER = (
    "output_dir",
    "overwrite_output_dir",
    "seed",
    "data_seed",
    "learning_rate",
    "lr*",
    "warmup*",
    "weight_decay",
    "adam_*",
    "num_train_epochs",
    "num_epochs",
    "max_steps",
    "logging*",
    "save*",
    "eval*",
    "do_*",
    "val*",
    "report_to",
    "run_name",
    "wandb*",
    "mlflow*",
    "comet*",
    "use_tensorboard",
    "tensorboard*",
    "hub_*",
    "push_to_hub",
    "dataset*",
    "dataloader*",
    "preprocessing*",
    "resume*",
    "load_best_model_at_end",
    "ddp_timeout",
    "plot_loss",
    "log*",
    "tokenizer*",
    "special_tokens",
    "trust_remote_code",
)
"""Keys that decide neither the memory nor the speed of a step; a star stands for any ending."""


class TrainerFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How the configuration of a trainer is read.

    Attributes:
        target: Its table of keys.
        told_by: Keys that no other trainer has.
        defaults: Dotted key -> what the trainer does where it is absent, if that is not plain training.
        same: Dotted key -> the value that is taken for any other, where the difference is none of memory or speed.
        optimizer: The key that names the optimizer.
        model: The key that names the model.
        tokens: The key of the longest row.
        packed: The key that fills rows to that length.
        harmless: Further keys that decide neither the memory nor the speed of a step.
    """

    target: Target
    told_by: tuple[str, ...]
    defaults: Mapping[str, Any] = {}
    same: Mapping[str, Any] = {}
    optimizer: str = "optim"
    model: str = ""
    tokens: str = ""
    packed: str = ""
    harmless: tuple[str, ...] = ()

    def is_harmless(self, key: str) -> bool:
        """Whether a top key decides neither the memory nor the speed of a step."""
        return is_among(key, (*_OF_EVERY_TRAINER, *self.harmless))


def is_among(key: str, names: Iterable[str]) -> bool:
    """Whether a key is one of some names; a star stands for any ending."""
    return any(key.startswith(name[:-1]) if name.endswith("*") else key == name for name in names)


FORMATS = (
    TrainerFormat(
        target=AXOLOTL,
        optimizer="optimizer",
        told_by=("base_model",),
        defaults={
            "micro_batch_size": 1,
            "gradient_accumulation_steps": 1,
            "optimizer": "adamw_torch_fused",
            "max_grad_norm": 1.0,
            "chunked_cross_entropy_num_chunks": 8,
            "fsdp_config.reshard_after_forward": True,
            "fsdp_config.offload_params": False,
        },
        same={
            "gradient_checkpointing_kwargs.use_reentrant": False,
            "fsdp_version": 2,
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
        model="base_model",
        tokens="sequence_len",
        packed="sample_packing",
        harmless=(
            "model_type",
            "chat_template*",
            "tokens",
            "pad_to_sequence_len",
            "train_on_inputs",
            "group_by_length",
            "plugins",
            "is_llama_derived_model",
            "shuffle*",
            "test_datasets",
            "skip_prepare_dataset",
            "strict",
            "lora_model_dir",
            "lora_modules_to_save",
            "early_stopping_patience",
            "debug",
        ),
    ),
    TrainerFormat(
        target=LLAMAFACTORY,
        told_by=("finetuning_type", "stage", "template", "cutoff_len"),
        defaults={
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "disable_gradient_checkpointing": False,
            "optim": "adamw_torch_fused",
            "max_grad_norm": 1.0,
            "finetuning_type": "lora",
            "lora_rank": 8,
            "cutoff_len": 2048,
            "fsdp_config.reshard_after_forward": True,
            "fsdp_config.cpu_offload": False,
        },
        same={
            "use_reentrant_gc": False,
            "fp8_backend": "torchao",
            "quantization_method": "bnb",
            "quantization_type": "nf4",
            "double_quantization": True,
            "fsdp_config.version": 2,
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
        model="model_name_or_path",
        tokens="cutoff_len",
        packed="packing",
        harmless=(
            "overwrite_cache",
            "max_samples",
            "mask_history",
            "train_on_prompt",
            "additional_target",
            "media_dir",
        ),
    ),
    TrainerFormat(
        target=HF,
        told_by=("per_device_train_batch_size", "model_name_or_path"),
        defaults={
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "optim": "adamw_torch_fused",
            "max_grad_norm": 1.0,
            "fsdp_config.reshard_after_forward": True,
            "fsdp_config.cpu_offload": False,
        },
        same={
            "activation_checkpointing_kwargs.use_reentrant": False,
            "fsdp_config.version": 2,
            "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        },
        model="model_name_or_path",
        tokens="max_length",
        packed="packing",
        harmless=(
            "remove_unused_columns",
            "label_names",
            "group_by_length",
            "disable_tqdm",
            "metric_for_best_model",
            "model_revision",
            "chat_template*",
        ),
    ),
    TrainerFormat(
        target=ACCELERATE,
        told_by=("compute_environment", "distributed_type"),
        defaults={"fsdp_config.fsdp_reshard_after_forward": True, "fsdp_config.fsdp_offload_params": False},
        same={
            "fsdp_config.fsdp_version": 2,
            "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_config.fsdp_cpu_ram_efficient_loading": False,
        },
        harmless=(
            "compute_environment",
            "debug",
            "downcast_bf16",
            "main_*",
            "machine_rank",
            "num_machines",
            "same_network",
            "rdzv*",
            "tpu*",
            "enable_cpu_affinity",
            "use_cpu",
            "gpu_ids",
            "main_training_function",
        ),
    ),
    TrainerFormat(
        target=DEEPSPEED,
        told_by=("train_micro_batch_size_per_gpu", "train_batch_size", "zero_optimization"),
        defaults={"gradient_accumulation_steps": 1},
        same={"zero_force_ds_cpu_optimizer": False},
        harmless=(
            "steps_per_print",
            "wall_clock_breakdown",
            "scheduler",
            "zero_allow_untested_optimizer",
            "prescale_gradients",
            "memory_breakdown",
            "flops_profiler",
            "csv_monitor",
            "monitor_config",
            "dump_state",
            "zero_force_ds_cpu_optimizer",
        ),
    ),
)
"""Every trainer whose configuration is read; the keys of transformers are part of LLaMA-Factory's."""
