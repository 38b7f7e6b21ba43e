"""Each change of what a policy was measured for, and what a check says of it."""

from __future__ import annotations

import platform
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import pytest

import advisor
from advisor.decide.policy_status import PolicyStatus
from advisor.goal import Price
from advisor.hardware.detect import detect_hardware
from advisor.hardware.hardware import DeviceKind
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.workload.difference import Difference, Weight
from advisor.workload.identity import Identity

from .projects import Project, look_here

pytestmark = pytest.mark.slow

HOLDS, STALE = PolicyStatus.HOLDS, PolicyStatus.STALE
Change = Callable[[Project, pytest.MonkeyPatch], object]


@pytest.fixture
def project(measured: advisor.Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project in another folder than it was measured in."""
    look_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, measured.policy_path)


def edit(old: str, new: str, name: str = "model.py") -> Change:
    return lambda project, monkeypatch: project.edit(name, old, new)


def variable(name: str, value: str) -> Change:
    return lambda project, monkeypatch: monkeypatch.setenv(name, value)


def installed(**versions: str) -> Change:
    """Other versions are installed now."""
    real = metadata.version

    def change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))

    return change


def python_is(version: str) -> Change:
    return lambda project, monkeypatch: monkeypatch.setattr(platform, "python_version", lambda: version)


def measured_with(part: str, **values: Any) -> Change:
    """The policy states something else."""
    return lambda project, monkeypatch: project.restate(part, **values)


def both(*changes: Change) -> Change:
    return lambda project, monkeypatch: [change(project, monkeypatch) for change in changes]


def device(**values: Any) -> Change:
    """The device here has other properties."""

    def change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        here = msgspec.structs.replace(detect_hardware("cpu"), **values)
        monkeypatch.setattr("advisor.session.check.detect_hardware", lambda device: here)

    return change


def less_memory(share: float, kib: int = 0) -> Change:
    def change(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        total = detect_hardware("cpu").memory_bytes
        device(memory_bytes=int(total * (1 - share)) - kib * 1024)(project, monkeypatch)

    return change


def asked(**options: Any) -> Change:
    return lambda project, monkeypatch: project.options.update(options)


def other_ends(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    path = project.folder / "model.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))


def rename(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "model.py").rename(project.folder / "network.py")
    project.model = "network.py"


def rename_part(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.folder / "parts.py").rename(project.folder / "blocks.py")
    project.edit("model.py", "from parts import", "from blocks import")


AN_H100: dict[str, Any] = {
    "kind": DeviceKind.CUDA, "name": "NVIDIA H100", "compute_capability": (9, 0), "driver_version": "550",
}  # fmt: skip
ON_H100 = measured_with(
    "fingerprints.hardware", kind="cuda", name="NVIDIA H100", driver="550", compute_capability="9.0"
)

NOTHING: dict[str, Change] = {
    "nothing": lambda project, monkeypatch: None,
    "a comment": edit("WIDTH = ", "# How wide.\nWIDTH = "),
    "a docstring": edit("def build_model():", 'def build_model():\n    """Build it."""'),
    "blank lines and layout": edit("\n\n\ndef ", "\n\n\n\n\n\ndef "),
    "line ends": other_ends,
    "an unused function": edit("def build_model", "def unused():\n    return 1\n\n\ndef build_model"),
    "an unused class": edit("def build_model", "class Unused(torch.nn.Module):\n    pass\n\n\ndef build_model"),
    "an unused function of a part": edit("class Block", "def unused():\n    return 1\n\n\nclass Block", "parts.py"),
    "what the main program does": edit(
        "def build_model", 'if __name__ == "__main__":\n    print(1)\n\n\ndef build_model'
    ),
    "the order of functions": both(
        edit("def make_batch", "def _make_batch"), edit("def build_model", "def make_batch(batch_size):\n    "
             'return {"input": torch.randn(batch_size, DIM)}\n\n\ndef build_model'),
        edit("def _make_batch", "def _unused"),
    ),
    "a renamed file": rename,
    "a renamed part": rename_part,
    "a learning rate": edit("LEARNING_RATE = 1e-3", "LEARNING_RATE = 3e-4"),
    "the norm to clip at": edit("MAX_GRAD_NORM = 1.0", "MAX_GRAD_NORM = 0.5"),
    "a variable that nothing reads": variable("NOBODY_READS_THIS", "1"),
    "pip install peft": installed(peft="0.18.0"),
    "a patch of Python": both(measured_with("fingerprints.versions", python="3.99.0"), python_is("3.99.1")),
    "a patch of transformers": installed(transformers="4.99.9"),
    "a few kilobytes less memory": less_memory(0, kib=4),
    "other load on the device": device(free_bytes=2**30),
    "the same limit as then": asked(memory_limit_bytes=2 * 2**30),
    "cores of a GPU's host": both(ON_H100, device(**AN_H100, host_cores=3)),
}  # fmt: skip


@pytest.mark.parametrize("change", NOTHING.values(), ids=NOTHING)
def test_what_changes_nothing_is_not_mentioned(
    change: Change, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(project, monkeypatch)
    found = project.check()
    assert (found.status, [one.words for one in found.differences]) == (HOLDS, [])


MAKES_STALE: dict[str, tuple[Change, str]] = {
    "a forward pass": (edit(".relu()", ".tanh()", "parts.py"), "model: code changed"),
    "the loss": (edit(".square()", ".abs()"), "model: code changed"),
    "how a batch is made": (edit("randn", "rand"), "model: code changed"),
    "a decorated function": (edit("def build_model", "@print\ndef unused(): ...\n\n\ndef build_model"), "model: code"),
    "a variable of the model": (variable("MODEL_HIDDEN", "24"), "model: parameters 2,144 -> 3,184"),
    "a config of the model": (edit("32", "48", "cfg.json"), "model: parameters 2,144 -> 3,200"),
    "a forward pass that is found by PYTHONPATH": (
        measured_with("fingerprints.identity.model", code={"layers": "another"}), "model: code of layers changed"),
    "another layer": (edit("range(2)", "range(3)"), "modules: Block 2 -> 3"),
    "a frozen layer": (
        edit("(width, dim)", "(width, dim)\n        self.inside.requires_grad_(False)", "parts.py"),
        "model: trainable parameters 2,144 -> 1,056",
    ),
    "a buffer": (
        edit("__init__()", "__init__()\n        self.register_buffer('seen', torch.zeros(3))", "parts.py"),
        "model: numbers in buffers 0 -> 6",
    ),
    "a type": (edit("for _ in range(2)))", "for _ in range(2))).bfloat16()"), "model: bfloat16 none -> 2,144"),
    "the shape of a batch": (edit("(batch_size, DIM)", "(batch_size, 5, DIM)"), "[2, 16] -> float32 [2, 5, 16]"),
    "another part of a batch": (edit("DIM)}", 'DIM), "m": torch.ones(batch_size)}'), "batch: m none -> float32 [2]"),
    "an optimizer": (edit("optim.AdamW", "optim.SGD"), "-> torch.optim.sgd.SGD()"),
    "an option of the optimizer": (edit("lr=LEARNING", "amsgrad=True, lr=LEARNING"), "(amsgrad, betas"),
    "no more clipping": (edit("MAX_GRAD_NORM = 1.0", ""), "model file: MAX_GRAD_NORM given -> none"),
    "the user's batch": (edit("BATCH_SIZE = 4", "BATCH_SIZE = 8"), "model file: BATCH_SIZE 4 -> 8"),
    "torch": (both(measured_with("fingerprints.versions", torch="2.13.0+cpu"), installed(torch="2.14.1")),
              "torch: 2.13.0+cpu -> 2.14.1"),
    "the model's own library": (
        both(measured_with("fingerprints.identity.model", libraries={"timm": "1.0.3"}), installed(timm="1.1.0")),
        "timm: 1.0.3 -> 1.1.0",
    ),
    "the model's library is gone": (measured_with("fingerprints.identity.model", libraries={"no-such-package": "1.0"}),
                                    "no-such-package: 1.0 -> not installed"),
    "a method's library": (
        both(measured_with("", policy=Policy(methods=(use("adam_8bit"),), micro_batch=4)),
             measured_with("fingerprints.versions", bitsandbytes="0.49.0"), installed(bitsandbytes="0.50.0")),
        "bitsandbytes: 0.49.0 -> 0.50.0",
    ),
    "another device": (device(name="another CPU"), "-> another CPU"),
    "fewer cores of a CPU": (device(host_cores=1234), "-> 1234"),
    "memory": (less_memory(0.03), "memory: "),
    "a compute capability": (both(ON_H100, device(**AN_H100 | {"compute_capability": (10, 0)})),
                             "compute capability: 9.0 -> 10.0"),
    "fewer devices": (
        both(ON_H100, measured_with("policy", gpu_count=4), device(**AN_H100, device_count=2)), "devices: 4 -> 2",
    ),
    "no GPU any more": (both(ON_H100, device()), "device: NVIDIA H100 -> "),
    "the policy's batch": (edit("micro_batch: ", "micro_batch: 1", "policy.yaml"), "policy: methods or batch changed"),
    "its passes": (
        edit("accumulation_steps: 1", "accumulation_steps: 2", "policy.yaml"), "policy: methods or batch changed",
    ),
    "the global batch": (asked(global_batch=64), "global batch: none -> 64"),
    "the memory limit": (asked(memory_limit_bytes=2**30), "memory limit: 2.00 GiB -> 1.00 GiB"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), MAKES_STALE.values(), ids=MAKES_STALE)
def test_what_needs_another_measurement_makes_it_stale_and_is_named(
    change: Change, words: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(project, monkeypatch)
    found = project.check()
    assert found.status is STALE
    named = [one for one in found.differences if words in one.words]
    assert [one.weight for one in named] == [Weight.STALE], [one.words for one in found.differences]


ONLY_WARNS: dict[str, tuple[Change, str]] = {
    "a variable that the loss reads": (variable("LOSS_SCALE", "2"), "the environment variable LOSS_SCALE changed"),
    "a config that changes no shape": (edit("}", ', "note": 1}', "cfg.json"), "the file cfg.json changed"),
    "Python": (python_is("3.99.1"), "-> 3.99.1"),
    "momadvise": (measured_with("fingerprints.versions", momadvise="0.0.9"), "momadvise: 0.0.9 -> "),
    "a patch of torch": (both(measured_with("fingerprints.versions", torch="2.13.0"), installed(torch="2.13.1")),
                         "torch: 2.13.0 -> 2.13.1"),
    "a build of torch": (both(measured_with("fingerprints.versions", torch="2.13.0+cu126"),
                              installed(torch="2.13.0+cu130")), "torch: 2.13.0+cu126 -> 2.13.0+cu130"),
    "a patch of the model's library": (
        both(measured_with("fingerprints.identity.model", libraries={"timm": "1.0.3"}), installed(timm="1.0.4")),
        "timm: 1.0.3 -> 1.0.4",
    ),
    "a driver": (both(ON_H100, device(**AN_H100 | {"driver_version": "580"})), "driver: 550 -> 580"),
}  # fmt: skip


@pytest.mark.parametrize(("change", "words"), ONLY_WARNS.values(), ids=ONLY_WARNS)
def test_what_moves_figures_a_little_warns_and_is_stale_to_a_strict_check(
    change: Change, words: str, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(project, monkeypatch)
    found = project.check()
    (difference,) = found.differences
    assert found.status is HOLDS
    assert words in difference.words
    assert difference.weight in (Weight.WARNING, Weight.READ)
    project.options["strict"] = True
    assert project.check().status is STALE


def test_another_price_only_picks_anew(project: Project) -> None:
    project.restate("evidence", goal="cheapest")
    project.restate("fingerprints.asked", price=2.5, max_cost_usd=1.0)
    project.options["price"] = Price(usd_per_hour=3.0, source="--price", date="as given")
    found = project.check()
    assert found.status is HOLDS
    assert found.differences == (Difference(subject="price", was="2.5", now="3.0", weight=Weight.PICK),)


def test_a_value_that_was_read_cannot_be_found_out_from_a_policy(measured: advisor.Answer) -> None:
    file = advisor.load_policy_file(measured.policy_path)
    assert file.fingerprints is not None
    identity = file.fingerprints.identity
    assert isinstance(identity, Identity)
    assert set(identity.environment) == {"MODEL_HIDDEN", "LOSS_SCALE"}
    assert all(value is None or len(value) == 4 for value in identity.environment.values())
    assert set(identity.files) == {"cfg.json"}, "no path of the machine"
