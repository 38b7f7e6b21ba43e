"""Every method and value of the catalogue has an answer in every table, and the tables can be read backwards."""

from __future__ import annotations

import itertools
import re

import msgspec
import pytest

from advisor.errors import PolicyError
from advisor.exports.export import QUANTITIES, export_policy, nested, rule_for
from advisor.exports.hf_keys import HF
from advisor.exports.reading import settings_in
from advisor.exports.rules import Status, Target
from advisor.exports.trainers import TARGETS
from advisor.exports.without_key import EVERYWHERE
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import conflict_between
from advisor.methods.setting import MethodSetting, use
from advisor.options import EXPORT, options_of
from advisor.policy.fingerprints import Fingerprints
from advisor.workload.identity import Identity, ModelIdentity
from tests.exports.policies import every_setting, file_of

SETTINGS = list(every_setting())
METHODS = {method.name: method for method in CATALOGUE}

each_trainer = pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])


def test_float16_measured_on_a_cpu_is_exported_only_to_who_computes_it_there() -> None:
    here = Fingerprints(workload={}, hardware={"kind": "cpu"}, versions={}, request="")
    file = msgspec.structs.replace(file_of(use("precision", dtype="fp16")), fingerprints=here)
    told = []
    for target in TARGETS:
        if target.name == "torchtitan":
            continue  # It has none at all.
        (line,) = (line for line in export_policy(file, target).lines if line.what.startswith("precision"))
        told += [target.name] if line.keys else []
    assert told == ["deepspeed"]


@pytest.mark.parametrize(
    ("optimizer", "exported"),
    [("torch.optim.sgd.SGD(momentum)", False), ("torch.optim.adamw.AdamW(betas)", True), ("AdamW, the default", True)],
)
def test_a_fused_step_of_another_optimizer_is_not_exported_as_that_of_an_adamw(optimizer: str, exported: bool) -> None:
    """The trap: a training with SGD was told to take AdamW, at the learning rate of SGD, as what was measured."""
    model = ModelIdentity(class_name="M", parameters=1, trainable=1, buffers=0, structure="", optimizer=optimizer)
    here = Fingerprints(workload={}, hardware={}, versions={}, request="", identity=Identity(salt="", model=model))
    file = msgspec.structs.replace(file_of(use("fused_optimizer")), fingerprints=here)
    for target in TARGETS:
        (line,) = (line for line in export_policy(file, target).lines if line.what.startswith("fused_optimizer"))
        if not exported:
            assert (line.status, line.keys) == (Status.ADAPTER, {}), target.name
    (line,) = (line for line in export_policy(file, HF).lines if line.what.startswith("fused_optimizer"))
    assert bool(line.keys) is exported


def test_the_option_names_the_trainers_that_there_are() -> None:
    (to,) = (option for option in options_of(*EXPORT) if option.flag == "--to")
    assert to.choices == tuple(target.name for target in TARGETS)
    assert all(target.name in to.meaning for target in TARGETS)


@each_trainer
def test_every_setting_has_an_answer_with_its_keys_or_its_reason(target: Target) -> None:
    for setting in SETTINGS:
        rule = rule_for(setting, target, frozenset({setting.name, "ddp"}))
        if rule.status is Status.EXPORTED:
            assert rule.keys or rule.outside
        else:
            assert rule.text
            assert bool(rule.keys) == (rule.status is Status.APPROXIMATED)
        if is_refused(setting, target):
            with pytest.raises(PolicyError, match=re.escape(setting.words)):
                export_policy(file_of(setting), target)
        else:
            assert setting.words in {line.what for line in export_policy(file_of(setting), target).lines}


@each_trainer
def test_the_batch_the_devices_and_clipping_have_an_answer(target: Target) -> None:
    for norm in (None, 1.0):
        lines = export_policy(file_of(), target, max_grad_norm=norm).lines
        assert [line.what.split()[0] for line in lines] == list(QUANTITIES[:-1])


@each_trainer
def test_rules_name_methods_parameters_and_values_that_exist(target: Target) -> None:
    for rule in (*target.rules, *EVERYWHERE.values()):
        assert rule.of in METHODS or rule.of in QUANTITIES, rule.of
        assert set(rule.beside) <= METHODS.keys()
        choices = {one.name: one.choices for one in METHODS[rule.of].parameters} if rule.of in METHODS else {}
        for name, values in rule.where.items():
            assert name in (*QUANTITIES, "optimizer") or set(values) <= set(choices[name]), (rule.of, name)


@each_trainer
def test_each_rule_is_the_answer_to_something(target: Target) -> None:
    met = set()
    for setting, rule in itertools.product(SETTINGS, target.rules):
        if rule.of == setting.name:
            for device, steps, norm in itertools.product(("cpu", "cuda"), (1, 2), (0.0, 1.0)):
                quantities = {"device": device, "accumulation_steps": steps, "max_grad_norm": norm}
                met.add(id(rule_for(setting, target, frozenset({rule.of, *rule.beside}), quantities)))
    assert [rule for rule in target.rules if rule.of in METHODS and id(rule) not in met] == []


@each_trainer
def test_an_exported_setting_is_read_back_from_its_keys(target: Target) -> None:
    for setting in SETTINGS:
        if is_refused(setting, target):
            continue
        export = export_policy(file_of(setting), target)
        (line,) = (line for line in export.lines if line.what == setting.words)
        in_the_file = line.status is Status.EXPORTED and line.keys and not line.outside
        if in_the_file and line.keys != {key: target.plain.get(key) for key in line.keys}:
            assert setting.label in {one.label for one in settings_in(nested(export.keys), target)}


@each_trainer
def test_plain_training_is_read_back_as_plain(target: Target) -> None:
    assert settings_in(nested(export_policy(file_of(), target).keys), target) == ()


@each_trainer
def test_methods_that_go_together_do_not_write_two_values_of_one_key(target: Target) -> None:
    """Where they may, a rule for one beside the other says so."""
    with_keys = [one for one in SETTINGS if written(one, {one.name}, target) and not is_refused(one, target)]
    for first, second in itertools.combinations(with_keys, 2):
        ours, theirs = (written(one, {first.name, second.name}, target) for one in (first, second))
        differing = [key for key in ours.keys() & theirs.keys() if ours[key] != theirs[key]]
        assert not differing or not go_together(first, second), (first.label, second.label, differing)


def go_together(first: MethodSetting, second: MethodSetting) -> bool:
    one, other = METHODS[first.name], METHODS[second.name]
    if one is other or (one.distributes and one.axis is other.axis):
        return False
    apart = (one.one_device_only and other.distributes) or (other.one_device_only and one.distributes)
    return not apart and conflict_between([first, second]) is None


def is_refused(setting: MethodSetting, target: Target) -> bool:
    rule = rule_for(setting, target, frozenset({setting.name}))
    return rule.status is Status.REFUSED and METHODS[setting.name].distributes


def written(setting: MethodSetting, methods: set[str], target: Target) -> dict[str, object]:
    return dict(rule_for(setting, target, frozenset(methods)).keys)
