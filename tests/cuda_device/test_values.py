"""What the device computes where values are computed, as against a CPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.cuda_device.conftest import Python
from tests.cuda_device.machine import VALUES_MEBIBYTES, Machine

VALUES = Machine(values=True, time=0)

COMPARED = """
import copy, torch
from torch import nn
from torch.nn import functional as F

def error(found, expected):
    found, expected = (each.detach().double().cpu() for each in (found, expected))
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))

def gradients(model, loss, device):
    moved = copy.deepcopy(model).to(device)
    value = loss(moved, device)
    value.backward()
    return torch.cat([value.detach().flatten(), *(p.grad.flatten() for p in moved.parameters())])

def assert_as_on_a_cpu(model, loss, tolerance=1e-5):
    found = error(gradients(model, loss, "cuda"), gradients(model, loss, "cpu"))
    assert found < tolerance, found
"""


def test_a_small_network_learns(python: Python) -> None:
    script = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs, targets = torch.randn(64, 10).cuda(), torch.randint(0, 3, (64,)).cuda()
losses = []
for _ in range(20):
    loss = nn.functional.cross_entropy(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < 0.8 * losses[0], losses
"""
    python(script, VALUES)


def test_gradients_of_models_are_those_of_a_cpu(python: Python) -> None:
    script = f"""{COMPARED}
from tests.methods.tiny import gpt2, text
batch = text(4, 32)
on = lambda device: {{name: value.to(device) for name, value in batch.items()}}
assert_as_on_a_cpu(gpt2(2, dropout=0.0), lambda model, device: model(**on(device)).loss)

torch.manual_seed(0)
convolutions = nn.Sequential(
    nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
    nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
    nn.ConvTranspose2d(8, 4, 2), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 36, 5),
)
images, labels = torch.randn(6, 3, 16, 16), torch.arange(6) % 5
loss = lambda model, device: F.cross_entropy(model(images.to(device)), labels.to(device))
assert_as_on_a_cpu(convolutions, loss)
assert_as_on_a_cpu(convolutions.eval(), loss)
moved = copy.deepcopy(convolutions).train().cuda()
loss(moved, "cuda")
loss(convolutions.train(), "cpu")
assert error(moved[1].running_var, convolutions[1].running_var) < 1e-6
assert moved[1].num_batches_tracked == convolutions[1].num_batches_tracked
"""
    python(script, VALUES)


def test_every_kernel_of_attention_computes_attention(python: Python) -> None:
    script = f"""{COMPARED}
import itertools
from torch.nn.attention import SDPBackend as Kernel, sdpa_kernel
halves = (Kernel.FLASH_ATTENTION, Kernel.CUDNN_ATTENTION)
made = lambda dtype, heads: torch.randn(2, heads, 32, 64).to(dtype)

def attended(inputs, device, kernel, **options):
    leaves = [each.to(device).requires_grad_() for each in inputs]
    if "attn_mask" in options:
        options = {{"attn_mask": options["attn_mask"].to(device)}}
    with sdpa_kernel(kernel):
        output = F.scaled_dot_product_attention(*leaves, **options)
    output.float().square().sum().backward()
    return torch.cat([each.flatten().float() for each in (output, *(leaf.grad for leaf in leaves))])

for kernel in (Kernel.MATH, Kernel.EFFICIENT_ATTENTION, *halves):
    dtype = torch.bfloat16 if kernel in halves else torch.float32
    cases = [{{}}, {{"is_causal": True}}, {{"scale": 0.3}}]
    if kernel is not Kernel.FLASH_ATTENTION:
        cases += [{{"attn_mask": torch.rand(32, 32) > 0.3}}, {{"attn_mask": torch.randn(2, 4, 32, 32).to(dtype)}}]
    for options in cases:
        inputs = [made(dtype, 4) for _ in range(3)]
        found, expected = attended(inputs, "cuda", kernel, **options), attended(inputs, "cpu", Kernel.MATH, **options)
        assert error(found, expected) < (2e-2 if kernel in halves else 1e-5), (kernel, options, error(found, expected))

# Dropout in the backward pass is that of the forward pass: the output is linear in the values.
for kernel in (Kernel.EFFICIENT_ATTENTION, *halves):
    dropout = 0.25 if kernel is Kernel.CUDNN_ATTENTION else 0.3
    dtype = torch.bfloat16 if kernel in halves else torch.float32
    query, key, value = (made(dtype, 4).cuda().requires_grad_() for _ in range(3))
    with sdpa_kernel(kernel):
        output, another = (F.scaled_dot_product_attention(query, key, value, dropout_p=dropout) for _ in range(2))
    assert error(another, output) > 0.1
    (output.float().square().sum() / 2).backward()
    assert error((value.float() * value.grad).sum(), output.float().square().sum()) < 2e-2, kernel
"""
    python(script, VALUES)


