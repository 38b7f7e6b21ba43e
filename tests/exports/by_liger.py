"""Train two steps in a trainer with Liger's kernels, in Triton's interpreter: run by a test."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Trainer
from triton import language
from triton.runtime import interpreter

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports import test_trained_elsewhere
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import WITH_LIGER
from tests.exports.policies import file_of
from tests.exports.test_trained_elsewhere import silent
from tests.exports.two_steps import assert_trained_as_said, samples, the_wrappers, tiny


def main() -> None:
    """Assert that it reaches the wrapper's parameters."""
    warnings.simplefilter("ignore")
    interpreter._implicit_cvt = with_numbers(interpreter._implicit_cvt)
    ours = the_wrappers(WITH_LIGER)
    model = by_llamafactory if sys.argv[2:] == ["llamafactory"] else by_transformers
    theirs = model(Path(sys.argv[1]))
    assert "liger" in theirs.forward.__func__.__module__
    assert_trained_as_said(theirs, WITH_LIGER, beside=ours)


def with_numbers(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Make a kernel's arguments what they are on a GPU: the interpreter leaves floats as Python's."""

    def converted(value: Any) -> Any:
        if type(value) is not float:
            return convert(value)
        return language.tensor(
            interpreter.TensorHandle(np.array([value], dtype=np.float32), language.float32), language.float32
        )

    return converted


def by_transformers(folder: Path) -> Any:
    text = new_configuration(export_policy(file_of(*WITH_LIGER.settings, micro_batch=2), get_target("hf")))
    arguments = arguments_of(text, folder, **STEPS_OF_ITS_OWN)
    trainer = Trainer(tiny(), arguments, train_dataset=samples())  # type: ignore[arg-type]
    trainer.train()
    return trainer.model


def by_llamafactory(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        silent(patch)
        patch.setenv("DISABLE_VERSION_CHECK", "1")
        # CUDA's own is not interpreted.
        patch.setattr("liger_kernel.ops.rms_norm.rsqrt", lambda value: language.rsqrt(value))
        return test_trained_elsewhere.by_llamafactory(folder, *WITH_LIGER.settings).model


if __name__ == "__main__":
    main()
