"""Write docs/trainers.md from the tables of advisor.exports: ``python docs/generate_trainers.py``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # for the tests, of which it says what they train

from advisor.exports.export import QUANTITIES, rule_for
from advisor.exports.rules import Format, Given, Rule, Status, Target
from advisor.exports.trainers import TARGETS
from advisor.integrations.support import TRAINERS, outcomes
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting
from tests.exports import cells
from tests.exports.cells_on_gpus import LAUNCHED, ON_GPUS_ELSEWHERE, ON_GPUS_UNDER
from tests.exports.policies import file_of

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

Two marks in a cell are for different values of the method's parameters. What stands behind a mark:

- **bold**: trained for two steps by that trainer, with the parameters that the wrapper reaches; or, for `~`, seen to
  differ. If only some values of the method were, it is *slanted*.
- neither: what was written was read by the trainer's own library, or is a variable of the environment, or there is no
  key.

The tables below say it line by line: *trained* as above, *read* by its own parser, *documented* there.

Every key that a trainer might set by itself is written out, because no trainer's defaults are plain training. With
`--into`, what would contradict the policy is removed, and every change is printed.
"""

BY_HAND = {
    "axolotl": "on a CPU, with axolotl 0.19.0, transformers 5.16.1, accelerate 1.13.0, torch 2.13.0; on CUDA devices "
    "in software, with torch 2.15.0 in place of the one that axolotl asks for (2.13 at most), which these do not know",
    "llamafactory": "on a CPU, with llamafactory 0.9.5, transformers 5.6.0, accelerate 1.11.0, torch 2.13.0; on CUDA "
    "devices in software, with torch 2.15.0",
    "torchtitan": "on CUDA devices in software, with torchtitan 0.3.0, torch 2.15.0, beside the wrapper on one device "
    "under those methods that change numbers; for parameters on the host, tests initialize the model themselves",
}
"""Name of a trainer that the tests of this project do not install -> where its tests were run, and with what."""
WHEN = "26 November 2026"
ELSEWHERE = "python -m tests.exports.elsewhere"
ON_RANKS = "trained on two ranks"
IN_SOFTWARE = "trained on a CUDA device in software"
IN_TRITONS_INTERPRETER = "trained in Triton's interpreter"
IN_SOFTWARE_ON_TWO = "trained on two CUDA devices in software"
WITHOUT_KERNELS = f"{IN_SOFTWARE}, the compiled graphs without kernels"
WITH_DEEPSPEED = f"{IN_SOFTWARE_ON_TWO}, by hand on {WHEN}"