def test_every_form_of_an_optimizer_takes_the_steps_of_a_cpu(python: Python) -> None:
    script = f"""{COMPARED}
def stepped(optimizer, device, **options):
    torch.manual_seed(0)
    model = nn.Linear(8, 8).to(device)
    chosen = optimizer(model.parameters(), lr=1e-2, **options)
    for step in range(3):
        model(torch.full((4, 8), 1.0 + step, device=device)).square().mean().backward()
        chosen.step()
        chosen.zero_grad()
    return model.weight

optim = torch.optim
for optimizer in (optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad, optim.RMSprop, optim.Adafactor):
    forms = [{{"foreach": True}}, {{"foreach": False}}]
    forms += [{{"fused": True}}] if optimizer in (optim.SGD, optim.Adam, optim.AdamW) else []
    for form in forms:
        found = error(stepped(optimizer, "cuda", **form), stepped(optimizer, "cpu", foreach=False))
        assert found < 1e-6, (optimizer, form, found)
"""
    python(script, VALUES)


def test_recomputation_draws_the_masks_again_and_a_seed_repeats_them(python: Python) -> None:
    script = f"""{COMPARED}
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 16)).cuda()
inputs = torch.randn(8, 16, device="cuda")

def found(run):
    model.zero_grad()
    torch.manual_seed(1)
    run().square().sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters()])

plain = found(lambda: model(inputs))
assert torch.equal(found(lambda: checkpoint(model, inputs, use_reentrant=False)), plain)
torch.manual_seed(2)
other, again = model(inputs), model(inputs)
assert not torch.equal(other, again)

generator = torch.Generator("cuda").manual_seed(3)
draws = [torch.randn(5, device="cuda", generator=generator) for _ in range(2)]
assert not torch.equal(*draws)
assert torch.equal(torch.randn(5, device="cuda", generator=generator.manual_seed(3)), draws[0])
assert sorted(torch.randperm(9, device="cuda").tolist()) == list(range(9))
"""
    python(script, VALUES)


def test_16_bits_and_the_scaler_of_gradients_train(python: Python) -> None:
    script = """
import torch
from tests.methods.tiny import gpt2, text
batch = {name: value.cuda() for name, value in text(4, 32).items()}
for dtype in (torch.bfloat16, torch.float16):
    model = gpt2(2, dropout=0.0).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=dtype is torch.float16, init_scale=2.0**40)
    losses = []
    for _ in range(30):
        with torch.autocast("cuda", dtype):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1, losses
    assert dtype is torch.bfloat16 or 1 < scaler.get_scale() < 2.0**40
"""
    python(script, VALUES)


