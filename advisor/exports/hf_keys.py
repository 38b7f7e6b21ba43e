"""Hugging Face's TrainingArguments, also those of trl."""

from __future__ import annotations

from advisor.exports.accelerate_keys import FULL_ON_CPUS, NOT_ON_CPUS
from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused
from advisor.exports.static_graph import ddp_rules

__all__ = ["HF", "OPTIMIZERS", "TRAINING_ARGUMENTS"]

_CHECKPOINTING = {
    "activation_checkpointing": True,
    "activation_checkpointing_kwargs.use_reentrant": False,
}
_FIRST_OF_K = "transformers wraps the first block of every k, momadvise the last: one more where k does not divide them"
_NO_MESH = (
    "the model is divided when it is loaded (from_pretrained), and only for models that transformers has plans for"
)

_DDP = {"ddp_find_unused_parameters": False}
_FSDP = {
    "fsdp": True,
    "fsdp_config.version": 2,
    "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_config.reshard_after_forward": Given("reshard"),
    "fsdp_config.cpu_offload": Given("offload"),
}
_BF16_UNDER_FSDP = (
    "with FSDP, accelerate also gathers parameters and averages gradients in that format; momadvise averages in float32"
)
_FP16_UNDER_FSDP = f"{_BF16_UNDER_FSDP}, and skips fewer of the first steps, whose scaled gradients overflow in float16"
_LIGER = {
    "use_liger_kernel": True,
    "liger_kernel_config.fused_linear_cross_entropy": True,
    "liger_kernel_config.cross_entropy": False,
    "liger_kernel_config.rope": False,
    "liger_kernel_config.rms_norm": False,
    "liger_kernel_config.swiglu": False,
}

OPTIMIZERS = (
    approximated("adam_8bit", {"optim": "adamw_bnb_8bit"}, "the Trainer keeps the moments of embeddings in 32 bits"),
    exported("adam_low_bit", {"optim": "adamw_torch_8bit"}, state="8bit"),
    approximated(
        "adam_low_bit",
        {"optim": "adamw_torch_4bit"},
        "256 numbers share a scale, in place of torchao's usual 128",
        state="4bit",
    ),
    adapter("adam_low_bit", "the Trainer has no name for torchao's 8-bit floats", state="fp8"),
    approximated(
        "adafactor",
        {"optim": "adafactor"},
        "transformers' own Adafactor: its steps are not relative to the size of a parameter, so that another "
        "learning rate is needed",
    ),
    exported("fused_optimizer", {"optim": "adamw_torch_fused"}, optimizer="AdamW"),
)
"""Also of the trainers that are built on this one."""

