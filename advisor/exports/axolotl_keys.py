"""axolotl's YAML, which is built on Hugging Face's Trainer."""

from __future__ import annotations

from advisor.exports.accelerate_keys import NOT_ON_CPUS
from advisor.exports.rules import Format, Given, Schema, Target, adapter, approximated, exported, refused

__all__ = ["AXOLOTL"]

_USE = "axolotl train {file} --launcher torchrun -- --nproc-per-node {gpu_count}"
_LAUNCHED = _USE.replace("{file}", "FILE")
_SEGMENTS = "PYTORCH_ALLOC_CONF=expandable_segments:{0} PYTORCH_CUDA_ALLOC_CONF=expandable_segments:{0}"
_ALL_SHORT = "axolotl loads the weights in the same format, and trains them without a float32 copy"
_BLOCKS_SHORT = f"{_ALL_SHORT}, but for embeddings, normalizations and the output layer"
_SCALED = (
    "axolotl loads the weights in float16, too, and fails in the first step: torch scales no gradients of that format"
)
_FSDP = {
    "fsdp_version": 2,
    "fsdp_config.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    "fsdp_config.reshard_after_forward": Given("reshard"),
    "fsdp_config.offload_params": Given("offload"),
}
_KERNELS = dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"), False)
"""axolotl uses its own by itself, where there is no dropout: they keep other activations, and need a GPU."""
_ADAPTERS = {"lora_r": Given("rank"), "lora_target_linear": True, "lora_dropout": 0.0, **_KERNELS}
_ALPHA = {8: 16, 32: 64}
_OTHER_LAYERS = (
    "axolotl holds the frozen weights in 16 bits beside bf16 or fp16, and adds adapters to every linear layer but the "
    "output layer, momadvise only to those larger than their adapters"
)

