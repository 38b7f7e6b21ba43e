"""Where a study is kept: in memory, in a file of its own, or where several workers share it.

A file ending in ``.journal`` or ``.log`` is an Optuna journal, which needs no server and no file-system locks, so it
works where workers share only a network folder. Anything else is a SQLAlchemy URL.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import sqlite3
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import filelock
import optuna
import sqlalchemy
from optuna.exceptions import ExperimentalWarning
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection

from advisor.errors import OptionError, OutputFolderError
from advisor.files import set_aside
from advisor.text.paths import path_of
from advisor.text.printable import quoted, shown

__all__ = [
    "check_opens",
    "check_storage",
    "close_storage",
    "one_at_a_time",
    "open_study",
    "put_aside_damaged",
    "quietly",
]

_DATABASES = ("sqlite", "postgresql", "mysql")
_JOURNALS = (".journal", ".log")
_WAIT_SECONDS = 30
_TRIES, _PAUSE_SECONDS = 5, 0.2
"""Attempts to open a database in which other workers may be creating tables."""

_SPACE = "space"
_PASSWORD = re.compile(r":[^:/@]*@")
_UNUSABLE = (
    OSError,
    sqlalchemy.exc.SQLAlchemyError,
    sqlite3.Error,
    optuna.exceptions.StorageInternalError,
    json.JSONDecodeError,
    UnicodeDecodeError,
)
_RULE = (
    "--storage must be the URL of a database (sqlite:///study.db, postgresql://user@host/name, mysql://user@host/name) "
    "or a journal file (study.journal)"
)


def check_storage(text: str) -> None:
    """Check the value of ``--storage`` without opening it.

    Raises:
        OptionError: It is no URL of a database and no journal file.
    """
    if _is_journal(text):
        folder = path_of(text, "--storage", OptionError).absolute().parent
        if not os.path.isdir(folder):
            raise OptionError(f"{_RULE} in a folder that exists, but there is no {shown(folder)}. Make it first.")
        return
    if not text.isprintable():
        raise OptionError(f"{_RULE}, but got {quoted(text)}, which has characters that cannot be printed.")
    try:
        url = sqlalchemy.make_url(text)
    except (sqlalchemy.exc.ArgumentError, ValueError):  # a non-numeric port is a ValueError
        raise OptionError(
            f"{_RULE}, but got {quoted(_PASSWORD.sub(':***@', text))}. A file name needs "
            f"sqlite:/// before it or one of these endings: {', '.join(_JOURNALS)}."
        ) from None
    if url.get_backend_name() not in _DATABASES:
        raise OptionError(f"{_RULE}, but got {quoted(_shown(text))}. Valid databases: {', '.join(_DATABASES)}.")
    if not url.database or url.database == ":memory:":
        raise OptionError(f"{_RULE}, but {quoted(_shown(text))} names no database, which several workers could share.")


def check_opens(text: str) -> None:
    """Check that ``--storage`` opens, before anything is measured.

    Raises:
        OptionError: It cannot be opened, or holds something else.
    """
    with quietly(text), contextlib.ExitStack() as turn:
        if text.startswith("sqlite"):
            with open(_lock_beside(text), "ab"):  # otherwise waiting for the lock would never end
                turn.enter_context(one_at_a_time(text))
        storage = _open_storage(text)
        assert storage is not None, "a shared storage is somewhere"
        try:
            storage.get_all_studies()
        finally:
            close_storage(storage)


def open_study(
    where: Path | str | None, name: str, maximize: Sequence[bool], choices: Mapping[str, Sequence[object]]
) -> optuna.Study:
    """Open or make the study of a space.

    Applicability may change between two runs (less free host memory, an uninstalled library), and with it the choices,
    which are fixed within a study. The storage then gets a second study beside the first.

    Raises:
        OptionError: The file is no journal, or the driver of the database is not installed.
    """
    storage = _open_storage(where)
    digest = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:8]
    for own_name in (name, f"{name}-{digest}"):
        study = optuna.create_study(
            study_name=own_name,
            storage=storage,
            directions=[StudyDirection.MAXIMIZE if larger else StudyDirection.MINIMIZE for larger in maximize],
            load_if_exists=True,
        )
        if _SPACE not in study.user_attrs:
            study.set_user_attr(_SPACE, choices)
        if study.user_attrs[_SPACE] == choices:
            return study
    raise AssertionError(f"two spaces have the digest {digest}")


def put_aside_damaged(path: Path) -> Path | None:
    """Move a damaged database of our own out of the way, as the ledger has the measurements too; return its new path.

    Raises:
        OSError: It cannot be moved.
    """
    if not path.is_file() or _is_sound(path):
        return None
    aside = set_aside(path, "damaged")
    for ending in ("-journal", "-wal", "-shm"):  # they belong to the damaged file
        path.with_name(path.name + ending).unlink(missing_ok=True)
    return aside


def _is_sound(path: Path) -> bool:
    try:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            return connection.execute("PRAGMA integrity_check(1)").fetchall() == [("ok",)]
    except sqlite3.DatabaseError as error:  # a lock or a failing disk is not damage
        return getattr(error, "sqlite_errorcode", None) not in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT)


def one_at_a_time(where: Path | str | None) -> contextlib.AbstractContextManager[object]:
    """A lock to hold while a study is opened or asked.

    SQLite locks no rows: two workers that read before either writes would both take the same waiting trial. A lock file
    beside a shared database prevents that. Journals and database servers need none.
    """
    if not isinstance(where, str) or not where.startswith("sqlite"):
        return contextlib.nullcontext()
    return filelock.FileLock(_lock_beside(where))


def _lock_beside(url: str) -> str:
    return f"{sqlalchemy.make_url(url).database}.lock"


def close_storage(storage: BaseStorage) -> None:
    """Release a study's file or connection."""
    storage.remove_session()
    backend = getattr(storage, "_backend", storage)
    engine = getattr(backend, "engine", None)
    if engine is not None:
        engine.dispose()