HF = Target(
    name="hf",
    title="TrainingArguments",
    library="transformers",
    version="5.23.0",
    formats=(Format.YAML, Format.JSON),
    plain={
        "auto_find_batch_size": False,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "activation_checkpointing": False,
        "optim": "adamw_torch",
        "torch_compile": False,
        "use_liger_kernel": False,
        "fsdp": False,
    },
    rules=(
        exported("micro_batch", {"per_device_train_batch_size": Given("micro_batch")}),
        exported("accumulation_steps", {"gradient_accumulation_steps": Given("accumulation_steps")}),
        exported(
            "gpu_count",
            text="without a launcher the Trainer would use every visible GPU, with DataParallel",
            outside="torchrun --nproc-per-node {gpu_count}",
        ),
        exported(
            "max_grad_norm",
            {"max_grad_norm": Given("max_grad_norm")},
            text="where a file says nothing of it, the Trainer clips to 1.0: to go on so, give --max-grad-norm 1",
            max_grad_norm=0.0,
        ),
        exported("max_grad_norm", {"max_grad_norm": Given("max_grad_norm")}),
        exported("device", {"use_cpu": True}, device="cpu"),
        exported("device", {"use_cpu": False}),
        adapter("precision", FULL_ON_CPUS, dtype="fp16", device="cpu"),
        approximated("precision", {"bf16": True}, _BF16_UNDER_FSDP, beside=("fsdp",), dtype="bf16"),
        approximated("precision", {"fp16": True}, _FP16_UNDER_FSDP, beside=("fsdp",), dtype="fp16"),
        exported("precision", {"bf16": True}, dtype="bf16"),
        exported("precision", {"fp16": True}, dtype="fp16"),
        exported("precision", {"tf32": True}, dtype="tf32"),
        exported("checkpoint", {"fsdp_config.activation_checkpointing": True}, beside=("fsdp",), every=1),
        exported("checkpoint", _CHECKPOINTING, every=1),
        exported(
            "checkpoint",
            {**_CHECKPOINTING, "activation_checkpointing_kwargs.every_n_layers": Given("every")},
            text=_FIRST_OF_K,
        ),
        adapter("swap", "its nearest key, activation_checkpointing_kwargs.offload, also runs every block again"),
        *OPTIMIZERS,
        approximated(
            "chunked_cross_entropy",
            _LIGER,
            "Liger's kernel, which chooses the number of chunks itself and needs the package liger-kernel and a GPU",
        ),
        exported("compile", {"torch_compile": True}, scope="model"),
        exported(
            "compile",
            {"torch_compile": True},
            outside="ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION=true in the environment",
            scope="blocks",
        ),
        *ddp_rules(_DDP, "ddp_static_graph", bucket_views=False),
        *ddp_rules(
            _DDP,
            "ddp_static_graph",
            "there is no key for gradients that are views into the buffers that are sent: a copy of all gradients more",
        ),
        adapter("fsdp", NOT_ON_CPUS, device="cpu"),
        exported("fsdp", _FSDP, mixed_precision="none"),
        approximated("fsdp", {**_FSDP, "bf16": True}, _BF16_UNDER_FSDP, mixed_precision="bf16"),
        refused("tensor_parallel", _NO_MESH),
        refused("pipeline", "the Trainer has no pipeline of stages"),
    ),
    own={
        "optim": ("adamw_torch_fused", "adamw_bnb_8bit", "adamw_8bit", "adamw_torch_8bit", "adamw_torch_4bit"),
        "max_grad_norm": (),
        "use_cpu": (),
    },
    older={
        "gradient_checkpointing": "activation_checkpointing",
        "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
        "fsdp_config.fsdp_version": "fsdp_config.version",
        "fsdp_config.fsdp_auto_wrap_policy": "fsdp_config.auto_wrap_policy",
        "fsdp_config.fsdp_reshard_after_forward": "fsdp_config.reshard_after_forward",
        "fsdp_config.fsdp_cpu_offload": "fsdp_config.cpu_offload",
        "fsdp_config.fsdp_activation_checkpointing": "fsdp_config.activation_checkpointing",
    },
    rivals={
        "deepspeed": "DeepSpeed would bring its own optimizer and sharding; export to deepspeed instead",
        "activation_checkpointing_kwargs.offload": "the policy moves no activations of blocks to the host",
        "torch_compile_backend": "setting it compiles the model, whatever torch_compile says",
        "torch_compile_mode": "setting it compiles the model, whatever torch_compile says",
        "optim_args": "options of another optimizer",
        "optim_target_modules": "an option of another optimizer",
    },
    schemas=(
        Schema("transformers", ("training_args.py",), ("TrainingArguments",)),
        Schema("trl", ("**/*_config.py",)),
    ),
    nested={
        "fsdp_config": (
            Schema("transformers", ("training_args.py",), prefix="fsdp_"),
            Schema("accelerate", ("utils/dataclasses.py",), ("FullyShardedDataParallelPlugin",), prefix="fsdp_"),
        ),
        "accelerator_config": (Schema("transformers", ("trainer_pt_utils.py",), ("AcceleratorConfig",)),),
    },
    of_unknown="HfArgumentParser refuses the file, unless another dataclass of your script has it",
    use="torchrun --nproc-per-node {gpu_count} train.py {file}",
    adapter='advisor.integrations.hf.attach(trainer, "policy.yaml")',
    notes=(
        "read it with HfArgumentParser(TrainingArguments).parse_yaml_file, or TrainingArguments(**mapping)",
        "of a language model whose class is not named ...ForCausalLM, such as GPT2LMHeadModel, the Trainer also counts "
        'the first label of each row, which none predicts: model.loss_type = "ForCausalLM" makes its loss a mean again',
        "with accumulation, of a model whose own loss does not divide by all targets of a step (most classifiers), the "
        "Trainer adds up the losses of micro-batches: trainer.model_accepts_loss_kwargs = False makes them a mean",
    ),
)

TRAINING_ARGUMENTS = HF
