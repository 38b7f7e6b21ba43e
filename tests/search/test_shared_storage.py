"""Several workers on one study: a journal file or a database that they share, and nothing measured twice."""

from __future__ import annotations

import datetime
import itertools
import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import optuna
import psutil
import pytest
import sqlalchemy

import advisor.search.study.storage as storage_module
from advisor.errors import OptionError
from advisor.methods.setting import use
from advisor.search.space.explored import Explored
from advisor.search.space.factors import Choice
from advisor.search.space.parameters import Parameters
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.search.study.sampler import Proposal, Proposer
from advisor.search.study.storage import check_storage
from advisor.search.study.study_sync import WORKER, StudySync, is_dead, new_worker

from .synthetic import rate, recipe, space

SPACE = space("precision", "small_adam", "swap", fractions=(1.0,), recipes=(recipe("8-bit Adam", use("small_adam")),))


DATABASE_SERVER = "MOMADVISE_TEST_DATABASE"
"""Variable with the URL of a database on a server (``postgresql://...``) whose user may create others: then all that a
storage must do is tested on it, too."""


@pytest.fixture(params=["study.journal", "sqlite:///{folder}/study.db", DATABASE_SERVER])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    if request.param != DATABASE_SERVER:
        return str(request.param).format(folder=tmp_path)
    server = os.environ.get(DATABASE_SERVER)
    if server is None:
        pytest.skip(f"needs a database server, whose URL {DATABASE_SERVER} has")
    return _new_database(server)


def _new_database(server: str) -> str:
    name = f"study_{uuid.uuid4().hex}"
    engine = sqlalchemy.create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return sqlalchemy.make_url(server).set(database=name).render_as_string(hide_password=False)


def worker(storage: str, of: ResolvedSpace = SPACE, seed: int = 0) -> Proposer:
    return Proposer(of, storage=storage, study_name="shared", maximize=(True,), seed=seed)


def tell(one: Proposer, proposal: Proposal) -> None:
    record = {"record": proposal.combination.label}
    one.tell(proposal, rate(proposal.settings, proposal.batch_fraction), attributes=record)


def asked(one: Proposer) -> Proposal:
    proposal = one.ask()
    assert proposal is not None
    return proposal


def test_two_workers_share_the_space_between_them(storage: str) -> None:
    workers = [worker(storage), worker(storage)]
    seen = []
    for one in itertools.cycle(workers):
        proposal = one.ask()
        if proposal is None:
            break
        seen.append(proposal.combination.label)
        tell(one, proposal)
    assert len(seen) == len(set(seen)) == SPACE.count
    assert seen[:2] == ["plain", "small_adam"], "the seeds are enqueued once, and each takes one"
    for one in workers:
        assert one.ask() is None
        assert one.completed == SPACE.count
        one.close()


def test_what_one_has_under_way_another_leaves_alone(storage: str) -> None:
    workers = [worker(storage, seed=1) for _ in range(3)]
    seen = [asked(one).combination.label for one in workers * 3]
    assert len(set(seen)) == 9
    for one in workers:
        one.close()


def test_what_one_gives_back_another_may_take(storage: str) -> None:
    of = space("small_adam", fractions=(1.0,))
    first, second = worker(storage, of), worker(storage, of)
    plain, adam = asked(first), asked(second)
    assert second.ask() is None
    first.abandon(plain)
    again = asked(second)
    assert again.combination == plain.combination
    for proposal in (adam, again):
        tell(second, proposal)
    assert first.ask() is None
    first.close()
    second.close()


def test_each_reads_what_the_other_found_and_not_its_own(storage: str) -> None:
    first, second = worker(storage), worker(storage)
    for one in (first, second, second):
        tell(one, asked(one))
    assert len(first.take_records()) == 2
    assert second.take_records() == ["plain"]
    assert first.take_records() == second.take_records() == []
    first.close()
    second.close()


def test_a_worker_learns_from_what_another_measured(storage: str) -> None:
    """The trap: each would have to find out for itself that one method is bad."""
    of = space("precision", "checkpoint", "small_adam", fractions=(1.0,))
    first, second = worker(storage, of), worker(storage, of)
    for _ in range(12):
        tell(first, asked(first))
    left = second.gain_left()
    assert left is not None
    assert left.measured == 12
    assert left == first.gain_left()
    first.close()
    second.close()


PROCESS = """
import sys
sys.path.insert(0, {root!r})
from tests.search.test_shared_storage import worker, tell
one = worker({storage!r}, seed={seed})
while (proposal := one.ask()) is not None:
    print(proposal.combination.label, flush=True)
    tell(one, proposal)
one.close()
"""


