"""The process that trains for :mod:`benchmarks.papers.lessons`: lessons on standard input, answers on its output."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import sys

import msgspec

from advisor.measure.batches.batches import seed_everything
from advisor.methods.adapters._sparse_weights import SparseWeights
from advisor.policy.apply import apply_policy
from advisor.training.training import Training
from advisor.workload.sizes import accepted
from benchmarks.papers.lessons import Learned, Lesson, Stored

__all__ = ["learn", "main"]


def learn(lesson: Lesson) -> Learned:
    """Train, at least one step, and compute the score."""
    module = importlib.import_module(f"benchmarks.papers.workloads.{lesson.workload}")
    policy, size = lesson.policy, lesson.model_size
    seed_everything(lesson.seed)
    training = apply_policy(
        policy,
        module.build_model(**accepted(module.build_model, size)),
        device=lesson.device,
        compute_loss=module.compute_loss,
        build_optimizer=module.build_optimizer,
        blocks=getattr(module, "BLOCKS", ()),
    )
    with contextlib.closing(training):
        groups = training.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for step in range(lesson.steps):
            seed_everything(lesson.seed + 1 + step)
            for group, rate in zip(groups, rates, strict=True):
                group["lr"] = rate * module.rate(step / lesson.steps)
            batch = module.make_batch(policy.global_batch, **accepted(module.make_batch, size))
            loss = training.step(batch)
        if not math.isfinite(float(loss)):
            return Learned(
                data=module.data(), reason=f"diverged: the loss was {float(loss)} after {lesson.steps} steps"
            )
        if not lesson.scored:
            return Learned(data=module.data(), stored=_stored(training))
        options = accepted(module.score, size)
        score = training.evaluate(lambda model: module.score(model, training.device, **options))
        return Learned(score=score, data=module.data(), stored=_stored(training))


def _stored(training: Training) -> Stored | None:
    part = training.state_parts.get("sparse_reparameterization")
    if not isinstance(part, SparseWeights):
        return None
    return Stored(masks=part.total, **part.stored_bytes())


def main() -> None:
    """Answer until there are no more lessons."""
    # Output of libraries must not mix with the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        try:
            learned = learn(msgspec.json.decode(line, type=Lesson))
        except Exception as error:  # Any exception of a method, the model or the device is this row's reason.
            text = str(error).strip()
            learned = Learned(reason=f"{type(error).__name__}: {text.splitlines()[0] if text else ''}".rstrip(": "))
        answers.write(msgspec.json.encode(learned) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
