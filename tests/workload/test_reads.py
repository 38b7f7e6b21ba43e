"""What the user's code reads while it is imported and built is noted by name; what libraries read is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from advisor.workload.identity import Identity
from advisor.workload.reads import EVERY_VARIABLE, Reads, is_users

_RECORD = """
import json, runpy, sys
from advisor.workload.reads import reads_so_far, recording_reads

with recording_reads():
    sys.path.insert(0, sys.argv[1])
    import user_model
reads = reads_so_far()
print(json.dumps([reads.environment, reads.files]))
"""


def read_by(folder: Path, text: str, **environment: str) -> tuple[list[str], list[str]]:
    """The variables and the files (by name) that a user's module reads."""
    (folder / "user_model.py").write_text("import os\n" + textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, "-c", _RECORD, str(folder)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    variables, files = json.loads(done.stdout)
    return variables, sorted(Path(file).name for file in files if Path(file).parent == folder)


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['A_1']",
        "os.environ.get('A_1')",
        "os.getenv('A_1', '2')",
        "'A_1' in os.environ",
        "os.environ.setdefault('A_1', '2')",
        "os.path.expandvars('$A_1/x')",
        "[os.environ[name] for name in ('A_1',)]",
        "(lambda: os.environ.get('A_1'))()",
    ],
)
def test_a_variable_that_is_looked_up_is_noted_in_every_way_to_do_so(tmp_path: Path, line: str) -> None:
    assert read_by(tmp_path, line, A_1="1")[0] == ["A_1"]


def test_one_that_is_not_set_is_noted_too(tmp_path: Path) -> None:
    assert read_by(tmp_path, "os.environ.get('A_2')")[0] == ["A_2"]


@pytest.mark.parametrize(
    "line",
    [
        "dict(os.environ)",
        "os.environ.copy()",
        "{**os.environ}",
        "import subprocess; subprocess.run(['true'], env={**os.environ, 'X': '1'})",
        "os.environ['A_3'] = '1'",
        "import tempfile; tempfile.gettempdir()",
        "import torch",
        "[os.environ.get(name) for name in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'MASTER_PORT', 'SLURM_JOB_ID')]",
    ],
)
def test_what_copies_all_or_sets_or_is_a_librarys_own_is_not(tmp_path: Path, line: str) -> None:
    assert read_by(tmp_path, line, A_1="1")[0] == []


def test_code_that_goes_through_all_variables_may_depend_on_any(tmp_path: Path) -> None:
    line = "SIZES = {name: value for name, value in os.environ.items() if name.startswith('A_')}"
    assert read_by(tmp_path, line, A_1="1")[0] == ["*"]
    assert read_by(tmp_path, "for name in os.environ:\n    pass", A_1="1")[0] == ["*"]


def test_what_another_process_is_called_with_and_what_safetensors_opens_is_noted(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text("")
    _, files = read_by(
        tmp_path,
        """
        import subprocess, sys
        subprocess.run([sys.executable, "make.py"], check=True)
        import numpy, safetensors.numpy
        safetensors.numpy.save_file({"a": numpy.ones(3)}, "weights.safetensors")
        with safetensors.safe_open("weights.safetensors", "numpy"):
            pass
        """,
    )
    assert files == ["make.py", "user_model.py", "weights.safetensors"]


def test_files_that_are_read_are_noted_whether_they_are_there_or_not(tmp_path: Path) -> None:
    (tmp_path / "there.json").write_text("{}")
    _, files = read_by(
        tmp_path,
        """
        import contextlib, json, pathlib
        json.load(open("there.json"))
        with contextlib.suppress(FileNotFoundError):
            pathlib.Path("gone.yaml").read_text()
        pathlib.Path("log.txt").write_text("x")
        open("log.txt").read()
        """,
    )
    assert files == ["gone.yaml", "there.json", "user_model.py"], "what it wrote itself is none of it"


def test_what_a_library_reads_for_the_user_counts(tmp_path: Path) -> None:
    _, files = read_by(
        tmp_path,
        """
        import numpy, torch
        torch.save({"a": 1}, "weights.pt"); numpy.save("table.npy", numpy.ones(3))
        """,
    )
    assert files == ["user_model.py"]
    _, files = read_by(tmp_path, "import numpy, torch; torch.load('weights.pt'); numpy.load('table.npy')")
    assert files == ["table.npy", "user_model.py", "weights.pt"]


def test_modules_beside_the_model_are_noted_however_they_are_imported(tmp_path: Path) -> None:
    (tmp_path / "part.py").write_text("import os\nDEPTH = os.environ.get('A_4')\n")
    variables, files = read_by(tmp_path, "import importlib; importlib.import_module('pa' + 'rt')")
    assert variables == ["A_4"]
    assert files == ["part.py", "user_model.py"]


def test_libraries_of_an_environment_beneath_this_one_are_nobodys_model(tmp_path: Path) -> None:
    """As a ``.pth`` file, a system-wide Python or ``PYTHONPATH`` adds them: thousands of files to be read again."""
    assert is_users(str(tmp_path / "model.py"))
    assert not is_users(str(tmp_path / "lib" / "python3" / "site-packages" / "borrowed" / "model.py"))
    assert not is_users("/usr/local/lib/python3/dist-packages/borrowed.py")


def test_the_environment_is_itself_again_afterwards() -> None:
    from advisor.workload.reads import recording_reads

    before = type(os.environ)
    with recording_reads(), recording_reads():
        assert type(os.environ) is not before
    assert type(os.environ) is before


def test_folders_that_are_listed_are_part_of_what_a_study_holds_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_1", "1")
    known = Identity.of(Reads(environment=(EVERY_VARIABLE,), folders=(str(tmp_path),)), None)
    (tmp_path / "__pycache__").mkdir()
    monkeypatch.setenv("SSH_TTY", "/dev/pts/3")
    assert known.changes() == []
    (tmp_path / "another.txt").write_text("")
    monkeypatch.setenv("A_5", "1")
    assert known.changes() == [
        "an environment variable (the model's code goes through all of them)",
        f"the files in {tmp_path}",
    ]


@pytest.mark.parametrize(
    "line", ["os.listdir('data')", "list(os.walk('data'))", "list(pathlib.Path('data').glob('*'))"]
)
def test_a_folder_is_noted_however_it_is_listed(tmp_path: Path, line: str) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "user_model.py").write_text(f"import os, pathlib\n{line}\n")
    code = _RECORD.replace("reads.files]", "reads.folders]")
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, cwd=tmp_path)
    assert json.loads(done.stdout)[1] == [str(tmp_path / "data")]
