"""LLaMA-Factory's YAML, which is built on Hugging Face's Trainer."""

from __future__ import annotations

from advisor.exports.accelerate_keys import FULL_ON_CPUS, NOT_ON_CPUS
from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused
from advisor.exports.static_graph import ddp_rules

__all__ = ["LLAMAFACTORY"]

_BF16_UNDER_FSDP = (
    "with FSDP, accelerate also gathers parameters and averages gradients in that format; momadvise averages in float32"
)
_FP16_UNDER_FSDP = f"{_BF16_UNDER_FSDP}, and skips fewer of the first steps, whose scaled gradients overflow in float16"
_OTHER_LAYERS = (
    "LLaMA-Factory adds adapters to every linear layer but the output layer, momadvise only to those larger than their "
    "adapters"
)
_OF_FOUR_BITS = f"{_OTHER_LAYERS}; on a GPU it multiplies with the weights of four bits in 16, whatever the precision"
_LORA = {"finetuning_type": "lora", "lora_rank": Given("rank"), "lora_target": "all", "lora_dropout": 0.0}
_ALPHA = {8: 16, 32: 64}
_DDP = {"ddp_find_unused_parameters": False}
_FSDP = {
    "fsdp": True,
    "fsdp_config.version": 2,
    "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_config.reshard_after_forward": Given("reshard"),
    "fsdp_config.cpu_offload": Given("offload"),
}
_FSDP_VARIABLES = "FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP FSDP_OFFLOAD_PARAMS={offload} in the environment"
_VARIABLES_TOO = (
    "the transformers that LLaMA-Factory requires reads neither auto_wrap_policy nor cpu_offload in fsdp_config, but "
    "accelerate the variables"
)

