"""Verify a policy on a model: compare its wrapper's steps with those of a plain loop, then its peak and speed.

The trials are those of a search (a probe, timed steps, the confirmation of a wrapper in a fresh process), run in a
temporary folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from advisor.decide.verdict import Check, Kept, Verification, memory_check, speed_check, step_checks
from advisor.errors import MethodRefusedError, NothingMeasuredError, WorkloadError
from advisor.files import PrivateFolder
from advisor.goal import Fidelity
from advisor.hardware.detect import detect_hardware
from advisor.measure.step_record import StepRecord
from advisor.methods.catalogue import get_method
from advisor.methods.compose import worst_fidelity
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.session.policy_checks import as_measured, changes_since, check_applies, check_meant, on_same_device
from advisor.session.policy_runs import PolicyRuns
from advisor.session.setup.limits import memory_budget
from advisor.surroundings import check_working_folder
from advisor.text.units import format_bytes, format_count, format_rate
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ConfirmResult, Result, VerifyResult
from advisor.trial.spec import PlainLoopTrial, VerifyTrial
from advisor.workload.batch_layout import ANY_SIZE
from advisor.workload.facts import Facts
from advisor.workload.workload import Stated, WorkloadSource

__all__ = ["VerifyRequest", "run_verification"]


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to verify.

    Attributes:
        source: The model, without what is stated beside it.
        stated: The sizes of its samples; ``None`` for those that the policy was measured at.
    """

    policy_file: Path
    source: WorkloadSource
    stated: Stated = Stated()
    device: str | None = None
    memory_limit_bytes: int | None = None
    seed: int = 0


def run_verification(request: VerifyRequest, tell: Callable[[str], None]) -> Verification:
    """Run the trials.

    Raises:
        UserError: A mistake that the user can fix.
        NothingMeasuredError: Plain training, which the policy is compared with, does not run; or time ran out.
    """
    check_working_folder()
    file = load_policy_file(request.policy_file)
    check_meant(file, request.policy_file, request.source)
    source = as_measured(request.source, request.stated, file.fingerprints)
    hardware = detect_hardware(request.device)
    check_applies(file.policy, None, hardware)
    budget = memory_budget(hardware, request.memory_limit_bytes)
    with PrivateFolder("verify") as folder, Runner(folder, tell=tell) as runner:
        as_then = as_measured(request.source, Stated(), file.fingerprints)  # what is stated now is told by itself
        notes = changes_since(file, as_then, hardware)
        runs = PolicyRuns(file, source, hardware, budget.limit_bytes, folder, runner, request.seed)
        return _Verifier(runs, notes).run()


