"""The guard of fidelity on a CUDA device: what the catalogue declares passes, and what breaks a training does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from advisor.decide.guard import observed_class, why_worse
from advisor.goal import Fidelity
from advisor.methods.compose import fidelity_of
from advisor.methods.setting import MethodSetting, use
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TrialSpec
from tests.trial.test_fidelity import Runs, workload

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.filterwarnings("default")]

DECLARED = [
    use("checkpoint", every=1),
    use("optimizer_in_backward"),
    use("chunked_cross_entropy", chunks=8),
    use("precision", dtype="bf16"),
    use("compress_activations", bits=8),
]


class RunsOnCuda(Runs):
    """Runs on the first CUDA device."""

    def spec(self, *given: Any, **named: Any) -> TrialSpec:
        return msgspec.structs.replace(super().spec(*given, **named), device="cuda:0", memory_limit_bytes=2 * 2**30)


@pytest.fixture(scope="module")
def runs(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return RunsOnCuda(tmp_path_factory.mktemp("runs"))


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize("setting", DECLARED, ids=lambda setting: setting.label)
def test_a_method_is_seen_as_it_declares_itself(runs: Runs, setting: MethodSetting) -> None:
    text = workload("gpt2", dropout="dropout=0.0")  # kernels of attention for 16 bits draw other masks
    result = runs.result(text, setting, reference_gradient=runs.gradient(text))
    assert result.outcome is Outcome.OK, result
    assert result.fidelity is not None
    found = runs.compared(result.fidelity, text)
    assert found.learned > 0, "a training that stands still shows nothing"
    declared = fidelity_of(setting)
    observed = observed_class(declared, found)
    if declared.rank <= Fidelity.PRECISION.rank:
        assert observed is declared, why_worse(declared, found)
    else:
        assert observed is not None, why_worse(declared, found)


@pytest.mark.usefixtures("values")
def test_a_recomputation_that_draws_other_numbers_is_refused(runs: Runs) -> None:
    """From what no method knows of, and cannot bring back to where it was."""
    text = workload("gpt2") + (
        "\nimport itertools\n"
        "_numbers = itertools.cycle([0.5, 1.0, 1.5])  # one for each block\n"
        "_build = build_model\n"
        "class Noisy(torch.nn.Module):\n"
        "    def forward(self, inputs):\n"
        "        return inputs * next(_numbers)\n"
        "def build_model():\n"
        "    model = _build()\n"
        "    for block in model.transformer.h:\n"
        "        block.mlp.act = torch.nn.Sequential(block.mlp.act, Noisy())\n"
        "    return model\n"
    )
    plain = runs.beside(text)
    assert plain.gradient is not None
    assert plain.gradient.error < 1e-4
    assert observed_class(Fidelity.EXACT, runs.beside(text, use("checkpoint", every=1))) is None


@pytest.mark.usefixtures("values")
def test_a_training_that_goes_up_is_broken_in_every_class(runs: Runs) -> None:
    text = workload("gpt2")
    found = runs.beside(text.replace("lr=1e-3", "lr=1e-3, maximize=True"), exact=text)
    assert observed_class(Fidelity.MODEL, found) is None
