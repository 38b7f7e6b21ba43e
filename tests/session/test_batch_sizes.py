"""A workload that does not take any number of samples is tuned in batches that it takes, to the end."""

import json
from pathlib import Path

import pytest

from advisor.policy.file import load_policy_file
from tests.session.command import run_here

pytestmark = pytest.mark.slow

GROUPS = """
import torch

BATCH_SIZE = 24

class Normalized(torch.nn.Module):
    def forward(self, x):
        groups = x.view(-1, 12, x.shape[1])
        return ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-3)).view_as(x)

def build_model():
    return torch.nn.Sequential(torch.nn.Linear(32, 64), Normalized(), torch.nn.ReLU(), torch.nn.Linear(64, 8))

def make_batch(batch_size):
    return torch.randn(batch_size, 32), torch.randint(8, (batch_size,))

def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.parametrize("options", [(), ("--global-batch", "48")], ids=["any batch", "a fixed global batch"])
def test_every_batch_is_a_multiple_of_what_the_model_takes(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    out = tmp_path / "out"
    ended = run_here(
        "--goal", "faster", "groups.py", "--search-space", "smoke", "--trials", "3", "--time-limit", "60s",
        "--memory-limit", "1MiB", "--output", out, *options,
        cwd=tmp_path,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert "only batches of a multiple of 12 samples were tried" in " ".join(ended.stdout.split())
    batches = {json.loads(line)["policy"]["micro_batch"] for line in (out / "ledger.jsonl").read_text().splitlines()}
    assert batches
    assert not {batch for batch in batches if batch % 12}
    assert load_policy_file(out / "policy.yaml").policy.global_batch % 12 == 0


def test_a_global_batch_that_the_model_does_not_take_is_refused(tmp_path: Path) -> None:
    (tmp_path / "groups.py").write_text(GROUPS)
    ended = run_here("groups.py", "--global-batch", "40", "--output", tmp_path / "out", cwd=tmp_path)
    assert ended.returncode == 2
    assert "--global-batch must be a batch that can be trained on, but it is 40" in ended.stderr
    assert "only batches of a multiple of 12 samples can" in ended.stderr
