"""Bad input gets a clear error and loses nothing: the rule, the value and the fix, never a traceback of ours."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.session.command import run_command, run_here

Run = Callable[..., subprocess.CompletedProcess[str]]

GOOD_BATCH = "def make_batch(batch_size):\n    return {'inputs': torch.randn(batch_size, 8)}\n"
GOOD_MODEL = (
    "class Model(torch.nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.layer = torch.nn.Linear(8, 8)\n"
    "    def forward(self, inputs):\n"
    "        return self.layer(inputs).square().mean()\n"
    "def build_model():\n"
    "    return Model()\n"
)


def tune(tmp_path: Path, source: str, *options: str, run: Run = run_here) -> tuple[int, str, str]:
    """Write a model file and tune it briefly."""
    (tmp_path / "model.py").write_text(source)
    brief = ("--search-space", "smoke", "--trials", "1", "--time-limit", "20s", "--output", "out")
    result = run("model.py", *brief, *options, cwd=tmp_path)
    assert "advisor/" not in result.stderr, "no frame of ours may be shown"
    return result.returncode, result.stdout, result.stderr


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("")
    result = run_here("modle.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "modle.py" in result.stderr
    assert "model.py" in result.stderr, "the near match is shown"


def test_a_syntax_error_shows_file_and_line(tmp_path: Path) -> None:
    status, _, stderr = tune(tmp_path, "import torch\ndef build_model(:\n    pass\n")
    assert status == 2
    assert 'model.py", line 2' in stderr or "model.py, line 2" in stderr or "model.py:2" in stderr
    assert "def build_model(:" in stderr


def test_what_was_wrong_outside_the_model_file_may_be_put_right(tmp_path: Path) -> None:
    source = f"import pathlib, torch\ntext = pathlib.Path({str(tmp_path / 'data')!r}).read_text()\n{GOOD_MODEL}"
    source += "def make_batch(batch_size):\n    raise ValueError(text)\n"
    assert "FileNotFoundError" in tune(tmp_path, source)[2]
    (tmp_path / "data").write_text("there it is")
    assert "ValueError: there it is" in tune(tmp_path, source)[2]


@pytest.mark.parametrize("source", ["nosuch", "raises"])
def test_a_model_that_cannot_be_found_or_built_leaves_nothing(tmp_path: Path, source: str) -> None:
    model = tmp_path / "model.py"
    model.write_text(f"import torch\n{GOOD_BATCH}def build_model():\n    raise ValueError('not there')\n")
    named = "hf:nosuch" if source == "nosuch" else str(model)
    (tmp_path / "mine").mkdir()
    for options in ((), ("--output", "a/b/c"), ("--output", "mine")):
        result = run_here(named, "--time-limit", "20s", *options, cwd=tmp_path)
        assert result.returncode == 2
        assert "momadvise: error: " in result.stderr
        assert {one.name for one in tmp_path.iterdir()} - {"__pycache__"} == {"model.py", "mine"}
        assert not any((tmp_path / "mine").iterdir())


def test_a_file_with_only_a_class_gets_the_lines_to_add(tmp_path: Path) -> None:
    status, _, stderr = tune(tmp_path, "import torch\nclass Net(torch.nn.Module):\n    pass\n")
    assert status == 2
    assert "def build_model" in stderr
    assert "return Net(" in stderr
    assert "def make_batch" in stderr


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--time-limit", "soon"), "--time-limit"),
        (("--memory-limit", "lots"), "--memory-limit"),
        (("--trials", "0"), "--trials must be at least 1"),
        (("--global-batch", "0"), "--global-batch must be at least 1"),
        (("--goal", "bigger"), "needs --min-throughput"),
        (("--goal", "bigger", "--min-throughput", "0.5x"), "defines no SIZES"),
        (("--goal", "bigger", "--min-throughput", "fast"), "such as 20, or a share such as 0.5x"),
        (("--goal", "cheapest", "--price", "0"), "--price must be a finite number above zero, but got 0"),
        (("--device", "tpu"), "cpu, cuda"),
        (("--sampler", "grid"), "--sampler must be one of 'model', 'tpe', 'random', but got 'grid'"),
        (("--trials", "many"), "--trials must be a whole number, but got 'many'"),
        (("--price", "free"), "--price must be a finite number above zero, but got 'free'"),
        (("--storage", "study"), "--storage must be the URL of a database"),
        (("--storage", "redis://host"), "Valid databases: sqlite, postgresql, mysql"),
        (("--search-space", "exakt"), "exact"),
        (("--fidelity", "perfect"), "--fidelity must be one of 'exact', 'rounding'"),
        (("--rdzv-endpoint", "first:29400"), "--rdzv-endpoint needs --nnodes, the number of machines"),
        (("--methods", "chekpoint"), "Did you mean 'checkpoint'"),
        (("--methods", "swap"), "swap does not: the device is a CPU"),
        (("--methods", " , "), "--methods must name at least one method"),
        (("--nonsense",), "momadvise --help"),
        (
            ("--goal", "cheapest", "--price", "1"),
            "none is stated. Add --global-batch N or --batch N, or BATCH_SIZE = N",
        ),
        (
            ("--gpus", "2", "--global-batch", "33", "--methods", "ddp"),
            "--global-batch must be a multiple of the number of devices (2)",
        ),
        (("--gpus", "2", "--search-space", "smoke"), "but none does: smoke lists none of them. Add one to the space"),
    ],
)
def test_an_option_outside_its_rule(tmp_path: Path, options: tuple[str, ...], expected: str) -> None:
    (tmp_path / "model.py").write_text("import torch\n" + GOOD_MODEL + GOOD_BATCH)
    result = run_here("model.py", *options, cwd=tmp_path)
    assert result.returncode == 2
    assert expected in result.stderr
    assert "Traceback" not in result.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.py"], "a mistake leaves nothing behind"


def test_an_unknown_method_in_a_search_space_lists_the_valid_ones(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text(
        "schema: 1\nname: mine\ndescription: d\nfidelity: lossy\nmethods: {chekpoint: {every: [1]}}\n"
        "batch_fractions: [1]\nrecipes: []\n"
    )
    status, _, stderr = tune(tmp_path, "import torch\n" + GOOD_MODEL + GOOD_BATCH, "--search-space", "space.yaml")
    assert status == 2
    assert "chekpoint" in stderr
    assert "selective_checkpoint" in stderr


def test_an_output_folder_with_other_files_is_refused_unmodified(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("precious")
    status, _, stderr = tune(tmp_path, "import torch\n" + GOOD_MODEL + GOOD_BATCH)
    assert status == 2
    assert "other files" in stderr
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["thesis.tex"]


def test_an_output_folder_of_another_study_is_refused_unmodified(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    other = (
        '{"schema": 1, "workload": {"name": "other", "fingerprint": "x"}, "hardware": {}, "versions": {}, '
        '"request": "r", "memory_limit_bytes": 1}'
    )
    (tmp_path / "out" / "study.json").write_text(other)
    status, _, stderr = tune(tmp_path, "import torch\n" + GOOD_MODEL + GOOD_BATCH)
    assert status == 2
    assert "belongs to another study" in stderr
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["study.json"]
    assert (tmp_path / "out" / "study.json").read_text() == other


def test_an_output_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    status, _, stderr = tune(tmp_path, "import torch\n" + GOOD_MODEL + GOOD_BATCH, "--output", "file/out")
    assert status == 2
    assert "--output" in stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "expected"),
    [
        pytest.param("import torch\n1 / 0\n" + GOOD_MODEL + GOOD_BATCH, "ZeroDivisionError", id="import raises"),
        pytest.param(
            "import torch\ndef build_model():\n    raise RuntimeError('no weights')\n" + GOOD_BATCH,
            "no weights",
            id="build raises",
        ),
        pytest.param(
            "import torch\n" + GOOD_MODEL + "def make_batch(batch_size):\n    return open('/nowhere/data')\n",
            "/nowhere/data",
            id="batch raises",
        ),
        pytest.param(
            "import torch\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n    return missing\n",
            "missing",
            id="loss raises",
        ),
        pytest.param(
            "import torch\n"
            "class Explode(torch.autograd.Function):\n"
            "    @staticmethod\n"
            "    def forward(ctx, x):\n        return x * 1\n"
            "    @staticmethod\n"
            "    def backward(ctx, g):\n        raise ValueError('backward broke')\n"
            + GOOD_MODEL
            + GOOD_BATCH
            + "def compute_loss(model, batch):\n    return Explode.apply(model(**batch))\n",
            "backward broke",
            id="backward raises",
        ),
        pytest.param(
            "import torch\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n"
            "    return model.layer(batch['inputs'])\n",
            "scalar",
            id="loss is not scalar",
        ),
        pytest.param(
            "import torch\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n"
            "    return model(**batch).detach()\n",
            "gradient",
            id="loss has no gradient",
        ),
        pytest.param(
            "import torch\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n"
            "    return model(**batch) * float('nan')\n",
            "the first loss must be finite",
            id="loss is NaN",
        ),
        pytest.param(
            "import torch, os\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n    os._exit(0)\n",
            "crashed",
            id="the process exits",
        ),
        pytest.param(
            "import torch, ctypes\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n"
            "    ctypes.string_at(0)\n",
            "SIGSEGV",
            id="the process segfaults",
        ),
    ],
)
def test_a_model_that_cannot_make_one_step_says_why(tmp_path: Path, source: str, expected: str) -> None:
    status, stdout, stderr = tune(tmp_path, source)
    assert status == 2, stderr
    assert expected in stderr
    assert stdout == ""


@pytest.mark.slow
def test_a_model_that_hangs_is_ended_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advisor.session.trial_limits._SHORTEST_PROBE_SECONDS", 2.0)
    hanging = "def compute_loss(model, batch):\n    time.sleep(1000)\n"
    status, stdout, stderr = tune(tmp_path, "import torch, time\n" + GOOD_MODEL + GOOD_BATCH + hanging)
    assert status == 2, stderr
    assert "--time-limit" in stderr
    assert stdout == ""


@pytest.mark.slow
def test_the_users_traceback_is_the_users_own(tmp_path: Path) -> None:
    _, _, stderr = tune(tmp_path, "import torch\ndef build_model():\n    return helper()\n" + GOOD_BATCH)
    assert "in build_model" in stderr
    assert "return helper()" in stderr
    assert "NameError" in stderr


@pytest.mark.slow
def test_a_model_that_writes_garbage_everywhere_is_tuned_all_the_same(tmp_path: Path) -> None:
    noisy = (
        "import os, sys, torch\n" + GOOD_MODEL + GOOD_BATCH + "def compute_loss(model, batch):\n"
        "    print('\\x00\\xff{not json' * 100); sys.stderr.write('error: out of memory\\n')\n"
        "    os.write(1, b'\\xff\\xfe\\n'); sys.stdin.read()\n"
        "    return model(**batch)\n"
    )
    status, stdout, stderr = tune(tmp_path, noisy, "--json", run=run_command)
    assert status == 0, stderr
    assert stdout.startswith("{")
    assert "not json" not in stdout + stderr


@pytest.mark.slow
def test_a_memory_limit_that_nothing_fits_says_the_smallest_need(tmp_path: Path) -> None:
    good = "import torch\n" + GOOD_MODEL + GOOD_BATCH
    status, _, stderr = tune(tmp_path, good, "--memory-limit", "600B")
    assert status == 1
    assert "none fits below 600 B" in stderr
    assert re.search(r"smallest need is [\d.]+ \w+ \(predicted\), by (plain|checkpoint|optimizer)", stderr), stderr