AXOLOTL = Target(
    name="axolotl",
    title="an axolotl configuration",
    library="axolotl",
    version="0.19.0",
    formats=(Format.YAML,),
    plain={
        "auto_find_batch_size": False,
        "bf16": False,
        "fp16": False,
        "tf32": False,
        "fp8": False,
        "gradient_checkpointing": False,
        "activation_offloading": False,
        "optimizer": "adamw_torch",
        "torch_compile": False,
        "chunked_cross_entropy": False,
    },
    rules=(
        exported("micro_batch", {"micro_batch_size": Given("micro_batch")}),
        exported(
            "accumulation_steps",
            {"gradient_accumulation_steps": Given("accumulation_steps")},
            text="axolotl averages the losses of micro-batches, also where they have unequally many targets",
        ),
        exported("gpu_count", outside=_LAUNCHED, beside=("expandable_segments",)),
        exported(
            "gpu_count",
            outside=f"{_SEGMENTS.format(False)} {_LAUNCHED}",
            text="axolotl sets one of these variables that is not set, to expandable segments and rounded sizes",
        ),
        exported(
            "max_grad_norm",
            {"max_grad_norm": Given("max_grad_norm")},
            text="where a file says nothing of it, the Trainer clips to 1.0: to go on so, give --max-grad-norm 1",
            max_grad_norm=0.0,
        ),
        exported("max_grad_norm", {"max_grad_norm": Given("max_grad_norm")}),
        approximated("precision", {"bf16": True}, _ALL_SHORT, beside=("fsdp",), dtype="bf16"),
        approximated("precision", {"bf16": True}, _BLOCKS_SHORT, dtype="bf16"),
        adapter("precision", "on a CPU axolotl fails with it", dtype="fp16", device="cpu"),
        approximated(
            "precision",
            {"fp16": True},
            "axolotl loads the frozen weights in the same format",
            beside=("lora", "qlora"),
            dtype="fp16",
        ),
        adapter("precision", _SCALED, dtype="fp16"),
        exported("precision", {"tf32": True}, dtype="tf32"),
        approximated(
            "pure_bf16",
            {"bf16": True},
            "the optimizer computes in bfloat16 too; embeddings, normalizations and the output layer stay in float32",
            rounding="nearest",
        ),
        approximated(
            "float8",
            {"fp8": True, "bf16": True},
            "the first and the last linear layer stay as they are, and the weights are bfloat16; nothing is padded, so "
            "that the tokens of a micro-batch must be a multiple of 16",
            scale="tensorwise",
        ),
        exported("checkpoint", {"fsdp_config.activation_checkpointing": True}, beside=("fsdp",), every=1),
        exported(
            "checkpoint",
            {"gradient_checkpointing": True, "gradient_checkpointing_kwargs.use_reentrant": False},
            every=1,
        ),
        adapter("checkpoint", "axolotl recomputes every block or none"),
        adapter("selective_checkpoint", "axolotl's selective_checkpointing keeps attention and recomputes the rest"),
        adapter("swap", "activation_offloading also runs every block again"),
        approximated("adam_8bit", {"optimizer": "adamw_bnb_8bit"}, "the moments of embeddings stay in 32 bits"),
        exported("adam_low_bit", {"optimizer": "adamw_torch_8bit"}, state="8bit"),
        approximated(
            "adam_low_bit",
            {"optimizer": "adamw_torch_4bit"},
            "256 numbers share a scale, in place of torchao's usual 128",
            state="4bit",
        ),
        exported("adam_low_bit", {"optimizer": "ao_adamw_fp8"}, state="fp8"),
        approximated(
            "adafactor",
            {"optimizer": "adafactor"},
            "transformers' own Adafactor: its steps are not relative to the size of a parameter, so that another "
            "learning rate is needed",
        ),
        approximated("muon", {"optimizer": "muon"}, "axolotl's own Muon, whose steps are scaled otherwise"),
        exported("fused_optimizer", {"optimizer": "adamw_torch_fused"}, optimizer="AdamW"),
        approximated(
            "chunked_cross_entropy",
            {"chunked_cross_entropy": True, "chunked_cross_entropy_num_chunks": Given("chunks")},
            "the logits exist as a whole, and only their float32 copies are made in chunks",
        ),
        exported("compile", {"torch_compile": True}, scope="model"),
        *(
            approximated("lora", {"adapter": "lora", **_ADAPTERS, "lora_alpha": alpha}, _OTHER_LAYERS, rank=rank)
            for rank, alpha in _ALPHA.items()
        ),
        *(
            approximated(
                "qlora",
                {"adapter": "qlora", "load_in_4bit": True, **_ADAPTERS, "lora_alpha": alpha},
                _OTHER_LAYERS,
                rank=rank,
            )
            for rank, alpha in _ALPHA.items()
        ),
        exported(
            "expandable_segments",
            outside=f"{_SEGMENTS.format(True)} in the environment",
            text="beside the first alone, axolotl sets the second, and rounds sizes",
        ),
        adapter(
            "ddp", "axolotl gives each process the device of its number, and CPUs have none: it fails", device="cpu"
        ),
        exported("ddp", {"ddp_find_unused_parameters": False}, bucket_views=False, static_graph=False),
        approximated(
            "ddp",
            {"ddp_find_unused_parameters": False},
            "axolotl has no key for views into the buffers that are sent, or for a static graph",
        ),
        adapter("zero_1", "axolotl takes it from a DeepSpeed configuration: export to deepspeed"),
        adapter("fsdp", NOT_ON_CPUS, device="cpu"),
        exported("fsdp", _FSDP, mixed_precision="none"),
        approximated("fsdp", {**_FSDP, "bf16": True}, _ALL_SHORT, mixed_precision="bf16"),
        refused("tensor_parallel", "tensor_parallel_size slices only models that transformers has plans for"),
        refused("pipeline", "axolotl has no pipeline of stages"),
    ),
    own={
        "optimizer": (
            "adamw_torch_fused",
            "adamw_bnb_8bit",
            "adamw_8bit",
            "adamw_torch_8bit",
            "adamw_torch_4bit",
            "ao_adamw_8bit",
            "ao_adamw_4bit",
            "ao_adamw_fp8",
        ),
        "max_grad_norm": (),
        "adapter": (),
        "load_in_4bit": (),
        "lora_r": (),
        "lora_alpha": (),
        "lora_dropout": (),
        "lora_target_linear": (),
    },
    older={
        "batch_size": "gradient_accumulation_steps",
        "fsdp": "fsdp_config",
        "fsdp_config.version": "fsdp_version",
        "fsdp_config.fsdp_version": "fsdp_version",
        "fsdp_config.fsdp_auto_wrap_policy": "fsdp_config.auto_wrap_policy",
        "fsdp_config.fsdp_reshard_after_forward": "fsdp_config.reshard_after_forward",
        "fsdp_config.fsdp_offload_params": "fsdp_config.offload_params",
        "fsdp_config.fsdp_activation_checkpointing": "fsdp_config.activation_checkpointing",
    },
    rivals={
        "deepspeed": "DeepSpeed would bring its own optimizer and sharding; export to deepspeed instead",
        "bfloat16": "16-bit weights, which bf16 decides",
        "float16": "16-bit weights, which fp16 decides",
        "selective_checkpointing": "another recomputation",
        "load_in_8bit": "8-bit weights, which the policy does not have",
        "layer_offloading": "it moves layers to the host",
        "cut_cross_entropy": "another loss",
        "liger_fused_linear_cross_entropy": "another loss",
        "liger_cross_entropy": "another loss",
        "flash_attn_cross_entropy": "another loss",
        "tiled_mlp": "it recomputes parts of the blocks",
        "torch_compile_backend": "setting it compiles the model, whatever torch_compile says",
        "torch_compile_mode": "setting it compiles the model, whatever torch_compile says",
        "tensor_parallel_size": "it would divide the model",
    },
    schemas=(Schema("axolotl", ("utils/schemas/**/*.py", "integrations/**/args.py")),),
    nested={"fsdp_config": (Schema("axolotl", ("utils/schemas/fsdp.py",), ("FSDPConfig",), prefix="fsdp_"),)},
    use=_USE,
    notes=(
        "sequence_len and sample_packing decide the memory too: measure with rows as long as these make them",
        "one process of axolotl divides the model among all devices that it sees, and fails: for a policy of one "
        "device show it only one, as with CUDA_VISIBLE_DEVICES=0",
    ),
)
