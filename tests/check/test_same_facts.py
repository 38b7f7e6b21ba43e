"""A study folder and the cache of a search hold for the same facts as a policy."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import advisor
from advisor.errors import OutputFolderError
from advisor.hardware.detect import detect_hardware
from advisor.measure.batches.model_identity import built_on_meta, identity_of
from advisor.report.json_documents import json_answer
from advisor.session.request import TuneRequest
from advisor.session.setup.same_model import look_at_model
from advisor.session.setup.versions import versions
from advisor.session.study import StudyMarker, default_folders, open_study, study_marker
from advisor.workload._loading import load_workload
from advisor.workload.source import resolve_source
from tests.session.test_same_study import StoppedError, StoppingBeforeTrials

from .projects import Project, forget_modules, look_here

HERE = detect_hardware("cpu")


def marker(project: Project, *, seed: int = 0, memory: float = 1.0, **versions_now: str) -> StudyMarker:
    source = resolve_source(project.folder / (project.model or "model.py"))
    device = msgspec.structs.replace(HERE, memory_bytes=int(HERE.memory_bytes * memory))
    request = TuneRequest(source=source, seed=seed)
    return study_marker(request, device, {**versions(), **versions_now}, "space", limit_bytes=2**30)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.chdir(tmp_path)
    forget_modules()
    return Project(tmp_path)


def test_what_is_a_warning_goes_on_in_the_same_folder(project: Project) -> None:
    began = marker(project, torch="2.13.0", python="3.11.7")
    open_study(Path("out"), began)
    later = marker(project, seed=1, memory=0.99, torch="2.13.1", python="3.12.1", momadvise="9", newly="0.18.0")
    assert open_study(Path("out"), later)[1] == began
    assert next(default_folders(later)) == next(default_folders(began))
    assert {one.words for one in began.differences(later)} == {
        "torch: 2.13.0 -> 2.13.1", "python: 3.11.7 -> 3.12.1", f"momadvise: {advisor.__version__} -> 9",
    }  # fmt: skip


def test_what_makes_a_policy_stale_is_another_study(project: Project) -> None:
    began = marker(project, torch="2.13.0", bitsandbytes="0.49.0")
    open_study(Path("out"), began)
    for later, words in (
        (marker(project, memory=0.9), "memory: "),
        (marker(project, torch="2.14.0"), "torch: 2.13.0 -> 2.14.0"),
        (marker(project, torch="2.13.0", bitsandbytes="0.50.0"), "bitsandbytes: 0.49.0 -> 0.50.0"),
    ):
        with pytest.raises(OutputFolderError, match=f"belongs to another study: .*{words}"):
            open_study(Path("out"), later)


def test_a_renamed_file_finds_the_study_of_before(project: Project) -> None:
    folder = next(default_folders(marker(project)))
    open_study(folder, marker(project))
    (project.folder / "model.py").rename(project.folder / "network.py")
    project.model = "network.py"
    assert next(default_folders(marker(project))) == folder


def test_a_study_of_an_older_version_is_refused_with_the_reason(project: Project) -> None:
    old = msgspec.structs.replace(marker(project), schema=1)
    Path("out").mkdir()
    Path("out/study.json").write_bytes(msgspec.json.encode(old))
    with pytest.raises(OutputFolderError, match="an older version of momadvise measured it"):
        open_study(Path("out"), marker(project))


def test_a_model_without_memory_is_described_as_a_real_one(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    look_here(monkeypatch)
    source = resolve_source(project.folder / "model.py")
    workload = load_workload(source)
    meta = built_on_meta(workload, 0, {})
    assert meta is not None
    assert {one.device.type for one in meta.parameters()} == {"meta"}
    models = (meta, workload.build_model())
    described = [identity_of(model, workload, workload.make_batch, 0, source.files) for model in models]
    assert described[0] == described[1]
    assert look_at_model(source, 0, described[0]).identity == described[0]


def test_a_model_whose_code_reads_values_is_built_for_real(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    look_here(monkeypatch)
    project.edit("parts.py", "super().__init__()", "super().__init__()\n        dim = int(torch.tensor(dim).item())")
    source = resolve_source(project.folder / "model.py")
    workload = load_workload(source)
    assert built_on_meta(workload, 0, {}) is None
    known = identity_of(workload.build_model(), workload, workload.make_batch, 0, source.files)
    assert look_at_model(source, 0, known).identity == known


@pytest.mark.slow
def test_the_answer_of_before_is_told_from_one_that_is_measured(
    measured: advisor.Answer, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is in another folder and file, has a comment and an unused function, and the seed is another."""
    look_here(monkeypatch)
    project.edit("model.py", "def build_model", "# To build it.\ndef unused(): ...\n\n\ndef build_model")
    (project.folder / "model.py").rename(project.folder / "network.py")
    project.model = "network.py"
    again = project.tune(Path(measured.folder), seed=3)
    assert again.cached
    assert again.policy == measured.policy
    one, other = (msgspec.json.decode(json_answer(answer)) for answer in (measured, again))
    assert (one["cached"], other["cached"]) == (False, True)


@pytest.mark.slow
def test_what_is_stale_to_a_check_is_no_answer_of_before(
    measured: advisor.Answer, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_here(monkeypatch)
    monkeypatch.setenv("MODEL_HIDDEN", "24")
    with pytest.raises(OutputFolderError, match="the environment variable MODEL_HIDDEN changed"):
        project.tune(Path(measured.folder))
    with pytest.raises(StoppedError):
        project.tune(project.folder / "other", progress=StoppingBeforeTrials())
