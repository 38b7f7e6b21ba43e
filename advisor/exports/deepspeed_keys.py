"""DeepSpeed's ``ds_config.json``."""

from __future__ import annotations

from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused

__all__ = ["DEEPSPEED"]

_STAGE = "zero_optimization.stage"
_OPTIMIZER_AWAY = "zero_optimization.offload_optimizer.device"
_PARAMETERS_AWAY = "zero_optimization.offload_param.device"
_OF_YOUR_OWN = "zero_force_ds_cpu_optimizer"
"""Without it DeepSpeed refuses an optimizer that your code builds, where its state is on the host."""
_ITS_WAY = (
    "DeepSpeed averages gradients in buckets of its own, and holds a float32 copy of each device's part of the "
    "parameters"
)
_SENT_SHORT = "ZeRO then also sends gradients in that format"

DEEPSPEED = Target(
    name="deepspeed",
    title="a DeepSpeed configuration",
    library="deepspeed",
    version="0.19.8",
    formats=(Format.JSON,),
    plain={
        "bf16.enabled": False,
        "fp16.enabled": False,
        "torch_autocast.enabled": False,
        _STAGE: 0,
    },
    rules=(
        exported("micro_batch", {"train_micro_batch_size_per_gpu": Given("micro_batch")}),
        exported("accumulation_steps", {"gradient_accumulation_steps": Given("accumulation_steps")}),
        exported(
            "gpu_count",
            {"train_batch_size": Given("global_batch")},
            text="DeepSpeed refuses to start on another number of devices than this product needs",
            outside="deepspeed --num_gpus {gpu_count}",
        ),
        exported("max_grad_norm", {"gradient_clipping": Given("max_grad_norm")}),
        approximated(
            "precision",
            {"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"},
            _SENT_SHORT,
            beside=("zero_1", "fsdp"),
            dtype="bf16",
        ),
        exported("precision", {"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"}, dtype="bf16"),
        approximated(
            "precision",
            {"torch_autocast.enabled": True, "torch_autocast.dtype": "float16"},
            _SENT_SHORT,
            beside=("zero_1", "fsdp"),
            dtype="fp16",
            max_grad_norm=0.0,
        ),
        adapter(
            "precision",
            "under ZeRO, DeepSpeed clips gradients before it divides them by the scale of the loss, and hardly "
            "anything is left of them: give --max-grad-norm 0",
            beside=("zero_1", "fsdp"),
            dtype="fp16",
        ),
        exported("precision", {"torch_autocast.enabled": True, "torch_autocast.dtype": "float16"}, dtype="fp16"),
        adapter("precision", 'there is no key: torch.set_float32_matmul_precision("high")', dtype="tf32"),
        adapter("checkpoint", "the section activation_checkpointing does nothing unless the model itself calls it"),
        exported(
            "fused_optimizer",
            {"optimizer.type": "AdamW", "optimizer.params.torch_adam": True, "optimizer.params.fused": True},
            text="give its learning rate and weight decay there too, and no optimizer to deepspeed.initialize",
            optimizer="AdamW",
        ),
        approximated(
            "host_optimizer",
            {_STAGE: 2, _OPTIMIZER_AWAY: "cpu", _OF_YOUR_OWN: False},
            "DeepSpeed's own AdamW for CPUs, where it builds the optimizer",
        ),
        approximated("ddp", {_STAGE: 0}, "DeepSpeed averages gradients in buckets of its own"),
        approximated("zero_1", {_STAGE: 1}, _ITS_WAY),
        *(
            approximated(
                "fsdp",
                {
                    _STAGE: stage,
                    **({_OPTIMIZER_AWAY: "cpu", _OF_YOUR_OWN: False} if offload else {}),
                    **({_PARAMETERS_AWAY: "cpu"} if offload and reshard else {}),
                    **({"torch_autocast.enabled": True, "torch_autocast.dtype": "bfloat16"} if short else {}),
                },
                f"{_ITS_WAY}{f'; {_SENT_SHORT}' if short else ''}",
                reshard=reshard,
                mixed_precision="bf16" if short else "none",
                offload=offload,
            )
            for reshard, stage in ((True, 3), (False, 2))
            for short in (False, True)
            for offload in (False, True)
        ),
        *(
            approximated(
                "gradient_compression",
                {"communication_data_type": hook},
                "gradients are cast by DeepSpeed, in buckets of its own",
                hook=hook,
            )
            for hook in ("fp16", "bf16")
        ),
        adapter("gradient_compression", "DeepSpeed has no PowerSGD"),
        refused(
            "tensor_parallel", "DeepSpeed's AutoTP slices layers that it knows by name, and says nothing of others"
        ),
        refused("pipeline", "DeepSpeed pipelines only models that were written as a PipelineModule"),
    ),
    own={"optimizer.type": (), "optimizer.params.torch_adam": (), "gradient_clipping": ()},
    older={
        "zero_optimization.cpu_offload": _OPTIMIZER_AWAY,
        "bfloat16": "bf16",
        "fp32_allreduce": "communication_data_type",
    },
    rivals={
        "amp": "NVIDIA's apex would bring another mixed precision",
        "tensor_parallel": "it would divide the model",
    },
    schemas=(Schema("deepspeed", ("**/constants.py", "**/config.py", "**/*_config.py")),),
    nested={
        "zero_optimization": (Schema("deepspeed", ("runtime/zero/*config.py",)),),
        "zero_optimization.offload_param": (Schema("deepspeed", ("runtime/zero/offload_config.py",)),),
        "zero_optimization.offload_optimizer": (Schema("deepspeed", ("runtime/zero/offload_config.py",)),),
        "bf16": (Schema("deepspeed", ("runtime/precision_config.py",)),),
        "fp16": (Schema("deepspeed", ("runtime/precision_config.py",)),),
    },
    use="deepspeed --num_gpus {gpu_count} train.py --deepspeed_config {file}",
    notes=('"auto" is filled from TrainingArguments; here every number stands in one place',),
)
