"""axolotl's and LLaMA-Factory's own launchers start as many ranks as was exported, which train as the wrapper does."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

from advisor import apply_policy
from advisor.exports.config_file import new_configuration
from advisor.exports.export import Export, export_policy
from advisor.exports.trainers import get_target
from advisor.policy.file import PolicyFile
from tests.distributed.ranks import ROOT
from tests.exports import launched
from tests.exports.arguments import STEPS_OF_ITS_OWN, variables_of
from tests.exports.cells import Cell
from tests.exports.cells_on_gpus import LAUNCHED
from tests.exports.policies import file_of
from tests.exports.test_trained_elsewhere import Rows, of_axolotl, words
from tests.exports.two_steps import STEPS, adamw, assert_moved_alike, samples, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.usefixtures("values"), pytest.mark.timeout(1800)]

CASES = [(name, cell) for name, cells in LAUNCHED.items() for cell in cells]
LENGTH = 16
"""Of the rows: LLaMA-Factory fills them up to a multiple of eight tokens."""


@pytest.mark.parametrize(("name", "cell"), CASES, ids=[f"{name}-{cell}" for name, cell in CASES])
@pytest.mark.filterwarnings("ignore")
def test_its_launcher_starts_ranks_that_reach_the_wrappers_parameters(name: str, cell: Cell, tmp_path: Path) -> None:
    if find_spec(name) is None:
        pytest.skip(f"no {name}")
    if torch.cuda.device_count() < 2:
        pytest.skip("one device")
    file = file_of(*cell.settings, micro_batch=2)
    policy = file.policy
    export = export_policy(file, get_target(name), max_grad_norm=cell.norm)
    rows = rows_of(file)
    launch(export, written(export, tmp_path, rows), tmp_path)
    ranks = launched.read(tmp_path / "ranks")
    assert [rank.device for rank in ranks] == [f"cuda:{number}" for number in range(policy.gpu_count)]
    wanted = any(setting.name == "expandable_segments" for setting in cell.settings)
    shape = (policy.micro_batch, LENGTH)
    for rank in ranks:
        assert rank.count == policy.gpu_count
        assert rank.expandable is wanted
        assert not rank.rounded
        assert len(rank.steps) == STEPS
        for micro_batches, _ in rank.steps:
            assert [tuple(one.shape) for one in micro_batches] == [shape] * policy.accumulation_steps
    for number, own in enumerate(by_step(rows)):
        seen = [row.tolist() for rank in ranks for one in rank.steps[number][0] for row in one]
        assert sorted(seen) == sorted(row["input_ids"].tolist() for row in own)
    first, *others = (rank.steps[-1][1] for rank in ranks)
    for other in others:
        torch.testing.assert_close(other, first, rtol=0, atol=0)
    assert_moved_alike(first, by_the_wrapper(file, rows, cell.norm), cell.tolerance)


def rows_of(file: PolicyFile) -> Rows:
    """The samples of all steps and ranks."""
    rows = samples(file.policy.global_batch * STEPS, padded=False, length=LENGTH)
    for row in rows:
        row["labels"][0] = -100  # None predicts them, but the transformers that LLaMA-Factory requires counts them.
    return rows


def by_step(rows: Rows) -> list[Rows]:
    """Those of each step."""
    size = len(rows) // STEPS
    return [rows[size * step : size * (step + 1)] for step in range(STEPS)]


def written(export: Export, folder: Path, rows: Rows) -> Path:
    """The exported file with what is no part of a policy: the model, the data, and the optimizer's steps."""
    import datasets

    tiny().save_pretrained(folder / "model")
    words(folder / "model")
    listed = [{name: part.tolist() for name, part in row.items()} for row in rows]
    data = datasets.Dataset.from_list([row | {"attention_mask": [1] * LENGTH} for row in listed])
    if export.target.name == "axolotl":
        data.to_json(folder / "rows.jsonl")
        tokens = {"path": str(folder / "rows.jsonl"), "ds_type": "json", "type": ""}
        others = {**of_axolotl(folder), "datasets": [tokens]}
    else:
        data.save_to_disk(folder / "rows")
        others = {
            **STEPS_OF_ITS_OWN,
            "model_name_or_path": str(folder / "model"),
            "tokenized_path": str(folder / "rows"),
            "dataset": "a",
            "template": "empty",
            "stage": "sft",
            "do_train": True,
            "disable_shuffling": True,
            "output_dir": str(folder / "out"),
            "report_to": "none",
            "save_strategy": "no",
        }
    path = folder / "train.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(new_configuration(export)) | others))
    return path


def launch(export: Export, path: Path, folder: Path) -> None:
    """Train with the command of the export, under its variables."""
    (line,) = (line for line in export.lines if line.what.startswith("gpu_count"))
    in_the_environment = line.outside.endswith(" in the environment")
    said = shlex.split(export.target.use.format(file="FILE") if in_the_environment else line.outside)
    first = next(number for number, word in enumerate(said) if "=" not in word)
    command = [str(path) if word == "FILE" else word for word in said[first:]]
    (folder / "sitecustomize.py").write_text(
        "import os, pathlib\n"
        "if 'RANK' in os.environ:\n"
        "    from tests.exports.launched import watch\n"
        f"    watch(pathlib.Path({str(folder / 'ranks')!r}))\n"
    )
    (folder / "ranks").mkdir()
    variables = {
        **{name: value for name, value in os.environ.items() if not name.endswith("ALLOC_CONF")},
        **dict(word.split("=", 1) for word in said[:first]),
        **dict(variables_of(export)),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        "DISABLE_VERSION_CHECK": "1",
        "DO_NOT_TRACK": "1",
        "AXOLOTL_DO_NOT_TRACK": "1",
        "PET_RDZV_BACKEND": "c10d",  # which finds a port that is free
        "PET_RDZV_ENDPOINT": "127.0.0.1:0",
    }
    if export.target.name == "axolotl":  # as a note of its export says of one device
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(export.policy.gpu_count)))
    run = subprocess.run(command, env=variables, cwd=folder, capture_output=True, text=True, timeout=1500, check=False)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-10000:]


def by_the_wrapper(file: PolicyFile, rows: Rows, norm: float | None) -> dict[str, torch.Tensor]:
    """What one rank of the wrapper trains from all samples of a step."""
    policy = file.policy
    alone = file_of(micro_batch=policy.micro_batch, accumulation_steps=policy.accumulation_steps * policy.gpu_count)
    training = apply_policy(alone, tiny(), device="cuda", max_grad_norm=norm, build_optimizer=adamw)
    for own in by_step(rows):
        training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    state: dict[str, torch.Tensor] = training.state_dict()["model"]
    found = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
    training.close()
    return found
