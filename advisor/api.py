"""The library calls ``advisor.tune`` and ``advisor.check``, for use in a training script."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from advisor.decide.answer import Answer
from advisor.decide.policy_status import PolicyCheck
from advisor.errors import OptionError
from advisor.exports.trainer_file import TrainerFile, read_trainer_file
from advisor.goal import Preference
from advisor.goal_text import parse_gpu_counts
from advisor.option_values import text_of, value_of
from advisor.options import CHECK, GOAL, TUNE, options_of
from advisor.session.request import TuneRequest
from advisor.session.setup.several_nodes import nodes_from
from advisor.text.paths import path_of
from advisor.text.printable import quoted
from advisor.text.ranges import whole
from advisor.workload.function_source import source_from_functions
from advisor.workload.importing import refuse_while_importing
from advisor.workload.source import resolve_source, stating
from advisor.workload.workload import FUNCTIONS, Stated, WorkloadKind, WorkloadSource

if TYPE_CHECKING:
    import torch

    from advisor.report.progress import Progress

__all__ = ["Answer", "PolicyCheck", "check", "tune"]


def tune(
    model: str | os.PathLike[str] | None = None,
    *,
    build_model: Callable[..., torch.nn.Module] | None = None,
    make_batch: Callable[..., Any] | None = None,
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    count_targets: Callable[[Any], int | float] | None = None,
    linear_head: Callable[[torch.nn.Module, Any], Any] | None = None,
    goal: str = "faster",
    device: str | None = None,
    memory_limit: str | int | None = None,
    fidelity: str | None = None,
    search_space: str | os.PathLike[str] = "default",
    methods: str | Iterable[str] | None = None,
    sampler: str = "model",
    storage: str | None = None,
    trials: int = 40,
    time_limit: str | float | None = None,
    batch: int | None = None,
    tokens: int | None = None,
    image_size: int | None = None,
    baseline: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    from_: str | os.PathLike[str] | None = None,
    global_batch: int | None = None,
    gpus: int | str | Iterable[int] | None = None,
    nnodes: int | None = None,
    rdzv_endpoint: str | None = None,
    price: float | None = None,
    kwh_price: float | None = None,
    max_latency: str | float | None = None,
    max_cost: float | None = None,
    deadline: str | float | None = None,
    iterations: int | None = None,
    min_throughput: str | float | None = None,
    wait_idle: str | float | None = None,
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    wait: bool = True,
) -> Answer:
    """Measure which policy to train with.

    When nothing has changed since an earlier call (model source, what the model reads, hardware, versions, request),
    the stored answer is returned after a short start that builds the model. When several ranks of one launch call it,
    one of them tunes and the others wait for its answer; over several nodes ``output`` must be a folder that all of
    them share.

    Args:
        model: A Python file, ``"hf:<model type>"``, ``"hf:<org>/<name>"`` (on the Hugging Face hub, its config alone),
            a ``config.json``, a folder with one, or a module name; or give functions instead.
        build_model: ``() -> nn.Module``. Functions are found again by name in other processes: they must be
            importable, no lambdas and no functions inside functions.
        make_batch: ``(batch_size) -> pytree of CPU tensors``.
        compute_loss: ``(model, batch) -> scalar``; by default the loss that the model itself returns.
        build_optimizer: ``(parameters) -> optimizer``; by default AdamW.
        count_targets: ``(batch) -> number`` of targets that the loss averages over.
        linear_head: ``(model, batch) -> (hidden, weight, bias or None, targets)`` for losses computed in chunks.
        goal: ``"faster"``, ``"bigger"`` or ``"cheapest"``.
        device: ``"cpu"``, ``"cuda"`` or ``"cuda:1"`` (default: the first GPU).
        memory_limit: Per device, such as ``"8GiB"`` (default: the free memory); a number is in bytes.
        fidelity: ``"exact"``, ``"rounding"``, ``"precision"``, ``"lossy"`` (default) or ``"model"``: how far training
            may differ from plain training. A search space may set another default.
        search_space: ``"default"``, ``"all"``, ``"exact"``, ``"smoke"`` or a YAML file.
        methods: Only these, and each must apply: names of methods, as ``"checkpoint,swap"`` or a list.
        sampler: ``"model"``, ``"tpe"`` or ``"random"``: how the next trial is chosen. ``"model"`` takes the largest
            expected improvement under a model of all combinations; ``"tpe"`` is Optuna's.
        storage: A database or a journal file that workers share (``"sqlite:///study.db"``, ``"postgresql://..."``,
            ``"mysql://..."``, ``"study.journal"``). Each worker needs an ``output`` of its own.
        trials: Stop after N policies (default: 40).
        time_limit: Stop after this time (default: 3m30s): text such as ``"5m"``, or seconds.
        batch: Samples per forward pass today, instead of the file's ``BATCH_SIZE``.
        tokens: Of each sample of a Hugging Face model.
        image_size: Pixels per side of a Hugging Face model's images.
        baseline: Your own settings (default: plain training): a ``policy.yaml`` with what you train with today. A
            policy that accumulates keeps its number of samples per step, unless ``global_batch`` says another. Or what
            such a file says, as a mapping.
        from_: Your own settings, as the configuration of a trainer: axolotl, LLaMA-Factory, transformers, accelerate
            or DeepSpeed. What it says of methods, batch, clipping and devices is the baseline; the model that it names
            is taken if none is given.
        global_batch: Keep N samples per optimizer step.
        gpus: How many devices may train together (default: 1): ``2``, ``(1, 2, 4)`` or ``"1,2,4"``. For ``cheapest``,
            and on N machines, the default is 1, 2, 4, ... up to all.
        nnodes: Train on N machines, of which this is the first. On each of the others
            ``momadvise --nnodes N --rdzv-endpoint HOST:PORT --node-rank K`` follows it.
        rdzv_endpoint: Where they meet: ``"host:port"`` of this machine, as all of them can reach it.
        price: Per hour of one GPU (default: its list price), in US dollars.
        kwh_price: Per kilowatt-hour, to count energy as well, in US dollars.
        max_latency: Pick the lowest cost within this time per iteration: text such as ``"200ms"``, or seconds.
        max_cost: Pick the fastest within this cost per iteration or run (if ``iterations`` is given), in US dollars.
        deadline: Pick the lowest cost that ends the run within this time: text such as ``"8h"``, or seconds.
        iterations: Iterations of the whole run.
        min_throughput: Samples/s (``20``), or relative to plain training (``"0.5x"``) at the model's own size.
        wait_idle: Wait first, at most so long (10m), for an idle machine: text such as ``"10m"``, or seconds. That
            does not count against ``time_limit``; after it, measuring goes on, with a note. Before the wrapper is
            confirmed, the same again. An answer that was not reproducible is then measured further, and confirmed anew.
        output: Where to write (default: ``momadvise-runs/...``).
        seed: Seed of models, batches and proposals.
        progress: Told of everything that happens; by default the logger ``advisor`` is.
        wait: Whether to wait while another process tunes into the same folder.

    Returns:
        The answer: ``answer.policy``, ``answer.wrapper_path``, ``answer.recommendation``.

    Raises:
        UserError: A mistake that the user can fix; also a call made while a worker imports the calling script
            (guard it with ``if __name__ == "__main__":``).
        TrialError: Nothing could be measured, or nothing fits.
    """
    given = dict(locals())
    from advisor.report.progress import LoggingProgress
    from advisor.session.tune import run_session

    refuse_while_importing("advisor.tune")
    return run_session(_request(given), LoggingProgress() if progress is None else progress)


def check(
    policy: str | os.PathLike[str],
    model: str | os.PathLike[str] | None = None,
    *,
    build_model: Callable[..., torch.nn.Module] | None = None,
    make_batch: Callable[..., Any] | None = None,
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    count_targets: Callable[[Any], int | float] | None = None,
    linear_head: Callable[[torch.nn.Module, Any], Any] | None = None,
    strict: bool = False,
    remeasure: bool = False,
    device: str | None = None,
    memory_limit: str | int | None = None,
    global_batch: int | None = None,
    tokens: int | None = None,
    image_size: int | None = None,
    max_latency: str | float | None = None,
    max_cost: float | None = None,
    deadline: str | float | None = None,
    iterations: int | None = None,
    price: float | None = None,
    kwh_price: float | None = None,
    tell: Callable[[str], None] | None = None,
) -> PolicyCheck:
    """Say whether a policy still holds here: for this model, device and these versions.

    The model is built in another process, and not trained. A training may begin with it::

        check = advisor.check("policy.yaml", "model.py")
        if not check.holds:
            raise SystemExit(check.words)

    Args:
        policy: The policy file.
        model: As for :func:`tune`, or give functions instead; by default the model that the policy names.
        build_model: As for :func:`tune`, with the five that follow.
        make_batch: Likewise.
        compute_loss: Likewise.
        build_optimizer: Likewise.
        count_targets: Likewise.
        linear_head: Likewise.
        strict: Let warnings, such as another driver, make the policy stale.
        remeasure: If nothing differs, run wrapper and plain training again, in turn.
        device: The device to train on (default: one of the kind that the policy was measured on).
        memory_limit: What would be asked for now, with the nine that follow; those not given are as in the policy.
        global_batch: Likewise.
        tokens: Likewise.
        image_size: Likewise.
        max_latency: Likewise, for a policy of the goal ``cheapest``.
        max_cost: Likewise.
        deadline: Likewise.
        iterations: Likewise.
        price: Likewise.
        kwh_price: Likewise.
        tell: Hears what is being done, in a few words.

    Returns:
        ``check.holds``, ``check.status`` and ``check.differences``.

    Raises:
        UserError: A mistake that the user can fix.
    """
    given = dict(locals())
    from advisor.session.check import CheckRequest, run_check

    refuse_while_importing("advisor.check")
    stated = any(given[name] is not None for name in ("model", *FUNCTIONS))
    records: dict[str, dict[str, Any]] = {"": {}, "preference": {}, "stated": {}}
    for option in options_of(*CHECK):
        value = given.get(option.keyword)
        if option.in_library and value is not None:
            record, _, field = (option.field or option.keyword).rpartition(".")
            records[record][field] = value if option.kind == "switch" else value_of(value, option)
    request = CheckRequest(
        policy_file=path_of(policy, "A policy file", OptionError),
        source=_source(model, given) if stated else None,
        preference=Preference(**records["preference"]),
        stated=Stated(**records["stated"]),
        **records[""],
    )
    return run_check(request, tell or (lambda doing: None))


def _source(model: str | os.PathLike[str] | None, given: Mapping[str, Any]) -> WorkloadSource:
    functions = {name: given[name] for name in FUNCTIONS if given[name] is not None}
    if model is None:
        return source_from_functions(**functions)
    if functions:
        raise OptionError(
            f"Either a model file or functions must be given, but got {quoted(model)} and {', '.join(functions)}."
        )
    return resolve_source(text_of(model, "model"))


def _request(given: Mapping[str, Any]) -> TuneRequest:
    """What is asked for, as the table of options says how to read it and where it goes."""
    records: dict[str, dict[str, Any]] = {"": {}, "nodes": {}, "preference": {}, "stated": {}}
    trainer = _trainer_file(given)
    model = given["model"]
    if trainer is not None:
        model = model or _model_of(trainer, given)
        records["stated"] = msgspec.structs.asdict(trainer.stated)
    source = _source(model, given)
    if source.kind is not WorkloadKind.HUGGING_FACE:
        records["stated"].pop("tokens", None)  # its own make_batch decides
    for option in (GOAL, *options_of(*TUNE)):
        value = given.get(option.keyword) if option.keyword != "from_" else None
        if value is not None or (option.default is not None and option.in_library):
            record, _, field = (option.field or option.keyword).rpartition(".")
            records[record][field] = value_of(value, option)
    if trainer is not None:
        records[""]["baseline"] = trainer.baseline
    own = records[""].get("baseline")
    if own is not None and own.policy.gpu_count > 1:
        records[""].setdefault("gpu_counts", (own.policy.gpu_count,))
    return TuneRequest(
        source=stating(source, Stated(**records["stated"])),
        nodes=nodes_from(**records["nodes"]),
        preference=Preference(**records["preference"]),
        seed=whole(given["seed"], "seed", least=0, most=2**32 - 1),
        wait=given["wait"],
        **records[""],
    )


def _trainer_file(given: Mapping[str, Any]) -> TrainerFile | None:
    """The configuration of a trainer, if one is given."""
    if given["from_"] is None:
        return None
    if given["baseline"] is not None:
        raise OptionError("The baseline must be one, but --baseline and --from are given. Leave one of them out.")
    counts = None if given["gpus"] is None else parse_gpu_counts(given["gpus"])
    batch = None if given["batch"] is None else whole(given["batch"], "--batch")
    path = path_of(given["from_"], "--from", OptionError)
    return read_trainer_file(path, gpu_count=counts[0] if counts and len(counts) == 1 else None, batch=batch)


def _model_of(trainer: TrainerFile, given: Mapping[str, Any]) -> str | None:
    """The model that a trainer's configuration names; ``None`` where functions are given."""
    if any(given[name] is not None for name in FUNCTIONS):
        return None
    if not trainer.model:
        raise OptionError(
            f"A model must be given where the configuration names none, but {trainer.baseline.origin} does not. Give "
            "MODEL too: a Python file, hf:TYPE, hf:ORG/NAME or a config.json."
        )
    return trainer.model
