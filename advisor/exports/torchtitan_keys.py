"""torchtitan's command line, which overrides its configuration in Python."""

from __future__ import annotations

from advisor.exports.rules import Format, Given, Target, adapter, approximated, exported, refused

__all__ = ["TORCHTITAN"]

_RECOMPUTES = "activation_checkpoint"
_MIXED = "training.mixed_precision_param"
_SHARDS = "parallelism.data_parallel_shard_degree"
_COMPILED = {"compile.enable": True, "compile.components": "model"}
_BY_FSDP = "the weights are cast as a whole, by fully_shard, instead of the inputs of operators, by autocast"
_OWN_MODELS = "torchtitan has it not, and its models and loop are its own: no adapter reaches them"
_IN_PYTHON = "it is chosen in the configuration function, not on the command line"
_NOT_THERE = (
    "half_weights",
    "checkpoint",
    "residual_checkpoint",
    "sqrt_checkpoint",
    "recursive_checkpoint",
    "optimal_checkpoint",
    "selective_checkpoint",
    "compress_activations",
    "fp8_activations",
    "few_bit_activation",
    "randomized_linear",
    "swap",
    "overlapped_swap",
    "adam_8bit",
    "adam_low_bit",
    "adafactor",
    "host_optimizer",
    "optimizer_in_backward",
    "compile",
    "channels_last",
    "attention_backend",
    "momentum_residual",
    "sparse_reparameterization",
    "qlora",
    "zero_1",
    "gradient_compression",
)
_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
}

TORCHTITAN = Target(
    name="torchtitan",
    title="torchtitan's command line",
    library="torchtitan",
    version="0.3.0",
    formats=(Format.ARGUMENTS,),
    plain={
        "training.dtype": "float32",
        _MIXED: "float32",
        "training.enable_cpu_offload": False,
        "training.disable_cuda_graphs": True,
        "optimizer.implementation": "foreach",
        "compile.enable": False,
        "loss.num_chunks": 1,
        "parallelism.data_parallel_replicate_degree": 1,
        _SHARDS: 1,
        "parallelism.tensor_parallel_degree": 1,
        "parallelism.pipeline_parallel_degree": 1,
        _RECOMPUTES: "none",
    },
    rules=(
        exported(
            "micro_batch",
            {
                "training.local_batch_size": Given("rank_batch"),
                "parallelism.pipeline_parallel_microbatch_size": Given("micro_batch"),
            },
            beside=("pipeline",),
        ),
        exported("micro_batch", {"training.local_batch_size": Given("micro_batch")}),
        exported(
            "accumulation_steps",
            {"training.global_batch_size": Given("global_batch")},
            text="the accumulation follows from the global batch",
        ),
        exported("gpu_count", outside="torchrun --nproc-per-node {gpu_count}"),
        exported("max_grad_norm", {"training.max_norm": "inf"}, max_grad_norm=0.0),
        exported("max_grad_norm", {"training.max_norm": Given("max_grad_norm")}),
        approximated("precision", {_MIXED: "bfloat16"}, _BY_FSDP, dtype="bf16"),
        refused("precision", "torchtitan has no float16", dtype="fp16"),
        refused("precision", _OWN_MODELS, dtype="tf32"),
        approximated(
            "pure_bf16",
            {"training.dtype": "bfloat16", _MIXED: "bfloat16"},
            "the optimizer computes in bfloat16 too",
            rounding="nearest",
        ),
        refused("pure_bf16", "torchtitan rounds no update stochastically", rounding="stochastic"),
        adapter("float8", _IN_PYTHON, scale="rowwise"),
        refused("float8", "torchtitan has only row-wise scales", scale="tensorwise"),
        exported("checkpoint", {_RECOMPUTES: "full"}, every=1),
        approximated(
            "selective_checkpoint",
            {_RECOMPUTES: "selective"},
            "every second matrix product is computed again, too",
            recompute="elementwise",
        ),
        *(
            exported(
                "compile_budget",
                {**_COMPILED, _RECOMPUTES: f"memory-budget --{_RECOMPUTES}.memory_budget {budget}"},
                budget=budget,
            )
            for budget in (0.5, 0.25, 0.1, 0.75)
        ),
        exported("fused_optimizer", {"optimizer.implementation": "fused"}, optimizer="AdamW"),
        adapter("muon", _IN_PYTHON),
        adapter("lora", _IN_PYTHON),
        exported("chunked_cross_entropy", {"loss.num_chunks": Given("chunks")}),
        exported("compile", _COMPILED, scope="blocks"),
        approximated(
            "ddp",
            {"parallelism.data_parallel_replicate_degree": Given("data_degree")},
            "fully_shard replicates the model (HSDP with one shard), in place of DistributedDataParallel",
        ),
        *(
            exported(
                "fsdp",
                {
                    _SHARDS: Given("data_degree"),
                    "parallelism.fsdp_reshard_after_forward": "always" if reshard else "never",
                    **({_MIXED: "bfloat16"} if short else {}),
                    "training.enable_cpu_offload": Given("offload"),
                },
                reshard=reshard,
                mixed_precision="bf16" if short else "none",
            )
            for reshard in (True, False)
            for short in (True, False)
        ),
        approximated(
            "tensor_parallel",
            {
                "parallelism.tensor_parallel_degree": Given("tensor"),
                "parallelism.enable_sequence_parallel": Given("sequence"),
            },
            "the layers are divided by a plan that torchtitan has for each of its models, the vocabulary always",
        ),
        *(
            approximated(
                "pipeline",
                {
                    "parallelism.pipeline_parallel_degree": Given("pipeline"),
                    "parallelism.pipeline_parallel_schedule": name,
                },
                "torchtitan cuts the stages itself, into equally many blocks",
                schedule=schedule,
            )
            for schedule, name in _SCHEDULES.items()
        ),
        refused(
            "pipeline",
            "under its ZBVZeroBubble, torchtitan's chunked loss leaves the last normalization without a gradient",
            schedule="zero_bubble",
        ),
        *(refused(name, _OWN_MODELS) for name in _NOT_THERE),
    ),
    use="torchrun --nproc-per-node {gpu_count} -m torchtitan.train --module llama3 --config llama3_8b $(cat {file})",
    notes=(
        "the arguments follow --module and --config, whose loss must be a ChunkedLossWrapper, as it usually is",
        "with torch 2.15.0 and training.enable_cpu_offload, torchtitan never finishes initializing: torch draws "
        "until all numbers are within bounds, and for parameters on the host each draw gives the same ones",
    ),
)