@pytest.mark.slow
def test_two_processes_measure_everything_once(storage: str, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    scripts = [PROCESS.format(root=root, storage=storage, seed=seed) for seed in (0, 0)]
    processes = [
        subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        for script in scripts
    ]
    found = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(found[0] + found[1]) == len({*found[0], *found[1]}) == SPACE.count


@pytest.mark.slow
def test_what_a_killed_worker_had_under_way_is_taken_by_the_next(storage: str, tmp_path: Path) -> None:
    of = space("small_adam", fractions=(1.0,))
    code = PROCESS.format(root=str(Path(__file__).parents[2]), storage=storage, seed=0)
    code = code.replace("    tell(one, proposal)", "    import os; os.kill(os.getpid(), 9)")
    killed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (killed.returncode, killed.stdout) == (-9, "plain\n")
    living = worker(storage)
    labels = [asked(living).combination.label for _ in range(SPACE.count)]
    assert "plain" in labels
    assert of.count < len(labels) == len(set(labels))
    living.close()


def test_a_worker_that_comes_while_another_makes_the_tables_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: PostgreSQL's second worker of two that start together fails, for the tables are there by then."""
    real, calls = storage_module.RDBStorage, []

    def racing(url: str, **options: object) -> object:
        calls.append(url)
        if len(calls) < 3:
            raise sqlalchemy.exc.IntegrityError("CREATE TYPE", {}, Exception("duplicate key"))
        return real(url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(storage_module, "RDBStorage", racing)
    monkeypatch.setattr(storage_module, "_PAUSE_SECONDS", 0.0)
    one = worker(f"sqlite:///{tmp_path}/study.db")
    assert asked(one).combination.label == "plain"
    assert len(calls) == 3
    one.close()


class Claims:
    """Two workers that claimed one point at the same moment, the first with the smaller number."""

    def __init__(self, at_pause: Callable[[Claims], None]) -> None:
        self.study = optuna.create_study()
        self.pauses = 0
        parameters, choice = Parameters(SPACE), Choice(Combination(), 1.0)
        tried = [Explored(SPACE), Explored(SPACE)]

        def sleep(seconds: float) -> None:
            self.pauses += 1
            at_pause(self)

        self.syncs = [StudySync(self.study, parameters, one, shared=True, sleep=sleep) for one in tried]
        self.point = tried[0].point(*choice)
        self.trials = []
        for book in self.syncs:
            self.study.enqueue_trial(parameters.of(choice))
            self.trials.append(self.study.ask(dict(parameters.distributions)))
            book.sign(self.trials[-1])

    def gives_way(self, number: int) -> bool:
        return self.syncs[number].gives_way(self.trials[number], self.point)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
class TestTwoClaimsOnOnePoint:
    def test_the_larger_number_gives_way_at_once_and_the_smaller_keeps_it(self) -> None:
        claims = Claims(lambda claims: claims.study.tell(claims.trials[1], state=optuna.trial.TrialState.FAIL))
        assert claims.gives_way(1)
        assert claims.pauses == 0
        assert not claims.gives_way(0)
        assert claims.pauses == 1

    def test_the_smaller_gives_way_to_one_that_has_not_seen_it(self) -> None:
        claims = Claims(lambda claims: None)
        assert claims.gives_way(0)
        assert claims.pauses > 1

    def test_what_was_completed_meanwhile_is_not_repeated(self) -> None:
        claims = Claims(lambda claims: None)
        claims.study.tell(claims.trials[1], 1.0)
        assert claims.gives_way(0)
        assert claims.pauses == 0


def test_a_worker_is_dead_when_its_process_is_gone_or_its_number_is_anothers() -> None:
    now = datetime.datetime.now()
    assert not is_dead(new_worker(), now)
    assert is_dead(f"{socket.gethostname()} {os.getpid()} 1.0 0", now), "the number was given to another process"
    gone = next(number for number in range(2**22, 2**21, -1) if not psutil.pid_exists(number))
    assert is_dead(f"{socket.gethostname()} {gone} 1.0 0", now)


def test_whether_a_worker_of_another_machine_lives_is_told_by_its_silence_alone() -> None:
    now = datetime.datetime.now()
    assert not is_dead("elsewhere 1 1.0 0", now - datetime.timedelta(hours=3))
    assert is_dead("elsewhere 1 1.0 0", now - datetime.timedelta(days=2))
    assert not is_dead(None, now)
    assert is_dead(None, now - datetime.timedelta(minutes=5))


def test_trials_are_signed_only_where_others_can_read_them(storage: str, tmp_path: Path) -> None:
    for where in (storage, tmp_path / "own.db"):
        one = Proposer(SPACE, storage=where, study_name="s", maximize=(True,))
        asked(one)
        (trial,) = one._study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
        assert (WORKER in trial.user_attrs) == isinstance(where, str)
        one.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("study", "must be the URL of a database .* or a journal file .* but got 'study'"),
        ("study.db", "A file name needs sqlite:/// before it"),
        ("oracle://host/name", "Valid databases: sqlite, postgresql, mysql"),
        ("sqlite://", "names no database"),
        ("sqlite:///:memory:", "names no database"),
        ("no/such/folder/study.journal", "in a folder that exists"),
        ("", "must be the URL"),
    ],
)
def test_what_is_no_storage_is_the_users_mistake(text: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        check_storage(text)


@pytest.mark.parametrize("text", ["sqlite:///study.db", "postgresql://me@host/name", "mysql://me@host/name", "a.log"])
def test_databases_and_journals_are_storages(text: str) -> None:
    check_storage(text)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(OptionError) as caught:
        check_storage("oracle://me:secret@host/name")
    assert "secret" not in str(caught.value)
    assert "me:***@host" in str(caught.value)


def test_a_storage_that_cannot_be_opened_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_text("this is not SQLite, and it is long enough to be sure of that" * 20)
    (tmp_path / "study.log").write_text("12:00 started\n12:01 ended\n")
    with pytest.raises(OptionError, match=r"--storage must be readable and writable.*not a database"):
        worker(f"sqlite:///{tmp_path}/study.db")
    with pytest.raises(OptionError, match="must be a journal of Optuna"):
        worker(str(tmp_path / "study.log"))
