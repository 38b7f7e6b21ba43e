"""A key of the user's that no table has is looked up in the trainer that is installed, of which nothing is imported."""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from advisor.cli import main
from advisor.exports import config_file
from advisor.exports import installed_keys as reading
from advisor.exports.config_file import Patched, patched_file
from advisor.exports.export import export_policy
from advisor.exports.installed_keys import absent_keys, installed_keys
from advisor.exports.rules import Schema, Target
from advisor.exports.trainers import TARGETS, get_target
from advisor.exports.yaml_text import line_of
from advisor.methods.setting import use
from advisor.policy.file import write_policy_file
from advisor.report.console import SafeConsole
from advisor.report.export_view import export_view
from advisor.report.json_documents import json_export
from tests.exports.policies import file_of


def patched(text: str, name: str, folder: Path) -> Patched:
    path = folder / ("config.json" if name == "deepspeed" else "config.yaml")
    path.write_text(text)
    return patched_file(path, export_policy(file_of(), get_target(name)))


def printed(text: str, name: str, folder: Path, capsys: pytest.CaptureFixture[str], *, written: bool = True) -> str:
    found = patched(text, name, folder)
    SafeConsole(width=1000).print(export_view(export_policy(file_of(), get_target(name)), found, written=written))
    return capsys.readouterr().out


def only(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is installed but one package."""
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: find_spec(name) if name == package else None)


def fields_of_training_arguments() -> set[str]:
    from transformers import TrainingArguments

    return {field.name for field in dataclasses.fields(TrainingArguments)}


def keys_of_accelerate() -> set[str]:
    from accelerate.commands.config.config_args import ClusterConfig

    return {field.name for field in dataclasses.fields(ClusterConfig)}


def parameters_of_lightnings_trainer() -> set[str]:
    lightning = pytest.importorskip("lightning.pytorch")
    return set(inspect.signature(lightning.Trainer).parameters)


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("hf", fields_of_training_arguments),
        ("accelerate", keys_of_accelerate),
        ("lightning", parameters_of_lightnings_trainer),
    ],
)
def test_the_source_of_a_library_tells_every_key_that_the_library_has(name: str, keys: Any) -> None:
    assert keys() <= installed_keys(get_target(name))


def test_every_key_that_an_export_writes_is_one_of_the_installed_trainer() -> None:
    for target in TARGETS:
        if known := installed_keys(target):
            above = {section: f"{section}." if section else "" for section in target.sections}
            written = {
                key.removeprefix(start).partition(".")[0]
                for start in above.values()
                for key in target.written
                if key.startswith(start)
            }
            assert written <= known, target.name


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_the_version_that_was_checked_has_every_key(target: Target) -> None:
    assert absent_keys(target.written, target) == {}


@pytest.fixture
def older_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that names recomputation otherwise."""
    target = get_target("hf")
    fields = {key.partition(".")[0] for key in target.written} - {"activation_checkpointing", "liger_kernel_config"}
    lines = "".join(f"    {name}: int = 0\n" for name in sorted({*fields, "gradient_checkpointing"}))
    folder = tmp_path / "transformers"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "training_args.py").write_text(f"class TrainingArguments:\n{lines}")
    older = ModuleSpec("transformers", None, is_package=True)
    older.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: older if name == "transformers" else None)
    monkeypatch.setattr(config_file.importlib.metadata, "version", lambda name: "4.57.1")


@pytest.mark.usefixtures("older_transformers")
def test_keys_that_another_version_does_not_have_are_named_with_their_former_names(
    capsys: pytest.CaptureFixture[str],
) -> None:
    target = get_target("hf")
    exported = export_policy(file_of(use("checkpoint", every=1)), target)
    SafeConsole(width=1000).print(export_view(exported))
    assert (
        "transformers 4.57.1 has no key activation_checkpointing (formerly gradient_checkpointing), and "
        "HfArgumentParser refuses the file, unless another dataclass of your script has it. Install transformers "
        f"{target.version}, or write the former names."
    ) in capsys.readouterr().out
    document = json.loads(json_export(exported, None, written=True))
    assert document["absent"] == {"activation_checkpointing": "gradient_checkpointing"}


@pytest.mark.usefixtures("older_transformers")
def test_strict_writes_no_keys_that_the_installed_version_does_not_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_policy_file(file_of(use("checkpoint", every=1)), Path("policy.yaml"), header="")
    Path("config.yaml").write_text("seed: 1\n")
    arguments = ["export", "policy.yaml", "--to", "hf", "--into", "config.yaml"]
    assert main([*arguments, "--strict"]) == 3
    assert "All of it is exported, but not to the installed transformers, so nothing is written" in " ".join(
        capsys.readouterr().err.split()
    )
    assert Path("config.yaml").read_text() == "seed: 1\n"
    assert main(arguments) == 0


