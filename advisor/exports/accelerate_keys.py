"""The file that ``accelerate config`` writes and ``accelerate launch --config_file`` reads."""

from __future__ import annotations

from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused

__all__ = ["ACCELERATE", "FULL_ON_CPUS", "NOT_ON_CPUS"]

FULL_ON_CPUS = "accelerate computes no float16 on CPUs, and says nothing: training would be in float32"
NOT_ON_CPUS = "accelerate uses no FSDP on CPUs, and says nothing: each process would hold the whole model"
"""Also of the trainers that are built on it."""

_LOADER = "accelerate reads no batch size: give your DataLoader batch_size"
_DYNAMO = "dynamo_config.dynamo_"
_FSDP = {
    "distributed_type": "FSDP",
    "fsdp_config.fsdp_version": 2,
    "fsdp_config.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_config.fsdp_reshard_after_forward": Given("reshard"),
    "fsdp_config.fsdp_offload_params": Given("offload"),
}
_BF16_UNDER_FSDP = (
    "with FSDP, accelerate also gathers parameters and averages gradients in that format; momadvise averages in float32"
)
_FP16_UNDER_FSDP = f"{_BF16_UNDER_FSDP}, and skips fewer of the first steps, whose scaled gradients overflow in float16"

_FP8 = "fp8_config"
_FLOAT8 = {"mixed_precision": "fp8", f"{_FP8}.backend": "AO"}

_LAUNCH = ("commands/launch.py", "commands/config/cluster.py")

_NO_OPTIONS = "the file has no options of DistributedDataParallel: DistributedDataParallelKwargs"
_WITHOUT_VIEWS = f"{_NO_OPTIONS}(gradient_as_bucket_view=True) saves a copy of all gradients"
_WITHOUT_STATIC_GRAPH = f"{_NO_OPTIONS}(static_graph=True)"

