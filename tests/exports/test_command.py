"""The command: what it prints where, how it ends, and what it never touches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from advisor.cli import main
from advisor.exports.trainers import TARGETS
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import PolicyFile, write_policy_file
from advisor.policy.policy import Policy
from tests.exports.policies import file_of


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def policy(*settings: MethodSetting) -> str:
    write_policy_file(file_of(*settings), Path("policy.yaml"), header="")
    return "policy.yaml"


def test_the_configuration_is_on_stdout_and_everything_else_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", policy(use("swap", min_bytes=2**20), use("precision", dtype="bf16")), "--to", "hf"]) == 0
    printed = capsys.readouterr()
    assert yaml.safe_load(printed.out)["bf16"] is True
    assert "keys checked with transformers" in printed.out
    assert "needs the adapter" in printed.err
    assert sorted(path.name for path in Path().iterdir()) == ["policy.yaml"]


def test_strict_writes_nothing_unless_all_of_it_is_exported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.yaml").write_text("seed: 1\n")
    arguments = ["export", policy(use("swap", min_bytes=2**20)), "--to", "hf", "--strict"]
    assert main(arguments) == main([*arguments, "--into", "config.yaml"]) == 3
    assert capsys.readouterr().out == ""
    assert Path("config.yaml").read_text() == "seed: 1\n"
    assert main(["export", policy(use("checkpoint", every=1)), "--to", "hf", "--strict"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["activation_checkpointing"] is True


def test_json_has_parts_keys_and_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", policy(use("adafactor")), "--to", "deepspeed", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["complete"] is False
    assert {part["what"]: part["status"] for part in document["parts"]}["adafactor"] == "needs the adapter"
    assert json.loads(document["text"])["train_micro_batch_size_per_gpu"] == 4


@pytest.mark.parametrize("target", [one.name for one in TARGETS])
def test_what_is_to_be_copied_is_whole_on_a_narrow_screen(
    target: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["export", policy(use("muon"), use("precision", dtype="bf16")), "--to", target]
    said = []
    for width in ("60", "900"):
        monkeypatch.setenv("COLUMNS", width)
        assert main(arguments) == 0
        said.append(capsys.readouterr().err.split())
    assert said[0] == said[1]
    assert "Sequence_len" not in said[0], "names in code keep their spelling"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["policy.yaml"], "--to is needed: one of hf, accelerate"),
        (["policy.yaml", "--to", "composer"], "--to must be one of 'hf', 'accelerate'"),
        (["nowhere.yaml", "--to", "hf"], "A policy file must be readable"),
        (["damaged.yaml", "--to", "hf"], "A policy file must be valid YAML"),
        (["policy.yaml", "--to", "hf", "--into", "nowhere.yaml"], "--into must name a file that exists"),
        (["policy.yaml", "--to", "torchtitan", "--into", "policy.yaml"], "torchtitan's command line is a program"),
        (
            ["policy.yaml", "--to", "hf", "--into", "policy.yaml"],
            "--into must name a configuration of transformers, but",
        ),
        (["policy.yaml", "--to", "hf", "--max-grad-norm=-1"], "--max-grad-norm must be a finite number"),
        (["sliced.yaml", "--to", "hf"], "cannot say tensor_parallel"),
    ],
)
def test_a_mistake_is_one_error(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    policy(use("tensor_parallel", sequence=True, vocabulary=False))
    Path("policy.yaml").rename("sliced.yaml")
    policy()
    Path("damaged.yaml").write_text("schema: [1\n")
    assert main(["export", *arguments]) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert printed.out == ""
    assert printed.err.count("momadvise: error:") == 1


def impossible(*names: str, gpu_count: int = 1) -> str:
    settings = {"adam_low_bit": {"state": "8bit"}, "ddp": {"bucket_views": True, "static_graph": False}}
    methods = tuple(use(name, **settings.get(name, {})) for name in names)
    own = Policy(methods=methods, micro_batch=2, gpu_count=gpu_count)
    write_policy_file(PolicyFile(policy=own), Path("policy.yaml"), header="")
    return "policy.yaml"


@pytest.mark.parametrize(
    ("names", "gpu_count", "why"),
    [
        (("adam_low_bit", "fused_optimizer"), 1, "both decide"),
        (("ddp",), 1, "it trains on several devices together, but the policy uses one"),
        (("fused_optimizer",), 2, "exactly one of"),
    ],
)
def test_a_policy_that_contradicts_itself_is_not_exported(
    names: tuple[str, ...], gpu_count: int, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", impossible(*names, gpu_count=gpu_count), "--to", "hf"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "A policy must be possible to be exported, but" in " ".join(printed.err.split())
    assert why in " ".join(printed.err.split())
