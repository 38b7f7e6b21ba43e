"""Where Python compiles the libraries anew in every process, the user is told why, and how to end it."""

from __future__ import annotations

import compileall
import importlib
import os
import shlex
import sys
from pathlib import Path

import pytest

from advisor.session.setup.bytecode import notes_on_bytecode


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package of that name, installed without bytecode; Python may write it."""
    folder = tmp_path / "installed here" / "site-packages"
    (folder / "library").mkdir(parents=True)
    (folder / "library" / "__init__.py").write_text("raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    importlib.invalidate_caches()
    return folder


def test_nothing_is_said_where_the_first_import_keeps_it(library: Path) -> None:
    assert notes_on_bytecode("library") == []


def test_where_the_environment_forbids_it_the_note_has_the_variable_and_the_command(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (note,) = notes_on_bytecode("library")
    assert note.startswith(
        "Python compiles library and other libraries anew in every process, because PYTHONDONTWRITEBYTECODE is set"
    )
    assert note.endswith(shlex.join([sys.executable, "-m", "compileall", "-q", str(library)]))


def test_once_it_was_compiled_nothing_is_said(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert len(notes_on_bytecode("library")) == 1
    assert compileall.compile_dir(library, quiet=1)
    assert notes_on_bytecode("library") == []


def test_a_library_beside_its_source_is_compiled_without_the_rest_of_that(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (library / "library").rename(tmp_path / "library")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (note,) = notes_on_bytecode("library")
    assert note.endswith(shlex.join(["-q", str(source)]))


def test_a_folder_that_cannot_be_written_is_named(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    (note,) = notes_on_bytecode("library")
    assert f"{library / 'library'} cannot be written" in note
    assert "PYTHONPYCACHEPREFIX" in note


def test_where_bytecode_goes_elsewhere_only_that_must_be_writable(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "prefix" / "not made yet"))
    monkeypatch.setattr(os, "access", lambda place, _: Path(place) == tmp_path)
    assert notes_on_bytecode("library") == []


def test_a_library_that_is_not_there_needs_none() -> None:
    assert notes_on_bytecode("no_such_library_of_any_name") == []
