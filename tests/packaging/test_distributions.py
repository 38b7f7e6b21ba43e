"""What is published: a wheel and a source distribution that builds the same wheel, with valid metadata."""

from __future__ import annotations

import configparser
import importlib.util
import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from advisor.version import __version__

ROOT = Path(__file__).resolve().parents[2]
NOTES: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "release_notes.py"))
CHANGELOG = (ROOT / "docs" / "changelog.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


class Built(NamedTuple):
    """The wheel of the checkout, its source distribution, and the wheel of that."""

    wheel: Path
    sdist: Path
    wheel_of_sdist: Path


def build(what: str, folder: Path, into: Path) -> Path:
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("the build backend, hatchling, is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "--target", what, "--directory", str(into)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    (found,) = into.iterdir()
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("built")
    sdist = build("sdist", ROOT, folder / "sdist")
    with tarfile.open(sdist) as file:
        file.extractall(folder / "source", filter="data")
    (source,) = (folder / "source").iterdir()
    return Built(build("wheel", ROOT, folder / "wheel"), sdist, build("wheel", source, folder / "again"))


def contents(wheel: Path) -> dict[str, int]:
    """Name -> checksum of each file."""
    with zipfile.ZipFile(wheel) as file:
        return {one.filename: one.CRC for one in file.infolist()}


@pytest.mark.slow
def test_the_source_distribution_builds_the_same_wheel(built: Built) -> None:
    assert contents(built.wheel_of_sdist) == contents(built.wheel)
    assert built.wheel.name == built.wheel_of_sdist.name == f"momadvise-{__version__}-py3-none-any.whl"
    assert built.sdist.name == f"momadvise-{__version__}.tar.gz"


@pytest.mark.slow
def test_the_wheel_has_the_package_with_its_data_and_nothing_else(built: Built) -> None:
    names = set(contents(built.wheel))
    tracked = subprocess.run(["git", "ls-files", "advisor", "profiles", "search_spaces"], cwd=ROOT, capture_output=True)
    if tracked.returncode == 0:
        there = [one for one in tracked.stdout.decode().split() if (ROOT / one).exists()]
        assert {re.sub(r"^(profiles|search_spaces)/", r"advisor/data/\1/", one) for one in there} <= names
    assert {name.split("/")[0] for name in names} == {"advisor", f"momadvise-{__version__}.dist-info"}


@pytest.mark.slow
def test_the_metadata_is_valid_and_the_readme_renders(built: Built) -> None:
    if importlib.util.find_spec("twine") is None:
        pytest.skip("twine is not installed")
    command = [sys.executable, "-m", "twine", "check", "--strict", str(built.wheel), str(built.sdist)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_the_description_on_a_package_index_is_the_readme_without_what_leads_nowhere_there(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as file:
        metadata = file.read(f"momadvise-{__version__}.dist-info/METADATA").decode()
    text = metadata.split("\n\n", 1)[1]
    readme = (ROOT / "README.md").read_text()
    code = re.findall(r"^```.*?^```$", readme, flags=re.DOTALL | re.MULTILINE)
    assert code
    assert all(block in text for block in code)
    assert re.findall(r"^#.*", text, flags=re.MULTILINE) == re.findall(r"^#.*", readme, flags=re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.findall(r"\]\((?!https://)|<!--|!\[", prose)
    assert "How to covers" in " ".join(prose.split()), "the words of a link stay"


@pytest.mark.slow
def test_the_command_has_the_name_of_the_distribution_as_pipx_and_uvx_expect(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as file:
        information = f"momadvise-{__version__}.dist-info"
        points = configparser.ConfigParser()
        points.read_string(file.read(f"{information}/entry_points.txt").decode())
        metadata = HeaderParser().parsestr(file.read(f"{information}/METADATA").decode())
        assert f"{information}/licenses/LICENSE" in file.namelist()
    assert dict(points["console_scripts"]) == {"momadvise": "advisor.cli:main"}
    assert (metadata["Name"], metadata["Version"]) == ("momadvise", __version__)
    assert metadata["License-Expression"] == "Apache-2.0"


@pytest.mark.slow
def test_the_installed_wheel_runs_where_there_is_no_repository(built: Built, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(built.wheel) as file:
        file.extractall(site)
    # Without the path files of this environment, one of which may lead to the checkout.
    program = f"import sys; sys.path.insert(0, {str(site)!r}); from advisor.cli import main; sys.exit(main())"
    for arguments, said in ((["--help"], "usage: momadvise"), (["hardware", "-v"], "https://"), (["methods"], "fsdp")):
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        assert said in ran.stdout


def test_the_citation_is_of_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert isinstance(citation, dict)
    assert {"cff-version", "message", "title", "authors"} <= citation.keys(), "what the format requires"
    assert (citation["title"], citation["version"]) == (PROJECT["name"], __version__)
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]
    assert citation["keywords"] == PROJECT["keywords"]


def test_the_notes_of_this_version_come_from_the_changelog() -> None:
    assert NOTES["version"]() == __version__
    assert NOTES["notes"](__version__, CHANGELOG).startswith("- ")


def test_the_notes_of_a_version_are_its_section_alone() -> None:
    changelog = "# Changelog\n\n## 1.1.0 (unreleased)\n\n## 1.0.1 (2026-01-02)\n\n- b\n\n## 1.0.0\n\n- a\n"
    assert NOTES["notes"]("1.0.1", changelog) == "- b\n"
    for missing in ("1.0", "1.1.0", "2.0.0"):
        with pytest.raises(SystemExit, match=r"must have notes for .* but has them for: 1\.1\.0, 1\.0\.1, 1\.0\.0"):
            NOTES["notes"](missing, changelog)
