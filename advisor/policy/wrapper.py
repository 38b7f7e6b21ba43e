"""Emit ``wrapper.py``: a small, readable file that applies one policy to a model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from advisor.files import write_whole
from advisor.methods.catalogue import get_method
from advisor.policy.policy import Policy
from advisor.workload.batch_layout import BatchLayout

__all__ = ["apply_lines", "size_lines", "wrapper_source", "write_wrapper"]

_TEMPLATE = '''"""{headline}

{details}

Use it::

    {usage}
"""

import advisor

POLICY = advisor.Policy(
{policy}
)


{about_batches}def prepare(model, **options):
    """Apply the policy to `model` (in place) and return the training.

    Options, all optional: device, build_optimizer(parameters), compute_loss(model, batch), count_targets(batch),
    linear_head(model, batch), max_grad_norm, blocks. They are explained in `help(advisor.apply_policy)`.

    In a custom loop, instead of `training.step(batch)`:
        for micro_batch in training.split(batch):
            loss = training.forward(micro_batch)  # scaled to its share: do not divide by their number
            training.backward(loss)
        training.optimizer_step()

    `training.model` and `training.optimizer` are yours to schedule, evaluate and save;
{state}
    """
{check}    return advisor.apply_policy(POLICY, model, {passed}**options)
'''

_STATE = """    `training.state_dict()["model"]` loads into a plain model."""
_STATE_OF_SEVERAL = """\
    `training.state_dict()["model"]` loads into a plain model: every process calls it, and rank 0 gets it. In a
    custom loop, all passes but the last one go inside `with training.accumulating():`. To evaluate, every process calls
    `training.evaluate(lambda model: model(...))`."""

_CHECK = """\
    missing = [name for name in {names!r} if name not in options]
    if missing:
        raise advisor.UserError(
            "prepare must be given " + ", ".join(missing) + " as well, with which this policy was measured: "
            {line}
        )
"""

_CONSTANTS = {"max_grad_norm": "MAX_GRAD_NORM", "blocks": "BLOCKS"}
"""Options of ``prepare`` that a workload states as constants."""


def apply_lines(policy: Policy, options: Sequence[str], machines: int = 1) -> tuple[str, ...]:
    """Python lines that apply a wrapper.

    Args:
        policy: The policy it applies.
        options: What the workload defines itself (``Facts.workload_options``): without them, training would use another
            loss or optimizer than the measured one.
        machines: How many of them have equal shares of the policy's devices.
    """
    passed = "".join(f", {one}" if "=" in one else f", {one}={_CONSTANTS.get(one, one)}" for one in options)
    where = "as you build it today" if all("=" in one for one in options) else "as in your model file"
    count = policy.gpu_count
    own = policy.global_batch // policy.data_degree
    samples = "1 sample" if own == 1 else f"{own} samples"
    start: tuple[str, ...] = ()
    if count > 1:
        samples = f"this process's {own} of {policy.global_batch} samples"
        if policy.axes.model_degree > 1:
            samples += ", the same for all processes that hold one model (`training.world.data.rank`)"
        start = (f"torch.distributed.init_process_group()  # {count} processes: {_torchrun(count, machines)} train.py",)
    return (
        "from wrapper import prepare  # wrapper.py, copied next to your code",
        *start,
        f"training = prepare(model{passed})  # a plain model; {where}",
        f"loss = training.step(batch)  # forward, backward and optimizer step; batch: {samples} on the CPU",
    )


def size_lines(size: Mapping[str, int | float], takers: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Python lines that build a model and its batches at a size; none for the model as it is.

    Args:
        size: Arguments of ``build_model`` and ``make_batch``.
        takers: Function, or ``config`` of a Hugging Face model -> the arguments it takes (``Facts.size_arguments``).
    """

    def call(role: str, *first: str) -> str:
        passed = [f"{name}={value!r}" for name, value in size.items() if name in takers.get(role, ())]
        return f"{role}({', '.join((*first, *passed))})" if passed else ""

    lines = []
    if configured := [f"{name}={value!r}" for name, value in size.items() if name in takers.get("config", ())]:
        lines.append(f"# model: from its config with {', '.join(configured)}; a head stays as wide as it is")
    if model := call("build_model"):
        lines.append(f"model = {model}  # the size that was measured")
    if batch := call("make_batch", "samples"):
        lines.append(f"batch = {batch}")
    return tuple(lines)


