"""Lightning's Trainer, as LightningCLI reads its arguments: below ``trainer``."""

from __future__ import annotations

from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused
from advisor.exports.static_graph import ddp_rules

__all__ = ["LIGHTNING"]

_STRATEGY = "trainer.strategy.class_path"
_OPTION = "trainer.strategy.init_args"
_DDP = {
    _STRATEGY: "lightning.pytorch.strategies.DDPStrategy",
    f"{_OPTION}.gradient_as_bucket_view": Given("bucket_views"),
    f"{_OPTION}.find_unused_parameters": False,
}
_STAGE_1 = {_STRATEGY: "lightning.pytorch.strategies.DeepSpeedStrategy", f"{_OPTION}.stage": 1}
_OF_DEEPSPEED = "DeepSpeed's, which holds a float32 copy of each device's part of the parameters"
_DIVIDED_TWICE = (
    "both Lightning and DeepSpeed divide the loss by accumulate_grad_batches: gradients are that many times too small, "
    "which AdamW hardly notices, but gradient_clip_val and other optimizers do"
)
_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks.default_hooks"

LIGHTNING = Target(
    name="lightning",
    title="arguments of Lightning's Trainer",
    library="lightning",
    version="2.6.6",
    formats=(Format.YAML,),
    plain={"trainer.num_nodes": 1, "trainer.strategy": "auto", "trainer.precision": "32-true"},
    rules=(
        adapter("micro_batch", "the Trainer takes no batch size: give your DataLoader batch_size"),
        exported(
            "accumulation_steps",
            {"trainer.accumulate_grad_batches": Given("accumulation_steps")},
            text="Lightning averages the losses of micro-batches, also where they have unequally many targets",
        ),
        exported("gpu_count", {"trainer.devices": Given("gpu_count")}),
        exported("max_grad_norm", {"trainer.gradient_clip_val": Given("max_grad_norm")}),
        exported("device", {"trainer.accelerator": "cpu"}, device="cpu"),
        exported("device", {"trainer.accelerator": "cuda"}),
        exported("precision", {"trainer.precision": "bf16-mixed"}, dtype="bf16"),
        adapter("precision", "on a CPU Lightning computes in bfloat16 in its place", dtype="fp16", device="cpu"),
        exported("precision", {"trainer.precision": "16-mixed"}, dtype="fp16"),
        adapter("precision", 'there is no key: torch.set_float32_matmul_precision("high")', dtype="tf32"),
        approximated(
            "pure_bf16",
            {"trainer.precision": "bf16-true"},
            "the optimizer computes in bfloat16 too, and normalizations with running statistics are in bfloat16",
            rounding="nearest",
        ),
        adapter("pure_bf16", "bf16-true rounds updates to the nearest, which loses small ones", rounding="stochastic"),
        adapter("half_weights", "16-true scales no loss, and computes updates in float16"),
        adapter("float8", "its transformer-engine precision is another library's"),
        adapter("checkpoint", "only FSDPStrategy recomputes blocks, and it is torch's former FSDP"),
        *ddp_rules(_DDP, f"{_OPTION}.static_graph"),
        approximated("zero_1", _STAGE_1, _OF_DEEPSPEED, accumulation_steps=1),
        approximated("zero_1", _STAGE_1, f"{_OF_DEEPSPEED}; {_DIVIDED_TWICE}"),
        adapter("fsdp", "ModelParallelStrategy leaves it to your configure_model to call fully_shard"),
        adapter("gradient_compression", "Lightning registers communication hooks on GPUs alone", device="cpu"),
        *(
            exported(
                "gradient_compression",
                {f"{_OPTION}.ddp_comm_hook": f"{_HOOKS}.{hook}_compress_hook"},
                beside=("ddp",),
                hook=hook,
            )
            for hook in ("fp16", "bf16")
        ),
        adapter("gradient_compression", "the state of PowerSGD is an object, which no file can hold"),
        refused("tensor_parallel", "ModelParallelStrategy leaves it to your configure_model to divide the model"),
        refused("pipeline", "Lightning has no pipeline of stages"),
    ),
    own={"trainer.gradient_clip_val": (), "trainer.accelerator": (), "trainer.num_nodes": ()},
    rivals={"trainer.plugins": "a precision plugin would decide the format"},
    schemas=(Schema("lightning", ("pytorch/trainer/trainer.py",), ("Trainer",)),),
    sections=("trainer",),
    of_unknown="LightningCLI refuses the file",
    use="python train.py fit --config {file}",
    adapter='Trainer(strategy=advisor.integrations.lightning.PolicyStrategy("policy.yaml"), devices=1)'
    ", or ParallelPolicyStrategy for several devices",
    notes=("without LightningCLI: Trainer(**mapping['trainer']), with a strategy object in place of class_path",),
)