@dataclass
class _Verifier:
    """The trials of one verification."""

    runs: PolicyRuns
    notes: list[str]

    def __post_init__(self) -> None:
        self.file, self.policy = self.runs.file, self.runs.file.policy
        self.hardware, self.runner = self.runs.hardware, self.runs.runner

    def run(self) -> Verification:
        facts = self._facts()
        fidelity = worst_fidelity(self.policy.methods, accumulation_steps=self.policy.accumulation_steps, facts=facts)
        # Micro-batches draw other masks than the whole batch, and so do some methods: neither counts as a difference.
        # Dropout in the model's own functions cannot be seen.
        without_dropout = self.policy.accumulation_steps > 1 or any(
            get_method(setting.name).other_masks for setting in self.policy.methods
        )
        if without_dropout:
            self.notes.append("dropout was off in the steps that were compared: both would draw masks of their own")
        compared, plain, key = self._plain_steps(without_dropout=without_dropout)
        steps = self.runner.run(
            self.runs.spec(
                VerifyTrial,
                compared,
                wrapper_path=self.runs.write_wrapper(compared, "compared.py"),
                reference_gradient=str(self.runner.gradient_file(key)),
                without_dropout=without_dropout,
                same_bits=fidelity is Fidelity.EXACT,
            )
        )
        verification = Verification(
            workload=self.runs.source.name,
            device=self.hardware.title,
            policy=self.policy,
            fidelity=fidelity,
            samples=compared.global_batch,
            outcome=steps.outcome,
            reason=steps.reason,
            checks=(),
            plain=plain,
            wrapper=steps.steps,
        )
        if steps.steps is None:
            return self._ended(verification, steps)
        checks = step_checks(self.policy, fidelity, plain, steps.steps)
        if any(check.kept is Kept.NO for check in checks):
            chance = self._chance(compared, key, fidelity, without_dropout=without_dropout)
            checks = step_checks(self.policy, fidelity, plain, steps.steps, chance)
        return self._measured(msgspec.structs.replace(verification, checks=tuple(checks)), compared)

    def _facts(self) -> Facts:
        """Probe the model."""
        result = self.runs.probe()
        if result.facts is None:
            raise self._why_not(result, "a first step of plain training")
        check_applies(self.policy, result.facts, self.hardware)
        return result.facts

    def _plain_steps(self, *, without_dropout: bool) -> tuple[Policy, StepRecord, str]:
        """The policy at its batch or the largest half that fits, the plain loop's steps, and their trial's key."""
        compared = self.policy
        while True:
            own = Policy(micro_batch=compared.global_batch)
            spec = self.runs.spec(PlainLoopTrial, own, without_dropout=without_dropout)
            gradient = str(self.runner.gradient_file(spec.key))
            result = self.runner.run(msgspec.structs.replace(spec, write_gradient_to=gradient))
            if result.steps is not None:
                return compared, result.steps, spec.key
            fewer = (self.runs.layout or ANY_SIZE).fitted(compared.micro_batch // 2)
            if result.outcome is not Outcome.OUT_OF_MEMORY or not fewer:
                raise self._why_not(result, f"a plain loop at {format_count(own.micro_batch, 'sample')}")
            if compared is self.policy:
                self.notes.append(
                    f"a plain loop does not fit at the policy's {format_count(own.micro_batch, 'sample')} per step "
                    f"({result.reason}); fewer were compared"
                )
            compared = msgspec.structs.replace(compared, micro_batch=fewer)

    def _chance(self, compared: Policy, key: str, fidelity: Fidelity, *, without_dropout: bool) -> StepRecord | None:
        """Repeat the plain loop: unchanged if equal bits are promised, else with other draws and one rounding off."""
        again = self.runs.spec(
            PlainLoopTrial,
            Policy(micro_batch=compared.global_batch),
            reference_gradient=str(self.runner.gradient_file(key)),
            without_dropout=without_dropout,
            same_bits=fidelity is Fidelity.EXACT,
            other_chance=fidelity is not Fidelity.EXACT,
            repeat=1,
        )
        return self.runner.run(again).steps

    def _measured(self, verification: Verification, compared: Policy) -> Verification:
        """Add peak and speed, compared with the baseline: the file's own, or plain training at its batch."""
        evidence = self.file.evidence
        result, plain, beside = self.runs.beside_baseline(compared.global_batch)
        name = f"the baseline ({beside.words})" if self.file.baseline else "plain training"
        verification = msgspec.structs.replace(
            verification,
            outcome=result.outcome,
            reason=result.reason,
            measurement=result.measurement,
            plain_measurement=plain,
        )
        if result.measurement is None:
            return self._ended(verification, result)
        self.notes += [note for note in result.notes if note not in self.notes]
        words = ""
        if plain is not None:
            at = format_count(beside.global_batch, "sample")
            words = f"{name} at {at}: {format_bytes(plain.memory.peak_bytes)}"
            if result.speedup is None:
                rate = format_rate(plain.samples_per_second)
                self.notes.append(f"they took no turns; {name} by itself at {at}: {rate} samples/s")
        same = on_same_device(self.file, self.hardware)
        checks = (
            *verification.checks,
            memory_check(evidence, result.measurement.memory.peak_bytes, words, same_device=same),
            speed_check(evidence, result.measurement.samples_per_second, result.speedup, name, same_device=same),
        )
        return msgspec.structs.replace(verification, checks=checks, notes=tuple(self.notes))

    def _ended(self, verification: Verification, result: VerifyResult | ConfirmResult) -> Verification:
        """Record a run of the wrapper that did not finish."""
        if result.outcome is Outcome.REFUSED:
            raise MethodRefusedError(result.reason)
        if result.outcome.is_by_chance:
            raise self._why_not(result, "the wrapper")
        found = f"{result.outcome.value}: {result.reason}" if result.reason else result.outcome.value
        check = Check(name="run", promised="it trains", found=found, kept=Kept.NO)
        return msgspec.structs.replace(verification, checks=(*verification.checks, check), notes=tuple(self.notes))

    def _why_not(self, result: Result, what: str) -> Exception:
        if result.outcome is Outcome.FAILED:
            return WorkloadError(result.reason, result.traceback_text)
        if result.outcome is Outcome.REFUSED:
            return WorkloadError(result.reason)
        printed = self.runner.tail_of_log(result.key)
        text = f"A policy is compared with plain training, but {what} ended as {result.outcome.value}: {result.reason}."
        return NothingMeasuredError(text + (f"\nThe last lines that it printed:\n{printed}" if printed else ""))