def test_nothing_is_imported_to_look_keys_up() -> None:
    code = (
        "import sys; from advisor.exports.installed_keys import installed_keys\n"
        "from advisor.exports.trainers import TARGETS\n"
        "assert any(installed_keys(target) for target in TARGETS)\n"
        "assert not {'torch', 'transformers', 'accelerate', 'lightning'} & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_key_that_nobody_knows_is_named_with_its_line_and_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "seed: 1\n\nmy_own_thing: 3  # ours\nadam_beta1: 0.9\n"
    found = patched(text, "hf", tmp_path)
    assert found.unknown == ("my_own_thing",)
    assert found.unchecked == ()
    assert "my_own_thing: 3  # ours\n" in found.text
    line = found.text.splitlines().index("my_own_thing: 3  # ours") + 1
    words = printed(text, "hf", tmp_path, capsys)
    assert f"config.yaml, line {line}: my_own_thing stays, but transformers" in words
    assert "config.yaml, line 3: my_own_thing stays" in printed(text, "hf", tmp_path, capsys, written=False)
    assert "HfArgumentParser refuses the file, unless another dataclass of your script has it. Correct or" in words


def test_an_unknown_key_of_accelerate_is_told_with_what_accelerate_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "distributed_type: 'NO'\nnum_processes: 1\nsame_network: true\nfavourite_node: a\nfp16: true\n"
    assert patched(text, "accelerate", tmp_path).unknown == ("favourite_node",)
    assert "favourite_node stays, but accelerate" in printed(text, "accelerate", tmp_path, capsys)
    text = '{\n  "distributed_type": "NO",\n  "zero": {"favourite_node": 1},\n  "favourite_node": 2\n}\n'
    assert line_of(text, "favourite_node") == 4
    assert (line_of(text, "nowhere"), line_of("{\t", "a")) == (0, 0)


def test_the_users_own_sections_of_lightning_are_no_keys_of_its_trainer(tmp_path: Path) -> None:
    pytest.importorskip("lightning.pytorch")
    text = "model:\n  width: 3\ntrainer:\n  max_epochs: 2\n  epochs_of_rest: 1\n"
    assert patched(text, "lightning", tmp_path).unknown == ("trainer.epochs_of_rest",)


def test_a_misspelled_key_is_named_once_with_what_is_meant(tmp_path: Path) -> None:
    found = patched("activation_checkpoint: true\n", "hf", tmp_path)
    assert list(found.misspelled) == ["activation_checkpoint"]
    assert found.unknown == ()


def test_without_the_trainer_other_keys_are_said_not_to_be_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    only("nothing", monkeypatch)
    text = yaml.safe_dump({"base_model": "org/model", **{f"key_{number}": number for number in range(9)}})
    assert len(patched(text, "axolotl", tmp_path).unchecked) == 10
    words = printed(text, "axolotl", tmp_path, capsys)
    assert "Not checked" in words
    assert "base_model, key_0, key_1, key_2, key_3, key_4, key_5, key_6 and 2 more." in words


@pytest.fixture
def deepspeed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that has keys where DeepSpeed has them, and cannot be imported."""
    folder = tmp_path / "site" / "deepspeed"
    (folder / "runtime").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError\n")
    (folder / "runtime" / "constants.py").write_text('STEPS_PER_PRINT = "steps_per_print"\n')
    (folder / "runtime" / "zero_config.py").write_text("class Zero:\n    stage: int = 0\n")
    (folder / "runtime" / "engine.py").write_text('NOT_A_KEY = "not_a_key"\n')
    (folder / "runtime" / "config.py").write_text("this is no Python\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "deepspeed", raising=False)  # where it is installed, and was imported
    only("deepspeed", monkeypatch)


@pytest.mark.usefixtures("deepspeed")
def test_where_keys_are_read_in_many_places_every_word_counts(tmp_path: Path) -> None:
    text = '{\n  "steps_per_print": 1,\n  "not_a_key": 2,\n  "zero_optimization": {"stage": 1}\n}\n'
    found = patched(text, "deepspeed", tmp_path)
    assert (found.unknown, found.unchecked) == (("not_a_key",), ())
    document = json.loads(json_export(export_policy(file_of(), get_target("deepspeed")), found, written=True))
    assert (document["unknown"], document["unchecked"]) == (["not_a_key"], [])


def test_further_keys_of_a_package_beside_the_trainer_count_where_it_is_installed() -> None:
    target = get_target("hf")
    more = Schema("advisor", ("exports/rules.py",), ("Schema",))
    extended = msgspec.structs.replace(target, schemas=(*target.schemas, more))
    assert installed_keys(extended) - installed_keys(target) == {"package", "files", "classes", "prefix"}


@pytest.mark.parametrize(
    ("name", "text", "unknown"),
    [
        (
            "hf",
            "fsdp_config:\n  version: 2\n  fsdp_cpu_ram_efficient_loading: true\n  shards: 2\n",
            "fsdp_config.shards",
        ),
        ("hf", "accelerator_config:\n  split_batches: true\n  split: 1\n", "accelerator_config.split"),
        ("accelerate", "fsdp_config:\n  fsdp_state_dict_type: a\n  fsdp_shards: 2\n", "fsdp_config.fsdp_shards"),
        ("accelerate", "dynamo_config:\n  dynamo_mode: default\n  dynamo_depth: 2\n", "dynamo_config.dynamo_depth"),
    ],
)
def test_keys_of_a_section_are_looked_up_in_the_list_of_that_section(
    name: str, text: str, unknown: str, tmp_path: Path
) -> None:
    assert patched(f"seed: 1\n{text}" if name == "hf" else text, name, tmp_path).unknown == (unknown,)


@pytest.mark.usefixtures("deepspeed")
def test_sections_without_a_list_in_the_installed_version_are_not_checked(tmp_path: Path) -> None:
    text = (
        '{"steps_per_print": 1, "zero_optimization": {"stage": 1, "stages": 2}, "fp16": {"enabled": true, "loss": 0}}'
    )
    found = patched(text, "deepspeed", tmp_path)
    assert (found.unknown, found.unchecked) == ((), ("fp16.loss",))
