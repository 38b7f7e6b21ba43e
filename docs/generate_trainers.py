"""Write docs/trainers.md from the tables of advisor.exports: ``python docs/generate_trainers.py``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.exports.export import QUANTITIES, rule_for
from advisor.exports.rules import Format, Given, Rule, Status, Target
from advisor.exports.trainers import TARGETS
from advisor.integrations.support import TRAINERS, outcomes
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting

PAGE = Path(__file__).with_name("trainers.md")

HEAD = """\
<!-- Written by docs/generate_trainers.py from the tables in advisor/exports. Do not edit. -->

# Trainers

`momadvise export policy.yaml --to NAME` writes a policy as the configuration of a trainer; `--into FILE` changes one
that you have ([how](how-to.md#export-a-policy-to-the-trainer-that-you-have)). What each cell says:

- `=` exported: keys of the configuration, the launcher or the environment make the trainer do the same.
- `~` approximated: keys for something near, which is not what was measured; the tables below say in what it differs.
- `A` needs the adapter: no key says it, code can ([adapters](#adapters); elsewhere `wrapper.py`).
- `-` cannot be said: the trainer has it not, and its models or loop are its own.

Two marks in a cell are for different values of the method's parameters.

Every key that a trainer might set by itself is written out, because no trainer's defaults are plain training. With
`--into`, what would contradict the policy is removed, and every change is printed.

What stands behind a mark: every configuration was read by the library and version below, and the tests do so again
wherever it is installed. Trained two steps on a CPU, with the parameters that the wrapper reaches: the batch,
accumulation, clipping, `checkpoint`, `fused_optimizer` and `precision` in bf16 of `hf`, `lightning`, `accelerate`,
`deepspeed` and `llamafactory`, as far as they say them; `adam_low_bit` and `compile` of `hf`; on two ranks `ddp` of
`hf`, `accelerate` and `lightning`, and there `gradient_compression`; fp16, tf32 and `fsdp` of `hf` on a CUDA
device in software, as no GPU was there. What `torchtitan` and `axolotl` say was read by them, but not trained.
"""

ADAPTERS = """\
## Adapters

An adapter applies a policy in the trainer's own loop: every method of the catalogue but those in the second table
([how](how-to.md#train-with-a-policy-in-the-trainer-that-you-have)). For each method that works on a CPU, tests train
two steps with the adapter and compare all parameters with the wrapper's; in `trl.SFTTrainer` only where trl is
installed. What the trainer already does itself is refused, with the argument to leave out.
"""

MARKS = {Status.EXPORTED: "=", Status.APPROXIMATED: "~", Status.ADAPTER: "A", Status.REFUSED: "-"}


def page() -> str:
    """The whole page."""
    lines = [HEAD, *_versions(), *_overview(), *_adapters()]
    for target in TARGETS:
        lines += _section(target)
    return "\n".join(lines)


def _versions() -> Iterator[str]:
    yield "| `--to` | configuration | keys checked with |"
    yield "|---|---|---|"
    for target in TARGETS:
        formats = ", ".join("command line" if one is Format.ARGUMENTS else one.value for one in target.formats)
        yield f"| [`{target.name}`](#{target.name}) | {target.title} ({formats}) | {target.library} {target.version} |"
    yield ""


def _overview() -> Iterator[str]:
    yield f"| method | {' | '.join(target.name for target in TARGETS)} |"
    yield f"|---|{'---|' * len(TARGETS)}"
    for method in CATALOGUE:
        yield f"| [{method.name}](methods.md#{method.name}) | {' | '.join(_mark(method, one) for one in TARGETS)} |"
    yield ""


def _mark(method: Method, target: Target) -> str:
    found = dict.fromkeys(MARKS[trainer_rule(setting, target).status] for setting in settings_of(method))
    return " ".join(mark for mark in MARKS.values() if mark in found)


def trainer_rule(setting: MethodSetting, target: Target) -> Rule:
    """What a trainer says of a setting."""
    beneath = frozenset({"ddp"}) if setting.name == "gradient_compression" else frozenset()
    return rule_for(setting, target, frozenset({setting.name}) | beneath)


def _adapters() -> Iterator[str]:
    yield ADAPTERS
    yield "| trainer | adapter | tested with |"
    yield "|---|---|---|"
    for trainer in TRAINERS:
        yield f"| {trainer.name} | `{trainer.call}` | {trainer.library} {', '.join(trainer.tested)} |"
    yield ""
    yield "| refused | where | why |"
    yield "|---|---|---|"
    refused: dict[str, tuple[list[str], list[str]]] = {}
    for (method, trainer_name), reason in outcomes().items():
        if reason:
            methods, places = refused.setdefault(reason, ([], []))
            methods += [f"`{method}`"] if f"`{method}`" not in methods else []
            places += [trainer_name] if trainer_name not in places else []
    for reason, (methods, places) in refused.items():
        yield f"| {', '.join(methods)} | {', '.join(places)} | {reason} |"
    yield ""


def _section(target: Target) -> Iterator[str]:
    yield f"## {target.name}"
    yield ""
    yield f"{target.title[0].upper()}{target.title[1:]}, checked with {target.library} {target.version}."
    yield ""
    if target.use:
        yield f"Train with: `{target.use}`."
        yield ""
    for note in target.notes:
        yield f"{note[0].upper()}{note[1:]}."
        yield ""
    yield target.adapter_words
    yield ""
    plain = ", ".join(f"`{key}: {shown_value(value)}`" for key, value in target.plain.items())
    yield f"Plain training: {plain}."
    yield ""
    yield "| part of the policy | | keys | |"
    yield "|---|---|---|---|"
    for name in QUANTITIES:
        for rule in target.rules:
            if rule.of == name:
                yield _row(rule)
    for method in CATALOGUE:
        own = [rule for rule in target.rules if rule.of == method.name]
        last = {id(trainer_rule(setting, target)): trainer_rule(setting, target) for setting in settings_of(method)}
        for rule in (*own, *(rule for rule in last.values() if all(rule is not one for one in own))):
            yield _row(rule)
    yield ""
    if target.older or target.rivals:
        gone = [f"`{key}` (now `{new}`)" for key, new in target.older.items()]
        gone += [f"`{key}` ({why})" for key, why in target.rivals.items()]
        yield f"`--into` removes {', '.join(gone)}."
        yield ""
    if target.own:
        yield f"Yours where the policy decides nothing: {', '.join(f'`{key}`' for key in target.own)}."
        yield ""


def _row(rule: Rule) -> str:
    limits = ", ".join(f"{name}={'|'.join(map(str, values))}" for name, values in rule.where.items())
    what = f"{rule.of}({limits})" if limits else rule.of
    beside = f" beside {' or '.join(f'`{one}`' for one in rule.beside)}" if rule.beside else ""
    keys = ", ".join(f"`{key}: {shown_value(value)}`" for key, value in rule.keys.items())
    outside = f"`{rule.outside}`" if rule.outside else ""
    cells = (f"`{what}`{beside}", MARKS[rule.status], ", ".join(filter(None, (keys, outside))), rule.text)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def shown_value(value: Any) -> str:
    """The value of a key, as it is shown."""
    if isinstance(value, Given):
        return f"<{value.name}>"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