def test_what_depends_on_values_does(python: Python) -> None:
    script = """
import torch
numbers = torch.arange(-3.0, 4.0, device="cuda")
assert numbers.nonzero().flatten().tolist() == [0, 1, 2, 4, 5, 6]
assert numbers[numbers > 1].tolist() == [2, 3]
numbers[numbers < 0] = 0
assert numbers.unique().tolist() == [0, 1, 2, 3]
assert torch.bincount(numbers.long()).tolist() == [4, 1, 1, 1]
assert numbers.repeat_interleave(numbers.long()).tolist() == [1, 2, 2, 3, 3, 3]
assert torch.equal(numbers, numbers.clone()) and not torch.equal(numbers, numbers + 1)
out = torch.empty(0, device="cuda")
assert torch.add(numbers, 1, out=out) is out and out[-1].item() == 4
view = numbers.view(1, 7).t()[::2]
view.mul_(2)
assert numbers.tolist() == [0, 0, 0, 0, 2, 2, 6]
large = torch.rand(3_000_000)
pinned = large.pin_memory()
assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), large)
assert torch.equal(large.cuda().double().to(torch.bfloat16).cpu(), large.to(torch.bfloat16))
assert "4" in repr(torch.full((2,), 4, device="cuda"))
"""
    python(script, VALUES)


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("torch.ops.aten._cslt_compress(torch.ones(32, 32, device='cuda').half())", "aten::_cslt_compress"),
        ("torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device='cuda'))", "kernel triton_poi"),
        ("with torch.cuda.graph(torch.cuda.CUDAGraph()): pass", "a graph"),
    ],
)
def test_what_cannot_be_computed_is_an_error_with_its_name(lines: str, name: str, python: Python) -> None:
    script = f"""
import torch
try:
    {lines}
except RuntimeError as error:
    print(error)
"""
    said = python(script, VALUES)
    assert "the software CUDA device cannot compute" in said
    assert name in said


def test_memory_of_the_device_is_counted_and_cannot_swamp_the_host(python: Python) -> None:
    script = """
import torch
print(torch.cuda.get_device_properties(0).total_memory >> 20)
before = torch.cuda.mem_get_info()[0]
held = torch.ones(64 << 20, dtype=torch.uint8, device="cuda")
print(before - torch.cuda.mem_get_info()[0] >> 20, torch.cuda.memory_allocated() >> 20)
try:
    torch.ones(8 << 30, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    print("refused")
"""
    assert python(script, VALUES).split() == [str(VALUES_MEBIBYTES), "64", "64", "refused"]


def test_expandable_segments_hold_values(python: Python) -> None:
    script = """
import torch
held = [torch.full((300_000,), float(number), device="cuda") for number in range(40)]
assert [int(each.sum().item() / 300_000) for each in held] == list(range(40))
"""
    python(script, VALUES, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")


def test_processes_that_a_process_starts_compute_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("""
import multiprocessing, torch
def summed():
    assert torch.arange(5, device="cuda").sum().item() == 10
if __name__ == "__main__":
    for how in ("fork", "spawn"):
        child = multiprocessing.get_context(how).Process(target=summed)
        child.start()
        child.join()
        assert child.exitcode == 0, how
""")
    result = VALUES.run([sys.executable, script], capture_output=True)
    assert result.returncode == 0, result.stderr


def test_a_product_that_is_not_waited_for_is_no_number(python: Python) -> None:
    script = """
import torch
large = torch.ones(2048, 2048, device="cuda")
assert (large @ large).isnan().all()
assert (large[:512] @ large)[0, 0].item() == 2048
"""
    python(script, VALUES)


def test_kernels_of_our_own_compute_in_tritons_interpreter(python: Python) -> None:
    """The same codes as by plain torch: the kernel as it is written, though not as it is compiled."""
    script = """
import torch
from advisor.methods.activations import _group_code as plain
from advisor.methods.activations._group_coder import GroupCoder
from advisor.methods.activations._private_random import Draws
device = torch.device("cuda")
for bits in (8, 4, 2):
    coder = GroupCoder(bits, Draws(), device)
    assert coder.why_plain == "", coder.why_plain
    for flat in (torch.randn(5000, device=device), torch.randn(700, device=device).relu().bfloat16()):
        buffer = coder.encode(flat)
        back = coder.decode(buffer, count=flat.numel(), dtype=flat.dtype)
        expected = plain.decode_groups(buffer, count=flat.numel(), dtype=flat.dtype, bits=bits)
        assert torch.equal(back.cpu(), expected.cpu())
        wide = flat.float()
        level = float(wide.max() - wide.min()) / (2**bits - 2)  # one code is for zero alone
        rounding = torch.finfo(flat.dtype).eps * float(wide.abs().max())
        assert float((back.float() - wide).abs().max()) <= level + rounding
"""
    python(script, VALUES, TRITON_INTERPRET="1")
