"""The README's commands and code do what it says, on a machine that has nothing but the dependencies."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from advisor.policy.file import load_policy_file

ROOT = Path(__file__).resolve().parents[2]
TUNE = "python -m pip install . -c constraints.txt && momadvise --goal faster examples/gpt2.py"
TEST = "python -m pip install -e '.[test]' -c constraints.txt && python -m pytest"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("command", [TUNE, TEST])
def test_the_readme_has_the_command_in_a_block_of_its_own(command: str) -> None:
    assert f"{command}\n" in blocks(ROOT / "README.md", "sh")


def test_ci_runs_the_readmes_test_command_to_the_letter() -> None:
    called = [line for line in (ROOT / ".ci" / "cpu").read_text().splitlines() if TEST in line]
    assert called == [f'{{ {TEST}; }} 2>&1 | tee "$scratch/tests"']
    assert ".ci/cpu || failed=$?" in (ROOT / ".ci" / "run").read_text().splitlines()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_on_a_page_is_python_and_links_lead_somewhere(page: Path) -> None:
    for code in blocks(page, "python"):
        compile(code, str(page), "exec")
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def checkout(destination: Path) -> Path:
    """A copy of what is in the repository, without anything that was built or measured here."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, destination / name)
    return destination


def skip_unless_installed_as_constrained() -> None:
    """Without this, the test would download other versions of the dependencies."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend, hatchling, is not installed")
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if re.match(r"[\w-]+==", line)
    )
    ours = {
        re.split(r"[<>=;\[ ]", text)[0] for text in importlib.metadata.requires("momadvise") or () if ";" not in text
    }
    for name in ours & pins.keys():
        installed = importlib.metadata.version(name).partition("+")[0]
        if installed != pins[name]:
            pytest.skip(f"{name} {installed} is installed, not {pins[name]} of constraints.txt")


def environment_with(venv: Path) -> dict[str, str]:
    """A new virtual environment in which the dependencies count as installed, and this project does not."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, capture_output=True)
    (site,) = venv.glob("lib/python*/site-packages")
    paths = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    # Added this way, path files in those folders are not read: an editable installation stays unseen.
    (site / "dependencies.pth").write_text("\n".join(paths))
    dropped = ("PYTHONPATH", "PYTHONHOME", "RANK", "WORLD_SIZE")
    return {
        **{name: value for name, value in os.environ.items() if name not in dropped},
        "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip's way to say --no-build-isolation
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_COMPILE": "0",  # it runs once
        "COLUMNS": "120",
    }


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_readmes_first_command_installs_and_tunes(tmp_path: Path) -> None:
    # One trial of two samples of a shallow GPT-2 in a small space shows that it works; a search of the whole one on a
    # CPU takes minutes.
    skip_unless_installed_as_constrained()
    folder = checkout(tmp_path / "momadvise")
    example = folder / "examples" / "gpt2.py"
    published = "def build_model(layers=12, width=768)"
    assert published in example.read_text()
    example.write_text(example.read_text().replace(published, "def build_model(layers=2, width=192)"))
    result = subprocess.run(
        ["bash", "-c", f"{TUNE} --search-space smoke --trials 1 --time-limit 120s --global-batch 2"],
        cwd=folder,
        env=environment_with(tmp_path / "venv"),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-4000:]
    (run,) = (folder / "momadvise-runs").iterdir()
    assert run.name.startswith("gpt2-")
    file = load_policy_file(run / "policy.yaml")
    assert file.evidence is not None
    assert file.evidence.samples_per_second > 0
    compile((run / "wrapper.py").read_text(), "wrapper.py", "exec")
    shown = "".join(result.stdout.split())
    assert all(word in shown for word in ("baseline", "winner", "policy.yaml", "wrapper.py")), result.stdout
    (installed,) = (tmp_path / "venv").glob("lib/python*/site-packages/advisor")
    assert (installed / "data" / "profiles" / "cpu.yaml").is_file()
    assert not list((folder / "advisor").rglob("__pycache__")), "the installed package ran, not the checkout"