@contextlib.contextmanager
def quietly(where: Path | str | None) -> Iterator[None]:
    """Silence Optuna's log and experimental warnings, and restore everything afterwards.

    Raises:
        OutputFolderError: The study's own file cannot be read or written.
        OptionError: What ``--storage`` names cannot.
    """
    logger = logging.getLogger("optuna")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            yield
    except (*_UNUSABLE, ValueError) as error:
        if not isinstance(error, _UNUSABLE) and not (isinstance(where, str) and _is_journal(where)):
            raise  # not from a journal's line
        own = _of_sqlite(error)
        cause = " ".join(str(own or getattr(error, "orig", None) or error.__cause__ or error).split())
        if own is not None and own.sqlite_errorcode == sqlite3.SQLITE_FULL:
            raise OutputFolderError(
                f"momadvise must be able to write what it finds, but {where} cannot be written: {cause}. Make room and "
                "run the same command again: finished trials are kept."
            ) from error
        if isinstance(where, str):
            raise OptionError(
                f"--storage must be readable and writable for Optuna, but {_shown(where)}: {cause}. Check the URL and "
                "the rights of its user."
            ) from error
        raise OutputFolderError(
            f"The study's file must be a readable and writable SQLite file of Optuna, but {where}: {cause}. "
            "Use another --output folder."
        ) from error
    finally:
        logger.setLevel(level)


def _of_sqlite(error: BaseException | None) -> sqlite3.Error | None:
    """The SQLite error that caused a library's error."""
    while error is not None and not (isinstance(error, sqlite3.Error) and hasattr(error, "sqlite_errorcode")):
        error = error.__cause__ or error.__context__
    return error


def _open_storage(where: Path | str | None) -> BaseStorage | None:
    if where is None:
        return None
    if isinstance(where, str) and _is_journal(where):
        try:
            return JournalStorage(JournalFileBackend(str(Path(where).absolute())))
        except (
            ArithmeticError,
            AssertionError,
            AttributeError,
            LookupError,
            RecursionError,
            TypeError,
            ValueError,
        ) as error:
            raise OptionError(
                f"--storage must be a journal of Optuna, but {shown(where)} holds something else. Name another file."
            ) from error
    url = where
    if not isinstance(url, str):
        url = sqlalchemy.URL.create("sqlite", database=str(url.absolute())).render_as_string(hide_password=False)
    # Wait for other connections (a second worker, or optuna-dashboard reading along) instead of failing at once.
    waits: dict[str, object] = (
        {"connect_args": {"timeout": _WAIT_SECONDS}} if url.startswith("sqlite") else {"pool_pre_ping": True}
    )
    try:
        return _database(url, waits)
    except ImportError as error:
        driver = error.__cause__ or error
        raise OptionError(
            f"--storage must be a database whose driver is installed, but for {_shown(url)}: {driver}. Install it with "
            "pip, or share a journal file (study.journal)."
        ) from error
    except (TypeError, ValueError) as error:
        raise OptionError(
            f"--storage must be a URL that its database's driver understands, but for {_shown(url)}: "
            f"{shown(str(error))}. Check what stands behind the question mark."
        ) from error


def _database(url: str, engine_kwargs: dict[str, object]) -> RDBStorage:
    """Open a database, and create Optuna's tables in it if it has none.

    Checking and creating are two steps, so one of two simultaneous workers may fail; it finds the tables when it tries
    again.
    """
    for _ in range(_TRIES - 1):
        try:
            return RDBStorage(url, engine_kwargs=engine_kwargs)
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.ProgrammingError):
            time.sleep(_PAUSE_SECONDS)
    return RDBStorage(url, engine_kwargs=engine_kwargs)


def _is_journal(text: str) -> bool:
    return "://" not in text and os.path.splitext(text)[1] in _JOURNALS


def _shown(url: str) -> str:
    """A URL without its password."""
    return shown(url if _is_journal(url) else sqlalchemy.make_url(url).render_as_string(hide_password=True))