LLAMAFACTORY = Target(
    name="llamafactory",
    title="a LLaMA-Factory configuration",
    library="llamafactory",
    version="0.9.5",
    formats=(Format.YAML, Format.JSON),
    plain={
        "auto_find_batch_size": False,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "pure_bf16": False,
        "fp8": False,
        "disable_gradient_checkpointing": True,
        "use_unsloth_gc": False,
        "optim": "adamw_torch",
        "torch_compile": False,
        "enable_liger_kernel": False,
        "finetuning_type": "full",
    },
    rules=(
        exported("micro_batch", {"per_device_train_batch_size": Given("micro_batch")}),
        exported("accumulation_steps", {"gradient_accumulation_steps": Given("accumulation_steps")}),
        exported(
            "gpu_count",
            outside="FORCE_TORCHRUN=1 NPROC_PER_NODE={gpu_count} OPTIM_TORCH=0 in the environment",
            text="without OPTIM_TORCH=0 LLaMA-Factory's launcher turns expandable segments on",
        ),
        exported(
            "max_grad_norm",
            {"max_grad_norm": Given("max_grad_norm")},
            text="where a file says nothing of it, the Trainer clips to 1.0: to go on so, give --max-grad-norm 1",
            max_grad_norm=0.0,
        ),
        exported("max_grad_norm", {"max_grad_norm": Given("max_grad_norm")}),
        adapter("precision", FULL_ON_CPUS, dtype="fp16", device="cpu"),
        approximated("precision", {"bf16": True}, _BF16_UNDER_FSDP, beside=("fsdp",), dtype="bf16"),
        approximated("precision", {"fp16": True}, _FP16_UNDER_FSDP, beside=("fsdp",), dtype="fp16"),
        exported("precision", {"bf16": True}, dtype="bf16"),
        exported("precision", {"fp16": True}, dtype="fp16"),
        exported("precision", {"tf32": True}, dtype="tf32"),
        approximated(
            "pure_bf16",
            {"pure_bf16": True},
            "the optimizer computes in bfloat16 too; a model that was saved in float32 stays in float32",
            rounding="nearest",
        ),
        approximated(
            "float8",
            {"fp8": True, "fp8_backend": "torchao"},
            "the first and the last linear layer stay as they are, and everything else is computed in bfloat16",
            scale="tensorwise",
        ),
        exported("checkpoint", {"disable_gradient_checkpointing": False, "use_reentrant_gc": False}, every=1),
        adapter("checkpoint", "LLaMA-Factory recomputes every block or none"),
        adapter("swap", "use_unsloth_gc also runs every block again"),
        approximated("adam_8bit", {"optim": "adamw_bnb_8bit"}, "the moments of embeddings stay in 32 bits"),
        exported("adam_low_bit", {"optim": "adamw_torch_8bit"}, state="8bit"),
        approximated(
            "adam_low_bit",
            {"optim": "adamw_torch_4bit"},
            "256 numbers share a scale, in place of torchao's usual 128",
            state="4bit",
        ),
        adapter("adam_low_bit", "there is no name for torchao's 8-bit floats", state="fp8"),
        approximated(
            "adafactor",
            {"optim": "adafactor"},
            "transformers' own Adafactor: its steps are not relative to the size of a parameter, so that another "
            "learning rate is needed",
        ),
        approximated("muon", {"use_muon": True}, "LLaMA-Factory's own Muon, whose steps are scaled otherwise"),
        exported("fused_optimizer", {"optim": "adamw_torch_fused"}, optimizer="AdamW"),
        approximated(
            "chunked_cross_entropy",
            {"enable_liger_kernel": True},
            "Liger's kernels, which choose the number of chunks themselves and replace other layers too",
        ),
        exported("compile", {"torch_compile": True}, scope="model"),
        *(
            approximated("lora", {**_LORA, "lora_alpha": alpha}, _OTHER_LAYERS, rank=rank)
            for rank, alpha in _ALPHA.items()
        ),
        *(
            approximated(
                "qlora",
                {
                    **_LORA,
                    "lora_alpha": alpha,
                    "quantization_bit": 4,
                    "quantization_method": "bnb",
                    "quantization_type": "nf4",
                    "double_quantization": True,
                },
                _OF_FOUR_BITS,
                rank=rank,
            )
            for rank, alpha in _ALPHA.items()
        ),
        *ddp_rules(_DDP, "ddp_static_graph", bucket_views=False),
        *ddp_rules(
            _DDP,
            "ddp_static_graph",
            "there is no key for gradients that are views into the buffers that are sent: a copy of all gradients more",
        ),
        adapter("zero_1", "LLaMA-Factory takes it from a DeepSpeed configuration: export to deepspeed"),
        adapter("fsdp", NOT_ON_CPUS, device="cpu"),
        exported("fsdp", _FSDP, outside=_FSDP_VARIABLES, text=_VARIABLES_TOO, mixed_precision="none"),
        approximated(
            "fsdp",
            {**_FSDP, "bf16": True},
            f"{_BF16_UNDER_FSDP}; {_VARIABLES_TOO}",
            outside=_FSDP_VARIABLES,
            mixed_precision="bf16",
        ),
        refused("tensor_parallel", "LLaMA-Factory divides models only through Megatron"),
        refused("pipeline", "LLaMA-Factory divides models only through Megatron"),
    ),
    own={
        "optim": ("adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit", "adamw_torch_4bit"),
        "max_grad_norm": (),
        "finetuning_type": (),
        "lora_rank": (),
        "lora_alpha": (),
        "lora_dropout": (),
        "lora_target": (),
        "quantization_bit": (),
        "quantization_method": (),
        "quantization_type": (),
        "double_quantization": (),
    },
    older={
        "fsdp_config.fsdp_version": "fsdp_config.version",
        "fsdp_config.fsdp_auto_wrap_policy": "fsdp_config.auto_wrap_policy",
        "fsdp_config.fsdp_reshard_after_forward": "fsdp_config.reshard_after_forward",
        "fsdp_config.fsdp_cpu_offload": "fsdp_config.cpu_offload",
    },
    rivals={
        "deepspeed": "DeepSpeed would bring its own optimizer and sharding; export to deepspeed instead",
        "gradient_checkpointing": "LLaMA-Factory decides by disable_gradient_checkpointing",
        "torch_compile_backend": "setting it compiles the model, whatever torch_compile says",
        "torch_compile_mode": "setting it compiles the model, whatever torch_compile says",
        "use_unsloth": "Unsloth replaces layers and the recomputation of blocks",
        "use_galore": "another optimizer",
        "use_apollo": "another optimizer",
        "use_badam": "another optimizer",
        "use_adam_mini": "another optimizer",
        "shift_attn": "another attention",
    },
    schemas=(
        Schema("llamafactory", ("hparams/*.py",)),
        Schema(
            "transformers",
            ("training_args.py", "training_args_seq2seq.py"),
            ("TrainingArguments", "Seq2SeqTrainingArguments"),
        ),
    ),
    nested={
        "fsdp_config": (
            Schema("transformers", ("training_args.py",), prefix="fsdp_"),
            Schema("accelerate", ("utils/dataclasses.py",), ("FullyShardedDataParallelPlugin",), prefix="fsdp_"),
        ),
        "accelerator_config": (Schema("transformers", ("trainer_pt_utils.py",), ("AcceleratorConfig",)),),
    },
    of_unknown="LLaMA-Factory refuses the file",
    use="llamafactory-cli train {file}",
    notes=(
        "the transformers that it requires (5.6 at most) also counts the first label of each row, which none predicts; "
        "rows whose prompt is masked, as by default, have none",
    ),
)
