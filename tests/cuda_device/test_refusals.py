"""A GPU that lacks what some methods need: each is refused with its rule before a trial, and where it is applied."""

from __future__ import annotations

import json

from advisor.methods.catalogue import CATALOGUE
from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import Gpu, Machine

T4 = Gpu("Tesla T4", 15_360, "7.5")

NOT_ON_A_T4 = {"precision(dtype=bf16)": "8.0", "precision(dtype=tf32)": "8.0", "pure_bf16": "8.0", "float8": "8.9"}
"""Settings, by the start of their label, and the capability that the refusal asks for."""


def test_what_an_old_gpu_lacks_is_refused_as_it_was_judged(python: Python) -> None:
    script = """
import json, warnings
warnings.simplefilter("ignore")
from advisor.errors import MethodRefusedError
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import apply_settings, judge, settings_of
from advisor.hardware.detect import detect_hardware
from tests.methods.tiny import text, training_of
hardware = detect_hardware("cuda")
said = {}
for method in CATALOGUE:
    for setting in settings_of(method):
        verdict = judge([setting], facts=None, hardware=hardware)
        if verdict.applicable or method.distributes or method.builds_on:
            continue
        applied = ""
        try:
            training = training_of("gpt2", device="cuda", layers=1)
            apply_settings(training, [setting])
            training.step(text(2))  # whether a kernel suits shows in the first step
        except MethodRefusedError as error:
            applied = str(error)
        said[setting.label] = [verdict.reason, applied]
print(json.dumps(said))
"""
    said = json.loads(python(script, Machine(gpus=(T4,))))
    for label, (judged, applied) in said.items():
        assert judged, label
        assert applied, f"{label} was judged not to work ({judged}), and was applied"
    for start, capability in NOT_ON_A_T4.items():
        refused = [reasons for label, reasons in said.items() if label.startswith(start)]
        assert refused, f"{start} needs a newer GPU"
        assert all(f"compute capability {capability}" in judged for judged, _ in refused)
    assert len(said) < len(CATALOGUE), "most methods need no more than a GPU"