def wrapper_source(
    policy: Policy,
    *,
    headline: str,
    details: str,
    options: Sequence[str] = (),
    size: Sequence[str] = (),
    machines: int = 1,
    layout: BatchLayout | None = None,
) -> str:
    """The text of the wrapper.

    Args:
        policy: The policy it applies.
        headline: First line of its docstring.
        details: Measurements and their origin, for a reader.
        options: What the workload defines itself (``Facts.workload_options``).
        size: Result of :func:`size_lines`.
        machines: How many of them have equal shares of the policy's devices.
        layout: Where a batch has its samples, and how its loss follows from those of its micro-batches.
    """
    lines = ["    methods=("]
    for method in policy.methods:
        arguments = [json.dumps(method.name)]
        arguments += [f"{name}={value!r}" for name, value in sorted(method.parameters.items())]
        lines.append(f"        advisor.use({', '.join(arguments)}),  # {get_method(method.name).summary}")
    lines.append("    ),")
    if not policy.methods:
        lines = ["    methods=(),  # plain training"]
    lines.append(f"    micro_batch={policy.micro_batch},  # samples per forward pass")
    lines.append(f"    accumulation_steps={policy.accumulation_steps},  # forward-backward passes per optimizer step")
    if policy.gpu_count > 1:
        lines.append(f"    gpu_count={policy.gpu_count},  # one process each: {_torchrun(policy.gpu_count, machines)}")
    if policy.mesh is not msgspec.UNSET:
        degrees = ", ".join(f"{axis}={degree}" for axis, degree in msgspec.to_builtins(policy.mesh).items())
        lines.append(f"    mesh=advisor.Mesh({degrees}),  # {policy.mesh.label(policy.gpu_count)}")
    if policy.settled:
        lines.append("    settled={  # what methods found out in their first step when they were measured")
        lines += [f"        {json.dumps(name)}: {text!r}," for name, text in sorted(policy.settled.items())]
        lines.append("    },")
    return _TEMPLATE.format(
        headline=_inside_docstring(headline),
        details=_inside_docstring(details),
        state=_STATE if policy.gpu_count == 1 else _STATE_OF_SEVERAL,
        policy="\n".join(lines),
        about_batches=_about_batches(layout),
        check=_check(policy, options, machines),
        passed=_passed(layout),
        usage="\n    ".join((*size, *apply_lines(policy, options, machines))),
    )


def _check(policy: Policy, options: Sequence[str], machines: int) -> str:
    """Lines that refuse to train without the measured loss or optimizer."""
    if not options:
        return ""
    line = next(line for line in apply_lines(policy, options, machines) if "prepare(model" in line).split("  #")[0]
    return _CHECK.format(names=tuple(one.partition("=")[0] for one in options), line=json.dumps(line))


def _about_batches(layout: BatchLayout | None) -> str:
    """Constants for what a training would not assume about batches."""
    text = ""
    if layout is not None and layout.sample_dims is not None:
        dims = "".join(f"    {json.dumps(path)}: {dim!r},\n" for path, dim in layout.sample_dims.items())
        about = "# Part of a batch: the dimension that has its samples, or None for what all of them share."
        text += f"{about}\nSAMPLE_DIMS = {{\n{dims}}}\n"
    if layout is not None and layout.reduction is not None:
        values = {"kind": layout.reduction.kind, **msgspec.to_builtins(layout.reduction)}  # but for what is usual
        options = ", ".join(f"{name}={value!r}" for name, value in values.items())
        about = "# How the loss of a batch follows from those of its micro-batches."
        text += f"{about}\nREDUCTION = advisor.Reduction({options})\n"
    return f"{text}\n\n" if text else ""


def _passed(layout: BatchLayout | None) -> str:
    passed = ""
    if layout is not None and layout.sample_dims is not None:
        passed += "sample_dims=SAMPLE_DIMS, "
    if layout is not None and layout.reduction is not None:
        passed += "reduction=REDUCTION, "
    return passed


def _torchrun(count: int, machines: int) -> str:
    """The launcher's command for so many processes."""
    nodes = f"--nnodes {machines} " if machines > 1 else ""
    return f"torchrun {nodes}--nproc-per-node {count // machines}"


def _inside_docstring(text: str) -> str:
    """Text that cannot end the docstring it is put into."""
    return text.replace("\\", "/").replace('"""', "'''")


def write_wrapper(
    policy: Policy,
    path: Path,
    *,
    headline: str,
    details: str,
    options: Sequence[str] = (),
    size: Sequence[str] = (),
    machines: int = 1,
    layout: BatchLayout | None = None,
) -> None:
    """Write the wrapper atomically: a reader sees the old file or the new one."""
    text = wrapper_source(
        policy,
        headline=headline,
        details=details,
        options=options,
        size=size,
        machines=machines,
        layout=layout,
    )
    write_whole(path, text)
