"""Every method on a CUDA device: as exact as it says, and the allocator sees what it saves."""

from __future__ import annotations

import functools
import gc
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from advisor.errors import MethodRefusedError
from advisor.measure.memory.meter import optimizer_state_bytes
from advisor.methods.activations import _group_code as group_code
from advisor.methods.activations._group_coder import GroupCoder
from advisor.methods.activations._private_random import Draws
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import apply_settings, settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.contract.expected import expected
from tests.contract.observe import Observation, dropout_for, observe, relative_error, same, samples_for
from tests.contract.promises import assert_trains_as_promised
from tests.gpu.conftest import computes, is_hardware, skip_unless_triton_runs
from tests.methods.tiny import MODELS, VOCABULARY, images, import_bitsandbytes, import_torchao, text, training_of

# What other libraries warn of depends on driver and device, which are not under test.
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

SAMPLES = 64
"""Enough for activations of several MiB, which swap moves."""

ONLY_A_GPU = ("NVIDIA", "CUDA")
"""What a refusal on a CPU says that is none here."""

HALVES_ONLY = ("flash", "cudnn")
"""Kernels of attention for 16 bits, which the models do not have on their own."""

COMPILED = ("compile", "compile_budget", "adam_low_bit")
"""Methods with kernels that Inductor writes for Triton."""

OF_THE_HOST = ("retain_freed_memory", "intraop_threads")
"""Methods for trainings on a CPU alone."""

CASES = [
    (model, setting)
    for model in MODELS
    for method in CATALOGUE
    if not (method.distributes or method.builds_on)  # One device is all there is here.
    if method.name not in OF_THE_HOST
    for setting in settings_of(method)
    # What is expected on a CPU, but for what only a GPU has.
    if expected(setting).refused.get(model) in (None, *ONLY_A_GPU)
]


@pytest.fixture(autouse=True)
def large_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    for model, make_batch in (("gpt2", text), ("convnet", images)):
        monkeypatch.setitem(MODELS, model, (MODELS[model][0], functools.partial(make_batch, SAMPLES)))


@pytest.fixture(autouse=True)
def libraries() -> None:
    if any(method.name == "adam_8bit" for method in CATALOGUE):
        import_bitsandbytes()
    if any(method.name == "adam_low_bit" for method in CATALOGUE):
        import_torchao()


