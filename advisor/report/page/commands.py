"""What is copied to measure again: commands, or programs that call the library where functions were tuned."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

import msgspec

from advisor.decide.candidate import Candidate
from advisor.decide.measured_evidence import evidence_of
from advisor.goal import Goal
from advisor.policy.file import PolicyFile, policy_document
from advisor.policy.library_call import can_be_said, check_lines, keywords_of, tune_lines
from advisor.policy.tune_command import OF_ONE_POLICY, asked_again, picked_again, piped, tune_command, verify_command
from advisor.report.page.finished import FinishedStudy
from advisor.text.paths import as_seen_from_here
from advisor.workload.workload import WorkloadKind

__all__ = ["Commands", "Copied"]

_HOLDS, _KEEPS = "is the policy still right here?", "does it keep its promise?"


class Copied(msgspec.Struct, frozen=True):
    """What somebody copies: a line for a shell, or the lines of a program; neither where nothing says the model."""

    command: str = ""
    lines: tuple[str, ...] = ()


class Commands:
    """The commands of a study, or the calls of the library that do the same."""

    def __init__(self, study: FinishedStudy) -> None:
        self._study, self._answer, self._goal = study, study.answer, study.answer.goal
        self._asked = {**study.asked, "device": study.options.get("--device")}
        given = (trial.spec.workload for trial in study.trials)
        found = next((one for one in given if one.kind is WorkloadKind.FUNCTIONS), None)
        said = found is not None and can_be_said(found.functions)
        self._functions = found if said and not study.model else None

    @property
    def of_functions(self) -> bool:
        """Whether the model was given as functions, which no command names."""
        return self._functions is not None

    def of_study(self) -> Copied:
        """Asks for the study again."""
        goal, own = self._goal, self._answer.recommendation.baseline
        flags = {**picked_again(goal.preference), **_prices(goal), **self._study.options}
        if own is None or not goal.own_settings:
            return self._searched(self._asked, flags, None)
        return self._searched(self._asked, flags, PolicyFile(policy=own.policy, model_size=own.model_size))

    def of_methods(self, one: Candidate) -> Copied:
        """Searches the methods of a policy alone; nothing for plain training, which every study measures."""
        if not one.policy.methods:
            return Copied()
        asked = {**self._asked, "gpus": str(one.policy.gpu_count)}
        names = ",".join(method.name for method in one.policy.methods)
        return self._searched(asked, {"--methods": names}, None)

    def of_policy(self, one: Candidate) -> Copied:
        """Measures exactly one policy: beside the baseline, or as the only trial of a search."""
        file = self._file(one)
        if self._functions is not None:
            flags = {"--gpus": str(one.policy.gpu_count), "--trials": "1"}
            flags |= asked_again(self._asked, OF_ONE_POLICY)
            return self._tuned(flags, file)
        return Copied(command=verify_command(self._study.model, file, self._asked) if self._study.model else "")

    def of_answer(self) -> dict[str, Copied]:
        """What is asked of the answer, in words -> how."""
        file, model = str(as_seen_from_here(self._study.folder.policy)), self._study.model
        several = self._answer.recommendation.winner.policy.gpu_count > 1
        again = ("momadvise", "check", file, model, "--remeasure") if several else ("momadvise", "verify", file, model)
        found = {}
        if self._functions is not None:
            where = self._functions.functions, self._functions.import_paths
            found = {_HOLDS: Copied(lines=check_lines(file, *where))}
            found[_KEEPS] = Copied(lines=check_lines(file, *where, remeasure=True))
        elif model:
            found = {_HOLDS: _line("momadvise", "check", file, model), _KEEPS: _line(*again)}
        folder = str(as_seen_from_here(self._study.folder.path))
        found["as the settings of a trainer"] = _line("momadvise", "export", file, "--to", "hf")
        return {**found, "this page again": _line("momadvise", "report", folder)}

    def _searched(
        self, asked: Mapping[str, str | int | float | None], flags: Mapping[str, str], file: PolicyFile | None
    ) -> Copied:
        goal = self._goal.kind.value
        if self._functions is not None:
            return self._tuned({"--goal": goal, **asked_again({**asked, "goal": goal}), **flags}, file)
        command = tune_command(self._study.model, goal, dict(asked), more=flags)
        return _line(*command) if file is None else Copied(piped(file, (*command, "--baseline", "/dev/stdin")))

    def _tuned(self, flags: Mapping[str, str], file: PolicyFile | None) -> Copied:
        assert self._functions is not None, "the model was given as functions"
        own = {} if file is None else {"baseline": policy_document(file)}
        keywords = {**keywords_of(flags), **own}
        return Copied(lines=tune_lines(self._functions.functions, self._functions.import_paths, keywords))

    def _file(self, one: Candidate) -> PolicyFile:
        """A policy as a file says it, with the baseline where it is measured beside that."""
        baseline, answer = self._answer.recommendation.baseline, self._answer
        beside = None if baseline is None or self.of_functions or baseline.policy == one.policy else baseline.policy
        if beside is not None and max(beside.gpu_count, one.policy.gpu_count) > 1:
            beside = None
        evidence = None
        if one.model_size and one.measurement is not None and not self.of_functions:
            evidence = evidence_of(one, self._goal, date=answer.date, trials=len(answer.recommendation.ranking))
        return PolicyFile(
            policy=one.policy,
            baseline=beside,
            sample_dims=answer.sample_dims,
            reduction=answer.reduction,
            model_size=None if evidence else one.model_size,
            evidence=evidence,
        )


def _prices(goal: Goal) -> dict[str, str]:
    """Flag -> value of the prices that were given."""
    found = {}
    if goal.price is not None and goal.price.source == "--price":
        found["--price"] = str(goal.price.usd_per_hour)
    if goal.usd_per_kilowatt_hour is not None:
        found["--kwh-price"] = str(goal.usd_per_kilowatt_hour)
    return found


def _line(*command: str) -> Copied:
    return Copied(command=shlex.join(command))
