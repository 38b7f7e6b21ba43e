"""What a probe trial learned about a workload: the facts that methods judge themselves by."""

from __future__ import annotations

import msgspec

from advisor.hardware.rates import DeviceRates
from advisor.workload.batch_layout import BatchLayout

__all__ = ["Facts"]


class Facts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts about the model, its loss and its optimizer, read in the worker and used by the parent.

    Attributes:
        model_class: Class name of the model.
        parameter_count: Distinct parameters (tied weights counted once).
        trainable_parameter_count: Those that require a gradient.
        block_class: Class name of the repeated block, or ``None`` if no repetition was found.
        block_count: Number of those blocks (0 without).
        attention_count: Number of attention modules found.
        has_batchnorm: Whether running statistics are updated in the forward pass.
        has_dropout: Whether a dropout with p > 0 exists.
        optimizer_class: Qualified class name of the workload's optimizer, e.g. ``"torch.optim.adamw.AdamW"``.
        optimizer_options: Its options that decide what can replace it, e.g. ``{"amsgrad": False}``.
        custom_loss: Whether the workload defines ``compute_loss``.
        linear_head: Whether the loss is exposed as a linear head and its inputs, so that it can be chunked.
        linear_head_reason: Why not, when it is not (or why it is trusted, when it is).
        tokens_per_sample: Tokens of one sample when the batch has token ids, else ``None``.
        default_batch: The workload's own ``BATCH_SIZE``, or ``None``.
        first_loss: Loss of the first batch; ``None`` if plain training does not fit at the smallest batch.
        module_counts: Qualified class name of a module -> how many the model has, e.g. ``{"torch.nn.Linear": 12}``.
        function_counts: Name of a torch function -> how often one forward pass calls it, inside of modules too, e.g.
            ``{"scaled_dot_product_attention": 12}``; empty if plain training does not fit.
        matrices: Qualified class name of a linear layer or convolution -> the distinct shapes (outputs, inputs) of
            those with a weight of their own, e.g. ``{"torch.nn.Linear": ((64, 64), (256, 64))}``.
        hidden_matrices: Trained parameters in the blocks' matrices; ``None`` if not counted.
        parameter_dtypes: Float formats of the parameters, e.g. ``("float32",)``.
        chain_length: Blocks that run in sequence, each only on the output of the one before; 0 if they do not.
        chain_reason: Why not, when they do not.
        staged_blocks: Blocks that can be in stages of a pipeline: each called once, on what is computed from what the
            one before it returned, whatever else they are given and return; 0 if they do not.
        staged_reason: Why not, when they cannot.
        shape_keeping_blocks: Blocks of the chain whose output has the shape of their input.
        tensor_degrees: Devices that can divide each layer -> the share of the parameters that they slice; the rest is
            whole on each.
        tensor_plans: Devices that can -> how, as what divides layers keeps it in a policy.
        tensor_refusals: Numbers of devices that cannot -> why not, e.g. ``"4 devices cannot share 2 heads"``.
        tensor_whole: Numbers of devices that can -> which share of the blocks stays whole all the same, and why.
        sequence_refusals: Numbers of devices that cannot divide the tokens of a sample between layers -> why not.
        vocabulary_refusals: Numbers of devices that cannot share the rows of embedding and output layer -> why not.
        compiler: Why ``torch.compile`` cannot make kernels here; empty if it can.
        matmul_flops_per_second: Number format -> rate of a large matrix product measured on this device, e.g.
            ``{"float32": 1.2e11, "bfloat16": 1.1e10}``; a format that the device only emulates shows here.
        device_rates: All measured rates of the device, for predictions of time; ``None`` if not measured.
        workload_options: Those of ``compute_loss``, ``build_optimizer``, ``count_targets``, ``linear_head``,
            ``max_grad_norm`` and ``blocks`` that the workload defines: they must be passed when a policy is applied.
            A clipping that the user states beside the model has its value: ``"max_grad_norm=1.0"``; likewise a device
            that a wrapper would not choose.
        size_arguments: Function (``build_model``, ``make_batch``; ``config`` for a Hugging Face model) -> the
            arguments in ``SIZES`` that it takes.
        libraries: Optional library that the search's methods need -> version, or ``"error: ..."`` when importing it
            failed; absent if not installed.
    """

    model_class: str
    parameter_count: int
    parameter_bytes: int
    trainable_parameter_count: int
    buffer_bytes: int
    block_class: str | None
    block_count: int
    attention_count: int
    has_batchnorm: bool
    has_dropout: bool
    optimizer_class: str
    optimizer_options: dict[str, bool | int | float | str | None]
    max_grad_norm: float | None
    custom_loss: bool
    linear_head: bool
    linear_head_reason: str
    tokens_per_sample: int | None
    default_batch: int | None
    first_loss: float | None
    module_counts: dict[str, int] = {}
    function_counts: dict[str, int] = {}
    matrices: dict[str, tuple[tuple[int, int], ...]] = {}
    hidden_matrices: int | None = None
    parameter_dtypes: tuple[str, ...] = ("float32",)
    chain_length: int = 0
    chain_reason: str = ""
    staged_blocks: int = 0
    staged_reason: str = ""
    shape_keeping_blocks: int = 0
    tensor_degrees: dict[int, float] = {}
    tensor_plans: dict[int, str] = {}
    tensor_refusals: dict[int, str] = {}
    tensor_whole: dict[int, str] = {}
    sequence_refusals: dict[int, str] = {}
    vocabulary_refusals: dict[int, str] = {}
    compiler: str = ""
    matmul_flops_per_second: dict[str, float] = {}
    device_rates: DeviceRates | None = None
    torch_version: str
    workload_options: tuple[str, ...] = ()
    size_arguments: dict[str, tuple[str, ...]] = {}
    batch_layout: BatchLayout = BatchLayout(dims={}, counted_by="")
    libraries: dict[str, str]