ACCELERATE = Target(
    name="accelerate",
    title="an accelerate configuration",
    library="accelerate",
    version="1.15.0",
    formats=(Format.YAML, Format.JSON),
    plain={
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "NO",
        "num_machines": 1,
        "machine_rank": 0,
        "mixed_precision": "no",
        "dynamo_config.dynamo_backend": "NO",
    },
    rules=(
        adapter("micro_batch", _LOADER),
        exported("accumulation_steps", text="one step: accelerate's own default", accumulation_steps=1),
        adapter("accumulation_steps", "accelerate reads no such key: Accelerator(gradient_accumulation_steps=...)"),
        exported("gpu_count", {"num_processes": Given("gpu_count")}),
        exported("max_grad_norm", text="none: accelerate clips only where your loop does", max_grad_norm=0.0),
        adapter("max_grad_norm", "accelerate reads no such key: accelerator.clip_grad_norm_(parameters, norm)"),
        exported("device", {"use_cpu": True}, device="cpu"),
        exported("device", {"use_cpu": False}),
        adapter("precision", FULL_ON_CPUS, dtype="fp16", device="cpu"),
        approximated("precision", {"mixed_precision": "bf16"}, _BF16_UNDER_FSDP, beside=("fsdp",), dtype="bf16"),
        approximated("precision", {"mixed_precision": "fp16"}, _FP16_UNDER_FSDP, beside=("fsdp",), dtype="fp16"),
        *(
            approximated(
                "precision",
                {"mixed_precision": "fp8"},
                "beside float8, accelerate computes everything else in bfloat16",
                beside=("float8",),
                dtype=dtype,
            )
            for dtype in ("bf16", "fp16")
        ),
        exported("precision", {"mixed_precision": "bf16"}, dtype="bf16"),
        exported("precision", {"mixed_precision": "fp16"}, dtype="fp16"),
        adapter("precision", 'tf32 is no mixed precision: torch.set_float32_matmul_precision("high")', dtype="tf32"),
        approximated(
            "float8",
            {
                **_FLOAT8,
                f"{_FP8}.enable_fsdp_float8_all_gather": True,
                "fsdp_config.fsdp_cpu_ram_efficient_loading": False,  # or accelerate refuses float8
            },
            "the first and the last linear layer stay as they are, and everything else is computed in bfloat16",
            beside=("fsdp",),
            scale="tensorwise",
        ),
        approximated(
            "float8",
            # Its default is True: layers would get weights of another kind, which the optimizer that was built does not
            # have, and never move.
            {**_FLOAT8, f"{_FP8}.enable_fsdp_float8_all_gather": False},
            "the first and the last linear layer stay as they are, and everything else is computed in bfloat16",
            scale="tensorwise",
        ),
        adapter("float8", "the file has no recipe: AORecipeKwargs(config=...)", scale="rowwise"),
        exported("checkpoint", {"fsdp_config.fsdp_activation_checkpointing": True}, beside=("fsdp",), every=1),
        adapter("checkpoint", "accelerate recomputes blocks only under FSDP, and then every one"),
        exported("compile", {f"{_DYNAMO}backend": "INDUCTOR"}, scope="model"),
        exported(
            "compile", {f"{_DYNAMO}backend": "INDUCTOR", f"{_DYNAMO}use_regional_compilation": True}, scope="blocks"
        ),
        exported("ddp", {"distributed_type": "MULTI_CPU"}, device="cpu", bucket_views=False, static_graph=False),
        exported("ddp", {"distributed_type": "MULTI_GPU"}, bucket_views=False, static_graph=False),
        approximated("ddp", {"distributed_type": "MULTI_CPU"}, _WITHOUT_VIEWS, device="cpu", static_graph=False),
        approximated("ddp", {"distributed_type": "MULTI_CPU"}, _WITHOUT_STATIC_GRAPH, device="cpu"),
        approximated("ddp", {"distributed_type": "MULTI_GPU"}, _WITHOUT_VIEWS, static_graph=False),
        approximated("ddp", {"distributed_type": "MULTI_GPU"}, _WITHOUT_STATIC_GRAPH),
        adapter("fsdp", NOT_ON_CPUS, device="cpu"),
        exported("fsdp", _FSDP, mixed_precision="none"),
        approximated(
            "fsdp",
            {**_FSDP, "mixed_precision": "fp8"},
            f"{_BF16_UNDER_FSDP}; linear layers in float8 are gathered so",
            beside=("float8",),
            mixed_precision="bf16",
        ),
        approximated("fsdp", {**_FSDP, "mixed_precision": "bf16"}, _BF16_UNDER_FSDP, mixed_precision="bf16"),
        adapter("gradient_compression", "no key: DistributedDataParallelKwargs(comm_hook=...)"),
        refused("tensor_parallel", "accelerate divides only models that were loaded in slices (tp_plan)"),
        refused("pipeline", "accelerate's own configuration has no pipeline for training"),
    ),
    own={"num_machines": (), "machine_rank": (), "use_cpu": ()},
    older={"fp16": "mixed_precision", "dynamo_backend": "dynamo_config"},
    rivals={
        "deepspeed_config": "DeepSpeed would bring its own optimizer and sharding; export to deepspeed instead",
        "megatron_lm_config": "Megatron would divide the model otherwise",
        "parallelism_config": "its mesh would be another than the policy's",
    },
    schemas=(
        Schema(
            "accelerate",
            ("commands/config/config_args.py",),
            ("BaseConfig", "ClusterConfig", "SageMakerConfig"),
        ),
    ),
    nested={
        "fsdp_config": (Schema("accelerate", _LAUNCH, prefix="fsdp_"),),
        "dynamo_config": (Schema("accelerate", _LAUNCH, prefix="dynamo_"),),
        "fp8_config": (Schema("accelerate", _LAUNCH, prefix="fp8_"),),
    },
    of_unknown="accelerate launch refuses the file",
    use="accelerate launch --config_file {file} train.py",
    adapter='advisor.integrations.accelerate.prepare(model, "policy.yaml", accelerator=accelerator)',
)