def skip_unless_supported(setting: MethodSetting, cuda: torch.device) -> None:
    if setting.parameters.get("dtype") in ("bf16", "tf32") and torch.cuda.get_device_capability(cuda) < (8, 0):
        pytest.skip("bf16 and tf32 need compute capability 8.0")


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("model", MODELS)
def test_plain_training_repeats_to_the_bit_or_exactness_could_not_be_seen(
    model: str, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (observe(model, [], monkeypatch, device=cuda) for _ in range(2))
    assert same(first.gradients[1], second.gradients[1])
    assert same(first.state, second.state)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize(("model", "setting"), CASES, ids=[f"{model}-{setting.label}" for model, setting in CASES])
def test_a_method_keeps_its_promise_of_fidelity(
    model: str, setting: MethodSetting, cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_unless_supported(setting, cuda)
    if setting.name in COMPILED:
        skip_unless_triton_runs()
    samples = samples_for([setting])
    beside = [use("precision", dtype="bf16")] if setting.parameters.get("kernel") in HALVES_ONLY else []
    without = dropout_for([setting, *beside])
    plain = observe(model, beside, monkeypatch, samples=samples, device=cuda, dropout=without)
    changed = observe(model, [setting, *beside], monkeypatch, samples=samples, device=cuda)
    if not computes():
        assert_has_the_gradients_of(plain, changed)
        return
    assert_trains_as_promised([setting, *beside], plain, changed)


@pytest.mark.parametrize("name", OF_THE_HOST)
def test_what_is_for_a_cpu_is_refused(name: str, cuda: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    setting, *_ = settings_of(get_method(name))
    with pytest.raises(MethodRefusedError, match="cuda"):
        observe("gpt2", [setting], monkeypatch, device=cuda)


def assert_has_the_gradients_of(plain: Observation, changed: Observation) -> None:
    """All that can be asked where nothing is computed: what a method applies to has been trained on."""
    assert changed.gradients
    assert len(changed.losses) == len(plain.losses)
    for gradients in changed.gradients:
        for name, gradient in gradients.items():
            original = plain.gradients[0].get(name)
            assert original is None or gradient.shape == original.shape


class KeywordAttention(torch.nn.Module):
    """Fused attention with dropout, called by keyword as most of transformers' blocks call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = torch.nn.Linear(64, 3 * 64)

    def forward(self, *, hidden_states: torch.Tensor) -> torch.Tensor:
        samples, length, _ = hidden_states.shape
        heads = self.projection(hidden_states).view(samples, length, 3, 4, 16).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(*heads, dropout_p=0.1, is_causal=True)
        return attended.transpose(1, 2).reshape(samples, length, 64)


class DropoutBlock(torch.nn.Module):
    """Attention, then a dropout that draws after it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = KeywordAttention()
        self.output = torch.nn.Linear(64, 64)
        self.dropout = torch.nn.Dropout(0.1)

    def forward(self, *, hidden_states: torch.Tensor) -> torch.Tensor:
        attended = self.output(self.attention(hidden_states=hidden_states))
        return hidden_states + torch.tanh(self.dropout(attended))


class DropoutModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(DropoutBlock() for _ in range(3))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            hidden = block(hidden_states=hidden)
        return hidden.float().square().mean()


def dropout_gradients(
    settings: Sequence[MethodSetting], cuda: torch.device
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients of one step, and the state that it left in the generator."""
    training = Training(DropoutModel(), device=cuda)
    apply_settings(training, settings)
    batch = torch.randn(4, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    training.backward(training.forward(batch))
    parameters = training.model.named_parameters()
    gradients = {
        name.replace("_checkpoint_wrapped_module.", ""): p.grad for name, p in parameters if p.grad is not None
    }
    training.close()
    return gradients, torch.cuda.get_rng_state(cuda)


@pytest.mark.usefixtures("values")
@pytest.mark.parametrize(
    ("backend", "settings"),
    [
        (SDPBackend.MATH, []),
        (SDPBackend.EFFICIENT_ATTENTION, []),
        (SDPBackend.FLASH_ATTENTION, [use("precision", dtype="bf16")]),
    ],
    ids=["math", "efficient", "flash"],
)
@pytest.mark.parametrize(
    "setting",
    [
        use("checkpoint", every=1),
        use("selective_checkpoint", recompute="attention"),
        use("selective_checkpoint", recompute="elementwise"),
    ],
    ids=lambda setting: setting.label,
)
def test_recomputation_draws_the_dropout_masks_of_the_forward_pass(
    setting: MethodSetting, backend: SDPBackend, settings: list[MethodSetting], cuda: torch.device
) -> None:
    """Traps: tensors given by keyword, whose device's generator torch's checkpointing does not keep; and fused
    attention with dropout, which does not advance the generator if its output is kept.

    Fused kernels sum gradients in any order, so within rounding; other masks would be off by tens of percent.
    """
    for each in settings:
        skip_unless_supported(each, cuda)
    with sdpa_kernel(backend):  # Raises where the kernel does not exist, so that no other one is tested in its place.
        plain, after = dropout_gradients(settings, cuda)
        changed, after_changed = dropout_gradients([*settings, setting], cuda)
    assert relative_error(changed, plain) < 0.02
    assert torch.equal(after_changed, after), "the recomputation moved the generator"


def trained(
    settings: Sequence[MethodSetting], cuda: torch.device, model: str = "gpt2", steps: int = 3
) -> tuple[Training, int]:
    """A training after some steps, and the allocator's peak in the last of them above what is always there."""
    gc.collect()
    torch.cuda.empty_cache()
    training = training_of(model, device=cuda)
    apply_settings(training, settings)
    _, make_batch = MODELS[model]
    peak = 0
    for step in range(steps):
        torch.manual_seed(step)
        torch.cuda.reset_peak_memory_stats(cuda)
        training.step(make_batch(seed=step))
        torch.cuda.synchronize(cuda)
        peak = torch.cuda.max_memory_allocated(cuda)
    return training, peak


@pytest.mark.memory_only
@pytest.mark.parametrize(
    "setting",
    [
        use("checkpoint", every=1),
        use("selective_checkpoint", recompute="elementwise"),
        use("compress_activations", bits=4),
        use("fp8_activations", format="e4m3"),
        use("swap", min_bytes=2**20),
        use("overlapped_swap", min_bytes=2**20, ahead=0.1),
        use("chunked_cross_entropy", chunks=8),
        use("precision", dtype="bf16"),
        use("host_optimizer"),
    ],
    ids=lambda setting: setting.label,
)
def test_the_allocators_peak_is_lower(setting: MethodSetting, cuda: torch.device) -> None:
    skip_unless_supported(setting, cuda)
    training, plain = trained([], cuda)
    training.close()
    del training
    training, changed = trained([setting], cuda)
    training.close()
    assert changed < plain - 2**20, f"{changed:,} bytes instead of {plain:,}"


@pytest.mark.memory_only
def test_swap_moves_what_checkpointing_keeps(cuda: torch.device) -> None:
    """Not below swap alone: what a block's recomputation makes is used before it could be moved."""
    checkpoint, swap = use("checkpoint", every=1), use("swap", min_bytes=2**20)
    peaks = []
    for settings in ((checkpoint,), (checkpoint, swap)):
        training, peak = trained(settings, cuda)
        training.close()
        del training
        peaks.append(peak)
    assert peaks[1] < peaks[0] - 2**20


@pytest.mark.parametrize(
    "swap",
    [use("swap", min_bytes=2**20), use("overlapped_swap", min_bytes=2**20, ahead=0.1)],
    ids=lambda setting: setting.name,
)
def test_swapped_activations_survive_that_their_memory_is_used_again(swap: MethodSetting, cuda: torch.device) -> None:
    """Trap: the copy to the host is asynchronous, and the device memory is given to the next kernel at once."""
    training = training_of("convnet", device=cuda)
    plain = training_of("convnet", device=cuda)
    apply_settings(training, [swap])
    apply_settings(plain, [])
    for step in range(10):
        losses = []
        for one in (training, plain):
            torch.manual_seed(step)
            losses.append(float(one.step(images(512 if is_hardware() else 64, seed=step))))
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4, 2])
def test_the_kernel_of_activation_compression_makes_the_codes_of_the_plain_path(
    bits: int, dtype: torch.dtype, cuda: torch.device
) -> None:
    skip_unless_triton_runs()
    coder = GroupCoder(bits, Draws(), cuda)
    assert coder.why_plain == ""
    for flat in (torch.randn(100_003, device=cuda), torch.randn(5000, device=cuda).relu(), torch.zeros(3, device=cuda)):
        flat = flat.to(dtype)
        buffer = coder.encode(flat)
        back = coder.decode(buffer, count=flat.numel(), dtype=dtype)
        plain = group_code.decode_groups(buffer, count=flat.numel(), dtype=dtype, bits=bits)
        torch.testing.assert_close(back, plain)  # A product and a sum may be one instruction here.
        width = flat.max() - flat.min()
        assert float((back - flat).abs().max()) <= float(width) / (2**bits - 2) * 1.01
        assert flat.min() < 0 or torch.equal(back > 0, flat > 0)


def fp32_settings() -> list[Any]:
    cudnn: Any = torch.backends.cudnn
    switches = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    return [switch.fp32_precision for switch in switches]


@pytest.mark.usefixtures("hardware")
def test_tf32_is_really_used_and_the_process_is_as_before_when_the_training_closes(cuda: torch.device) -> None:
    setting = use("precision", dtype="tf32")
    skip_unless_supported(setting, cuda)
    generator = torch.Generator(device=cuda).manual_seed(0)
    left, right = (torch.randn(512, 512, device=cuda, generator=generator) for _ in range(2))
    before, exact = fp32_settings(), left @ right
    training = training_of("gpt2", device=cuda)
    apply_settings(training, [setting])
    assert set(fp32_settings()) == {"tf32"}
    rounded = left @ right
    training.close()
    assert fp32_settings() == before
    assert torch.equal(left @ right, exact)
    assert not torch.equal(rounded, exact)
    assert float((rounded - exact).norm() / exact.norm()) < 2e-3


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_the_arithmetic_is_in_16_bits_and_parameters_stay_in_32(
    dtype: str, expected: torch.dtype, cuda: torch.device
) -> None:
    setting = use("precision", dtype=dtype)
    skip_unless_supported(setting, cuda)
    training = training_of("convnet", device=cuda)
    apply_settings(training, [setting])
    seen: list[torch.dtype] = []
    training.model.get_submodule("blocks.0.conv").register_forward_hook(
        lambda _module, _inputs, out: seen.append(out.dtype)
    )
    training.step(images(8))
    assert seen == [expected]
    assert {parameter.dtype for parameter in training.model.parameters()} == {torch.float32}


@pytest.mark.usefixtures("values")
def test_the_gradient_scaler_finds_its_scale_and_the_loss_falls(cuda: torch.device) -> None:
    training = training_of("gpt2", device=cuda)
    apply_settings(training, [use("precision", dtype="fp16")])
    scaler = training.gradient_scaler
    assert scaler is not None
    assert scaler.is_enabled()
    batch = text(16)
    losses = [float(training.step(batch)) for _ in range(30)]
    assert losses[-1] < losses[0] - 0.1
    assert 1.0 <= scaler.get_scale() <= 2.0**24
    assert training.state_dict()["scaler"]["scale"] == scaler.get_scale()


def test_clipping_under_the_scaler_is_in_true_units(cuda: torch.device) -> None:
    norms = []
    for settings in ([], [use("precision", dtype="fp16")]):
        training = training_of("gpt2", device=cuda)
        apply_settings(training, settings)
        torch.manual_seed(0)
        training.backward(training.forward(text(16)))
        norms.append(float(training.clip_grad_norm(1e9)))
    assert norms[1] == pytest.approx(norms[0], rel=0.05)


@pytest.mark.memory_only
def test_adam_keeps_its_moments_in_8_bits_on_the_device(cuda: torch.device) -> None:
    plain, _ = trained([], cuda)
    small, _ = trained([use("adam_8bit")], cuda)
    tensors = [value for state in small.optimizer.state.values() for value in state.values()]
    assert torch.uint8 in {tensor.dtype for tensor in tensors if isinstance(tensor, torch.Tensor)}
    assert {tensor.device for tensor in tensors if isinstance(tensor, torch.Tensor) and tensor.numel() > 1} == {cuda}
    assert optimizer_state_bytes(small) < 0.5 * optimizer_state_bytes(plain)


@pytest.mark.parametrize("state", ["8bit", "4bit", "fp8"])
def test_torchaos_compiled_step_keeps_its_state_small_on_the_device(state: str, cuda: torch.device) -> None:
    skip_unless_triton_runs()
    if state == "fp8" and torch.cuda.get_device_capability(cuda) < (8, 9):
        pytest.skip("8-bit floats need compute capability 8.9")
    plain, _ = trained([], cuda)
    small, _ = trained([use("adam_low_bit", state=state)], cuda)
    assert 0 < optimizer_state_bytes(small) < (0.3 if state == "4bit" else 0.5) * optimizer_state_bytes(plain)


@pytest.mark.memory_only
def test_nothing_of_an_optimizer_on_the_host_is_on_the_device(cuda: torch.device) -> None:
    training, _ = trained([use("host_optimizer")], cuda)
    assert optimizer_state_bytes(training) == 0
    held = [parameter for group in training.optimizer.param_groups for parameter in group["params"]]
    assert all(parameter.device.type == "cpu" and parameter.is_pinned() for parameter in held)
    assert all(parameter.grad is None for parameter in training.model.parameters())


@pytest.mark.usefixtures("values")
def test_gradients_reach_the_host_although_their_memory_is_used_again(cuda: torch.device) -> None:
    """Trap: a copy on a side stream reads memory that the backward pass has already given to the next gradient."""
    states = []
    for settings in ([], [use("host_optimizer")]):
        training = training_of("gpt2", device=cuda, micro_batch=SAMPLES // 4, build_optimizer=sgd)
        apply_settings(training, settings)
        for step in range(3):
            torch.manual_seed(step)
            training.step(text(SAMPLES, seed=step))
        states.append({name: value.cpu() for name, value in training.state_dict()["model"].items()})
    assert relative_error(states[1], states[0]) < 1e-4


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """No division by the size of a gradient, which would blow up rounding errors of the small ones."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.memory_only
def test_the_logits_of_a_chunked_loss_never_exist_at_once(cuda: torch.device) -> None:
    logits = SAMPLES * 64 * VOCABULARY * 4
    training, plain = trained([], cuda)
    training.close()
    del training
    training, chunked = trained([use("chunked_cross_entropy", chunks=32)], cuda)
    training.close()
    assert plain - chunked > logits
