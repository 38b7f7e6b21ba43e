"""Emit ``wrapper.py``: a small file that a person can read, which applies one policy to a model."""

from __future__ import annotations

import json
import os
from pathlib import Path

from advisor.methods.catalogue import get_method
from advisor.policy.policy import Policy

__all__ = ["wrapper_source", "write_wrapper"]

_TEMPLATE = '''"""{headline}

{details}

Use it::

    from wrapper import prepare

    training = prepare(model)       # a plain model, as you build it today
    loss = training.step(batch)     # forward, backward and optimizer step; batch: {samples} samples on the CPU
"""

import advisor

POLICY = advisor.Policy(
{policy}
)


def prepare(model, **options):
    """Apply the policy to `model` (in place) and return the training.

    Options, all optional: device, build_optimizer(parameters), compute_loss(model, batch), count_targets(batch),
    linear_head(model, batch), max_grad_norm, blocks. They are explained in `help(advisor.apply_policy)`.

    With a loop of your own, in place of `training.step(batch)`, for each piece of `training.split(batch)`:
        loss = training.forward(piece)
        training.backward(loss)
    and then once:
        training.optimizer_step()

    `training.model` and `training.optimizer` are yours to schedule, evaluate and save;
    `training.state_dict()["model"]` loads into a plain model.
    """
    return advisor.apply_policy(POLICY, model, **options)
'''


def wrapper_source(policy: Policy, *, headline: str, details: str) -> str:
    """The text of the wrapper.

    Args:
        policy: The policy it applies.
        headline: First line of its docstring.
        details: Figures and where they come from, for a person.
    """
    lines = ["    methods=("]
    for method in policy.methods:
        arguments = [json.dumps(method.name)]
        arguments += [f"{name}={value!r}" for name, value in sorted(method.parameters.items())]
        lines.append(f"        advisor.use({', '.join(arguments)}),  # {get_method(method.name).summary}")
    lines.append("    ),")
    if not policy.methods:
        lines = ["    methods=(),  # plain training: no method that was measured is faster beyond the noise"]
    lines.append(f"    micro_batch={policy.micro_batch},  # samples per forward pass")
    lines.append(f"    accumulation_steps={policy.accumulation_steps},  # forward-backward passes per optimizer step")
    return _TEMPLATE.format(
        headline=_inside_docstring(headline),
        details=_inside_docstring(details),
        policy="\n".join(lines),
        samples=policy.global_batch,
    )


def _inside_docstring(text: str) -> str:
    """Text that cannot end or escape the docstring it is put into."""
    return text.replace("\\", "/").replace('"""', "'''")


def write_wrapper(policy: Policy, path: Path, *, headline: str, details: str) -> None:
    """Write the wrapper atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(wrapper_source(policy, headline=headline, details=details), encoding="utf-8")
    os.replace(temporary, path)