ADAPTERS = """\
## Adapters

An adapter applies a policy in the trainer's own loop: every method of the catalogue but those in the second table
([how](how-to.md#train-with-a-policy-in-the-trainer-that-you-have)). For each method that works on a CPU, tests train
two steps with the adapter and compare all parameters with the wrapper's. What the trainer already does itself is
refused, with the argument to leave out.
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
    rules = {
        id(rule): rule
        for setting in settings_of(method)
        for device in ("cuda", "cpu")
        for rule in [trainer_rule(setting, target, device)]
    }
    checked = {one for one, rule in rules.items() if _checked(rule, target).startswith("trained")}
    marks = []
    for status, mark in MARKS.items():
        own = [one for one, rule in rules.items() if rule.status is status]
        shown = sum(one in checked for one in own)
        if own:
            marks.append(f"**{mark}**" if shown == len(own) else f"*{mark}*" if shown else mark)
    return " ".join(marks)


def _checked(rule: Rule, target: Target) -> str:
    """What stands behind a rule."""
    if rule.status not in (Status.EXPORTED, Status.APPROXIMATED):
        return ""
    if shown := _shown(target).get(id(rule)):
        return shown
    return "read" if rule.keys else "documented" if rule.outside else ""


def _shown(target: Target) -> dict[int, str]:
    """The rules of which tests train what they say, or see in what it differs."""
    found: dict[int, str] = {}
    for cell in cells.ON_A_GPU.get(target.name, ()):
        found |= _rules(target, cell.settings, 1.0, IN_SOFTWARE, device="cuda")
    if target.name == "deepspeed":
        found |= _rules(target, cells.FP16_UNDER_ZERO.settings, cells.FP16_UNDER_ZERO.norm, "trained")
    for cell in ON_GPUS_ELSEWHERE.get(target.name, ()):
        how = IN_SOFTWARE_ON_TWO if file_of(*cell.settings).policy.gpu_count > 1 else IN_SOFTWARE
        how = f"{how}, differs" if cell.differs else how
        found |= _rules(target, cell.settings, cell.norm, how, device="cuda", launched=False)
        found |= _rules(target, ON_GPUS_UNDER, cell.norm, IN_SOFTWARE, device="cuda")
    for cell in LAUNCHED.get(target.name, ()):
        how = IN_SOFTWARE_ON_TWO if file_of(*cell.settings).policy.gpu_count > 1 else IN_SOFTWARE
        found |= _rules(target, cell.settings, cell.norm, how, device="cuda")
    if target.name == "torchtitan":
        for cell in cells.BY_TORCHTITAN:
            several = file_of(*cell.settings).policy.gpu_count > 1
            how = IN_SOFTWARE_ON_TWO if several else IN_SOFTWARE
            how = WITHOUT_KERNELS if any(one.name.startswith("compile") for one in cell.settings) else how
            how = f"{how}, differs" if cell.differs else how
            found |= _rules(target, cell.settings, cell.norm, how, device="cuda")
    for ranks in cells.ON_GPUS_WITH_DEEPSPEED.values():
        if ranks.trainer == target.name:
            found |= _rules(target, cells.ON_GPUS_UNDER, None, WITH_DEEPSPEED, device="cuda")
            how = f"{WITH_DEEPSPEED}, differs" if ranks.differs else WITH_DEEPSPEED
            found |= _rules(target, ranks.settings, 1.0, how, ranks.accumulation_steps, ranks.device)
    for ranks in cells.ON_RANKS_ELSEWHERE.values():
        if ranks.trainer == target.name:
            # Not of gpu_count: a test starts its ranks, not the launcher of the trainer.
            found |= _rules(
                target, ranks.settings, 1.0, ON_RANKS, ranks.accumulation_steps, ranks.device, launched=False
            )
    for ranks in (*cells.ON_GPUS.values(), *cells.ON_RANKS.values()):
        if ranks.trainer == target.name:
            how = ON_RANKS if ranks.device == "cpu" else IN_SOFTWARE_ON_TWO
            if ranks.device == "cuda":
                found |= _rules(target, cells.ON_GPUS_UNDER, None, how, device="cuda")
            how = f"{how}, differs" if ranks.differs else how
            found |= _rules(target, ranks.settings, 1.0, how, ranks.accumulation_steps, ranks.device)
    for setting in cells.WITH_ADAPTERS if target.name in ("axolotl", "llamafactory") else ():
        found |= _rules(target, (setting,), None, "trained")
    if target.name in (*cells.UNDER_VARIABLES, *cells.UNDER_VARIABLES_ELSEWHERE):
        found |= _rules(target, cells.VARIABLES, None, "trained")
    if target.name in ("hf", "llamafactory"):
        found |= _rules(target, cells.WITH_LIGER.settings, None, IN_TRITONS_INTERPRETER)
    for cell in cells.TRAINED.get(target.name, ()):
        found |= _rules(target, cell.settings, cell.norm, "trained, differs" if cell.differs else "trained")
    return found


def _rules(
    target: Target,
    settings: tuple[MethodSetting, ...],
    norm: float | None,
    how: str,
    steps: int = 2,
    device: str = "cpu",
    launched: bool = True,
) -> dict[int, str]:
    """The rules by which a policy is exported."""
    names = frozenset(setting.name for setting in settings)
    beneath = frozenset({"ddp"}) if "gradient_compression" in names else frozenset()
    quantities = {"accumulation_steps": steps, "max_grad_norm": norm or 0.0, "device": device}
    rules = [rule_for(setting, target, names | beneath, quantities) for setting in settings]
    for of in QUANTITIES:
        rules += [rule for rule in target.rules if rule.of == of and rule.covers(quantities, names)][:1]
    if how.endswith("differs"):
        rules = [rule for rule in rules if rule.status is Status.APPROXIMATED]
    return {id(rule): how for rule in rules if rule.of != "gpu_count" or ("two" in how and launched)}


def trainer_rule(setting: MethodSetting, target: Target, device: str = "cuda") -> Rule:
    """What a trainer says of a setting."""
    beneath = frozenset({"ddp"}) if setting.name == "gradient_compression" else frozenset()
    return rule_for(setting, target, frozenset({setting.name}) | beneath, {"device": device})


def _adapters() -> Iterator[str]:
    yield ADAPTERS
    yield "| trainer | adapter | tested with |"
    yield "|---|---|---|"
    for trainer in TRAINERS:
        tested = f"{trainer.library} {', '.join(trainer.tested)}"
        yield f"| {trainer.name} | `{trainer.call}` | {tested} |"
        if trainer.call_for_several:
            yield f"| {trainer.name}, several devices | `{trainer.call_for_several}` | {tested} |"
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
    if where := BY_HAND.get(target.name):
        yield f"The tests of this project do not install it. Those that train with it were run by hand on {WHEN},"
        again = f"`{ELSEWHERE} {target.name} FOLDER` runs them again in an environment of its own"
        also = (
            ", and those on devices in one of `.ci/cuda --install FOLDER`" if target.name in ON_GPUS_ELSEWHERE else ""
        )
        yield f"{where}; {again}{also}."
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
    yield "| part of the policy | | keys | | checked |"
    yield "|---|---|---|---|---|"
    for name in QUANTITIES:
        for rule in target.rules:
            if rule.of == name:
                yield _row(rule, target)
    for method in CATALOGUE:
        own = [rule for rule in target.rules if rule.of == method.name]
        last = {id(trainer_rule(setting, target)): trainer_rule(setting, target) for setting in settings_of(method)}
        for rule in (*own, *(rule for rule in last.values() if all(rule is not one for one in own))):
            yield _row(rule, target)
    yield ""
    if target.older or target.rivals:
        gone = [f"`{key}` (now `{new}`)" for key, new in target.older.items()]
        gone += [f"`{key}` ({why})" for key, why in target.rivals.items()]
        yield f"`--into` removes {', '.join(gone)}."
        yield ""
    if target.own:
        yield f"Yours where the policy decides nothing: {', '.join(f'`{key}`' for key in target.own)}."
        yield ""


def _what(rule: Rule) -> str:
    limits = ", ".join(f"{name}={'|'.join(map(str, values))}" for name, values in rule.where.items())
    return f"{rule.of}({limits})" if limits else rule.of


def _row(rule: Rule, target: Target) -> str:
    what = _what(rule)
    beside = f" beside {' or '.join(f'`{one}`' for one in rule.beside)}" if rule.beside else ""
    keys = ", ".join(f"`{key}: {shown_value(value)}`" for key, value in rule.keys.items())
    outside = f"`{rule.outside}`" if rule.outside else ""
    said = ", ".join(filter(None, (keys, outside)))
    row = (f"`{what}`{beside}", MARKS[rule.status], said, rule.text, _checked(rule, target))
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |"


def shown_value(value: Any) -> str:
    """The value of a key, as it is shown."""
    if isinstance(value, Given):
        return f"<{value.name}>"
    return str(value).lower() if isinstance(value, bool) else str(value)


if __name__ == "__main__":
    PAGE.write_text(page())
