"""TrainingArguments as a script reads them from what was exported, and the variables that stand beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from transformers import HfArgumentParser, TrainingArguments

from advisor.exports.export import Export
from tests.exports.two_steps import EPSILON, RATE, STEPS

__all__ = ["ELSEWHERE", "STEPS_OF_ITS_OWN", "arguments_of", "variables_of"]

ELSEWHERE = {"use_cpu": True, "report_to": "none", "save_strategy": "no", "disable_tqdm": True}
"""What is no part of a policy: where it trains, and what it writes."""
STEPS_OF_ITS_OWN = {
    "max_steps": STEPS,
    "learning_rate": RATE,
    "adam_epsilon": EPSILON,
    "lr_scheduler_type": "constant",
    "train_sampling_strategy": "sequential",
}
"""The optimizer's steps, which a policy leaves to the script."""


def arguments_of(text: str, folder: Path, **more: Any) -> TrainingArguments:
    """The arguments that a script reads from a file with ``text`` in ``folder``."""
    path = folder / "arguments.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(text), **ELSEWHERE, "output_dir": str(folder), **more}))
    (arguments,) = HfArgumentParser(TrainingArguments).parse_yaml_file(str(path))  # type: ignore[arg-type]
    return arguments


def variables_of(export: Export) -> Iterator[tuple[str, str]]:
    """The variables of the environment that an export asks for."""
    for line in export.lines:
        if line.outside.endswith(" in the environment"):
            for variable in line.outside.removesuffix(" in the environment").split():
                name, _, value = variable.partition("=")
                yield name, value
