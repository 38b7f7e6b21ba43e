"""Train two steps in transformers' Trainer with Liger's kernels, in Triton's interpreter: run by a test."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

from transformers import Trainer

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import WITH_LIGER
from tests.exports.policies import file_of
from tests.exports.two_steps import assert_trained_as_said, samples, the_wrappers, tiny


def main() -> None:
    """Assert that it reaches the wrapper's parameters."""
    warnings.simplefilter("ignore")
    ours = the_wrappers(WITH_LIGER)
    text = new_configuration(export_policy(file_of(*WITH_LIGER.settings, micro_batch=2), get_target("hf")))
    arguments = arguments_of(text, Path(sys.argv[1]), **STEPS_OF_ITS_OWN)
    trainer = Trainer(tiny(), arguments, train_dataset=samples())  # type: ignore[arg-type]
    trainer.train()
    assert "liger" in trainer.model.forward.__func__.__module__  # type: ignore[union-attr]
    assert_trained_as_said(trainer.model, WITH_LIGER, beside=ours)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
