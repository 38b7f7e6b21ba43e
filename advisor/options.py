"""The table of options, with names, values and meanings, for the parser, help, request and library call.

The help shows ``meaning`` unchanged, and the docstring of :func:`advisor.tune` begins each keyword with it. This module
has no slow imports: ``momadvise --help`` reads it.
"""

from __future__ import annotations

from keyword import iskeyword
from typing import Literal, NamedTuple

__all__ = ["CHECK", "EXPORT", "GOAL", "PREDICT", "REPORT", "TUNE", "VERIFY", "Kind", "Option", "Section", "options_of"]

Kind = Literal[
    "text",
    "path",
    "policy",
    "names",
    "count",
    "number",
    "bytes",
    "duration",
    "devices",
    "throughput",
    "price",
    "switch",
]
"""How a value is read."""


class Option(NamedTuple):
    """One option of the command.

    Attributes:
        flag: The flag as typed.
        value: Placeholder for its value in the help; empty for a switch.
        meaning: What it does, in a few words.
        kind: How its value is read.
        default: Its default value.
        choices: The only valid values, if they can be listed.
        most: The largest valid count, if not the usual one.
        field: The field of the request that it sets, if named differently; ``record.field`` for a nested one.
        in_library: Whether it is a keyword of :func:`advisor.tune`.
        short: The same flag in one letter, if it has one.
        bare: Its value where the flag is given without one; empty if it needs one.
    """

    flag: str
    value: str
    meaning: str
    kind: Kind = "text"
    default: str | int | None = None
    choices: tuple[str, ...] = ()
    most: int | None = None
    field: str = ""
    in_library: bool = True
    short: str = ""
    bare: str = ""

    @property
    def flags(self) -> str:
        """How it is typed, as the help shows it."""
        flags = f"{self.short}, {self.flag}" if self.short else self.flag
        return f"{flags} {f'[{self.value}]' if self.bare else self.value}".rstrip()

    @property
    def keyword(self) -> str:
        """Its name as an argument."""
        name = self.flag.removeprefix("--").replace("-", "_")
        return f"{name}_" if iskeyword(name) else name


class Row(NamedTuple):
    """Options on one line of the help.

    Attributes:
        options: The options.
        meaning: What they mean together; empty for the meaning of the first.
    """

    options: tuple[Option, ...]
    meaning: str = ""


class Section(NamedTuple):
    """Options that the help shows together.

    Attributes:
        title: The line above them.
        rows: Its lines.
        goal: The only goal that takes them, if they belong to one.
    """

    title: str
    rows: tuple[Row, ...]
    goal: str = ""


def options_of(*sections: Section) -> tuple[Option, ...]:
    """The options of some sections, in the order of the help."""
    return tuple(option for section in sections for row in section.rows for option in row.options)


def _each(*options: Option) -> tuple[Row, ...]:
    return tuple(Row((option,)) for option in options)


GOAL = Option(
    "--goal", "NAME", "faster, bigger or cheapest", default="faster", choices=("faster", "bigger", "cheapest")
)
"""Shown in the usage line."""

_DEVICE = Option("--device", "NAME", "cpu, cuda or cuda:1 (default: the first GPU)")
_MEMORY_LIMIT = Option(
    "--memory-limit", "SIZE", "per device, such as 8GiB (default: the free memory)", "bytes", field="memory_limit_bytes"
)
_BATCH = Option(
    "--batch",
    "N",
    "samples per forward pass today",
    "count",
    field="stated.batch_size",
)
_TOKENS = Option("--tokens", "N", "of each sample of a Hugging Face model", "count", field="stated.tokens")
_IMAGE_SIZE = Option(
    "--image-size", "N", "pixels per side of a Hugging Face model's images", "count", field="stated.image_size"
)
_JSON = Option("--json", "", "print the result as JSON on stdout, and nothing else", "switch", in_library=False)

_VERBOSE = Option("--verbose", "", "show all that was refused or not measured", "switch", in_library=False, short="-v")

_SUMMARY = Option("--summary", "FILE", "append the result to a file, as Markdown", "path", in_library=False)
_GLOBAL_BATCH = Option("--global-batch", "N", "keep N samples per optimizer step", "count")

_FLOOR = Option(
    "--min-throughput", "X", "samples/s (20), or relative to plain training (0.5x)", "throughput", field="floor"
)
_CHEAPEST = (
    *_each(
        Option(
            "--max-latency",
            "TIME",
            "pick the lowest cost within this time per iteration",
            "duration",
            field="preference.max_latency_seconds",
        ),
        Option(
            "--max-cost",
            "USD",
            "pick the fastest within this cost per iteration or run",
            "number",
            field="preference.max_cost_usd",
        ),
        Option(
            "--deadline",
            "TIME",
            "pick the lowest cost that ends the run within this time",
            "duration",
            field="preference.deadline_seconds",
        ),
        Option("--iterations", "N", "iterations of the whole run", "count", most=10**12, field="preference.iterations"),
    ),
    Row(
        (
            Option("--price", "USD", "per hour of one GPU (default: its list price)", "price"),
            Option(
                "--kwh-price",
                "USD",
                "per kilowatt-hour, to count energy as well",
                "number",
                field="usd_per_kilowatt_hour",
            ),
        ),
        "per GPU and hour (default: list price); of energy",
    ),
)
_NODES = (
    Option("--nnodes", "N", "train on N machines", "count", field="nodes.count"),
    Option("--rdzv-endpoint", "HOST:PORT", "where they meet", field="nodes.endpoint"),
    Option("--node-rank", "K", "which machine this is", "count", field="nodes.rank", in_library=False),
)


