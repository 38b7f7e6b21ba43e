"""What a file says under another name than the contract's is not used, and a note says so before minutes are spent."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.workload.source import resolve_source
from advisor.workload.unused_names import notes_on_unused_names
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource

GOOD = "def build_model(): ...\ndef make_batch(batch_size): ...\n"


def notes(folder: Path, text: str, stated: Stated | None = None) -> tuple[str, ...]:
    path = folder / "train.py"
    path.write_text(GOOD + text)
    source = resolve_source(path)
    return notes_on_unused_names(source if stated is None else msgspec.structs.replace(source, stated=stated))


def test_an_optimizer_under_another_name_is_said_with_what_is_used_instead(tmp_path: Path) -> None:
    """Trap: ``make_optimizer`` beside ``make_batch``, and the model was tuned with AdamW."""
    assert notes(tmp_path, "def make_optimizer(params): ...\n") == (
        "train.py has no build_optimizer, so AdamW is used: make_optimizer is not read. If it says how you train, "
        "write build_optimizer(params)",
    )


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("def configure_optimizers(): ...\n", "build_optimizer"),
        ("def loss_fn(model, batch): ...\n", "compute_loss"),
        ("batch_size = 32\n", "BATCH_SIZE"),
        ("if True:\n    BATCHSIZE = 32\n", "BATCH_SIZE"),
        ("max_grad_norm = 1.0\n", "MAX_GRAD_NORM"),
        ("GRAD_CLIP = 1.0\n", "MAX_GRAD_NORM"),
    ],
)
def test_other_names_that_look_like_the_contracts(tmp_path: Path, text: str, read: str) -> None:
    [note] = notes(tmp_path, text)
    what_is_taken = ", so " if read != "BATCH_SIZE" else ": "  # which batch is taken, the baseline's note says
    assert f"has no {read}{what_is_taken}" in note


@pytest.mark.parametrize(
    "text",
    [
        "",
        "def make_optimizer(params): ...\ndef build_optimizer(params): return make_optimizer(params)\n",
        "def loss_of(logits): ...\nclass Net:\n    def forward(self, x): return loss_of(x)\n",  # a helper
        "from torch.nn.utils import clip_grad_norm_\n",
        "batch_size = 32\nBATCH_SIZE = batch_size\n",
        "def train():\n    batch_size = 32\n",
        "blocks = 4\n",
        "from training import *\nbatch_size = 32\n",  # may bind BATCH_SIZE
    ],
)
def test_what_is_used_or_is_no_such_name_is_not_said(tmp_path: Path, text: str) -> None:
    assert notes(tmp_path, text) == ()


def test_what_is_stated_on_the_command_line_is_not_missing(tmp_path: Path) -> None:
    stated = Stated(batch_size=8, max_grad_norm=1.0)
    assert notes(tmp_path, "batch_size = 32\ngrad_clip = 1.0\n", stated) == ()


def test_functions_that_were_given_have_their_roles() -> None:
    source = WorkloadSource(kind=WorkloadKind.FUNCTIONS, location="", name="m", fingerprint="f")
    assert notes_on_unused_names(source) == ()