_SHARED = (
    *_each(
        Option(
            "--gpus",
            "1,2,4",
            "how many devices may train together (default: 1)",
            "devices",
            field="gpu_counts",
        ),
    ),
    Row(_NODES),
    Row((_BATCH, _TOKENS, _IMAGE_SIZE), "today's forward passes"),
    Row(
        (
            Option("--baseline", "FILE", "your own settings (default: plain training)", "policy"),
            Option("--from", "FILE", "your own settings, as the configuration of a trainer", "path", field="baseline"),
        ),
        "your own settings (default: plain)",
    ),
    *_each(
        _DEVICE,
        _MEMORY_LIMIT,
        _GLOBAL_BATCH,
        Option(
            "--fidelity",
            "CLASS",
            "exact, rounding, precision, lossy (default) or model: how far training may differ from plain training",
            choices=("exact", "rounding", "precision", "lossy", "model"),
        ),
        Option("--search-space", "NAME", "default, all, exact, smoke or a YAML file", default="default"),
        Option("--methods", "A,B", "only these, and each must apply", "names"),
    ),
    Row(
        (
            Option(
                "--sampler",
                "NAME",
                "model, tpe or random: how the next trial is chosen",
                default="model",
                choices=("model", "tpe", "random"),
            ),
            Option("--storage", "URL", "a database or a journal file that workers share"),
        ),
        "model, tpe or random; a database to share",
    ),
    Row(
        (
            Option("--trials", "N", "stop after N policies (default: 40)", "count", default=40),
            Option(
                "--time-limit", "TIME", "stop after this time (default: 3m30s)", "duration", field="time_limit_seconds"
            ),
        ),
        "when to stop (default: 40 policies, 3m30s)",
    ),
    *_each(
        Option(
            "--wait-idle",
            "TIME",
            "wait first, at most so long (10m), for an idle machine",
            "duration",
            field="wait_idle_seconds",
            bare="10m",
        ),
        Option("--output", "DIR", "where to write (default: momadvise-runs/...)", "path"),
    ),
    Row(
        (_VERBOSE, Option("--timings", "", "show where the time of the run went", "switch", in_library=False)),
        "every refusal; where the time of the run went",
    ),
    Row((_JSON, _SUMMARY), "as JSON; append to FILE, as Markdown"),
)


TUNE = (
    Section("goal faster (the default): the most samples per second", ()),
    Section("goal bigger: the largest model that keeps a throughput", _each(_FLOOR), goal="bigger"),
    Section("goal cheapest: cost against latency, and a pick (default: the knee)", _CHEAPEST, goal="cheapest"),
    Section("options", _SHARED),
)
PREDICT = (
    Section(
        "options",
        _each(
            Option("--policy", "FILE", "a policy.yaml to apply (default: plain training)", "path"),
            Option(
                "--batch",
                "N",
                "samples per forward pass (default: the policy's, or BATCH_SIZE of the model file)",
                "count",
            ),
            _DEVICE,
            Option("--profile", "NAME", "a GPU that is not here, such as h200 or h100_80gb"),
            _MEMORY_LIMIT,
            _TOKENS,
            _IMAGE_SIZE,
            _JSON,
        ),
    ),
)
VERIFY = (Section("options", _each(_DEVICE, _MEMORY_LIMIT, _TOKENS, _IMAGE_SIZE, _JSON)),)
EXPORT = (
    Section(
        "options",
        _each(
            Option(
                "--to",
                "NAME",
                "hf (TrainingArguments), accelerate, deepspeed, lightning, torchtitan, axolotl or llamafactory",
                choices=("hf", "accelerate", "deepspeed", "lightning", "torchtitan", "axolotl", "llamafactory"),
            ),
            Option("--into", "FILE", "change this configuration; its comments, order and other keys stay", "path"),
            Option(
                "--max-grad-norm",
                "X",
                "clip gradients to this norm (default: as FILE does, or the training that was measured)",
                "number",
            ),
            Option(
                "--strict",
                "",
                "change and print nothing unless all of the policy is exported, in keys that the installed trainer has",
                "switch",
            ),
            _JSON,
        ),
    ),
)
CHECK = (
    Section(
        "options",
        _each(
            Option("--strict", "", "let warnings, such as another driver, make the policy stale", "switch"),
            Option("--remeasure", "", "if nothing differs, run wrapper and plain training again", "switch"),
            _DEVICE,
            _MEMORY_LIMIT,
            _GLOBAL_BATCH,
            _TOKENS,
            _IMAGE_SIZE,
            _SUMMARY,
            _JSON,
        ),
    ),
    Section("a policy for cheapest: what would be picked now", _CHEAPEST),
)
REPORT = (
    Section(
        "options",
        _each(
            Option("--output", "FILE", "where to write (default: report.html in DIR; here for several)", "path"),
            Option("--open", "", "show it in the browser", "switch"),
        ),
    ),
)
