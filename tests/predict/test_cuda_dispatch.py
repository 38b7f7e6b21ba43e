from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from advisor.predict.cuda.attention_choice import AttentionGpu
from advisor.predict.cuda.dispatch import as_cuda

_BATCH, _HEADS, _SIZE = 2, 4, 64
_FLASH = "_scaled_dot_product_flash_attention"
_EFFICIENT = "_scaled_dot_product_efficient_attention"
_CUDNN = "_scaled_dot_product_cudnn_attention"


class _Seen(TorchDispatchMode):
    """Operators by name with their results, and the largest result of all, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[str, Any] = {}
        self.largest_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        self.results[func.overloadpacket.__name__] = results
        tensors = [leaf for leaf in tree_leaves(results) if isinstance(leaf, torch.Tensor)]
        self.largest_bytes = max([self.largest_bytes, *(tensor.untyped_storage().nbytes() for tensor in tensors)])
        return results


def _inputs(
    length: int, dtype: torch.dtype = torch.bfloat16, *, size: int = _SIZE, shared_heads: int = _HEADS
) -> list[torch.Tensor]:
    return [
        torch.empty(_BATCH, heads, length, size, dtype=dtype, requires_grad=True)
        for heads in (_HEADS, shared_heads, shared_heads)
    ]


def _trained(inputs: list[torch.Tensor], **options: Any) -> tuple[_Seen, torch.Tensor]:
    with _Seen() as seen:
        output = functional.scaled_dot_product_attention(*inputs, **options)
        output.sum().backward()
    for tensor in inputs:
        assert tensor.grad is not None
        assert (tensor.grad.shape, tensor.grad.dtype) == (tensor.shape, tensor.dtype)
    return seen, output


def _growth(dtype: torch.dtype, **options: Any) -> float:
    """How many times the largest tensor grows when the sequence becomes four times as long."""
    short, long = (_trained(_inputs(length, dtype), **options)[0].largest_bytes for length in (1024, 4096))
    return long / short


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize(("dtype", "kernel"), [(torch.bfloat16, _FLASH), (torch.float32, _EFFICIENT)])
def test_training_through_a_fused_kernel_grows_linearly_with_the_sequence(
    dtype: torch.dtype, kernel: str, dropout: float
) -> None:
    with FakeTensorMode(), as_cuda():
        assert _growth(dtype, dropout_p=dropout) == 4
        seen, _ = _trained(_inputs(128, dtype), dropout_p=dropout)
    assert {kernel, f"{kernel}_backward"} <= set(seen.results)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_plain_operators_grow_with_its_square(dtype: torch.dtype) -> None:
    with FakeTensorMode(), as_cuda(), sdpa_kernel(SDPBackend.MATH):
        assert _growth(dtype) == 16


def test_without_it_dropout_on_the_cpu_grows_with_the_square() -> None:
    with FakeTensorMode():
        assert _growth(torch.float32, dropout_p=0.1) == 16


def test_the_statistics_kept_for_the_backward_pass_have_the_kernels_sizes() -> None:
    with FakeTensorMode(), as_cuda():
        flash, _ = _trained(_inputs(100))
        efficient, _ = _trained(_inputs(100, torch.float32))
        with torch.no_grad(), _Seen() as forward_only:
            functional.scaled_dot_product_attention(*_inputs(100, torch.float32))
    assert flash.results[_FLASH][1].shape == (_BATCH, _HEADS, 100)
    assert efficient.results[_EFFICIENT][1].shape == (_BATCH, _HEADS, 128)  # a multiple of 32
    assert forward_only.results[_EFFICIENT][1].shape == (_BATCH, _HEADS, 0)
    assert flash.results[_FLASH][1].dtype is efficient.results[_EFFICIENT][1].dtype is torch.float32


def test_cudnn_computes_where_it_is_preferred() -> None:
    gpu = AttentionGpu(compute_capability=(9, 0), cudnn_version=91501)
    with FakeTensorMode(), as_cuda(gpu):
        seen, _ = _trained(_inputs(128), attn_mask=torch.empty(128, 128, dtype=torch.bool), dropout_p=0.1)
    assert seen.results[_CUDNN][1].shape == (_BATCH, _HEADS, 128, 1)
    assert f"{_CUDNN}_backward" in seen.results


def test_the_result_is_laid_out_as_the_kernel_lays_it_out() -> None:
    with FakeTensorMode(), as_cuda():
        assert _trained(_inputs(128))[1].is_contiguous()
        assert _trained(_inputs(128, torch.float32))[1].transpose(1, 2).is_contiguous()


def test_flash_pads_heads_and_cuts_the_result() -> None:
    with FakeTensorMode(), as_cuda():
        seen, output = _trained(_inputs(128, size=20))
    assert seen.results[_FLASH][0].size(-1) == 24
    assert output.shape == (_BATCH, _HEADS, 128, 20)


def test_flash_shares_heads_between_queries() -> None:
    with FakeTensorMode(), as_cuda():
        seen, output = _trained(_inputs(128, shared_heads=2), enable_gqa=True)
    assert _FLASH in seen.results
    assert output.shape == (_BATCH, _HEADS, 128, _SIZE)


def test_a_mask_is_not_repeated_for_every_head() -> None:
    length = 1001  # rows are padded to 1008, and none of it is copied per sample or head
    with FakeTensorMode(), as_cuda():
        inputs = _inputs(length, size=8)
        seen, _ = _trained(inputs, attn_mask=torch.empty(length, length, dtype=torch.bool))
    assert _EFFICIENT in seen.results
    assert seen.largest_bytes == 2 * length * 1008


def test_autocast_lowers_the_inputs() -> None:
    with FakeTensorMode(), as_cuda(), torch.autocast("cpu", torch.bfloat16):
        seen, output = _trained(_inputs(128, torch.float32))
    assert output.dtype is torch.bfloat16
    assert _FLASH in seen.results


def test_the_attention_of_a_torch_module_is_seen() -> None:
    with FakeTensorMode(), as_cuda(), _Seen() as seen:
        module = torch.nn.MultiheadAttention(64, 4, dropout=0.1, batch_first=True)
        samples = torch.empty(2, 128, 64, requires_grad=True)
        module(samples, samples, samples, need_weights=False)[0].sum().backward()
    assert f"{_EFFICIENT}_backward" in seen.results


def test_attention_that_is_recomputed_is_seen() -> None:
    with FakeTensorMode(), as_cuda():
        inputs = _inputs(128, torch.float32)

        def attend(*tensors: torch.Tensor) -> torch.Tensor:
            return functional.scaled_dot_product_attention(*tensors, dropout_p=0.1)

        output = checkpoint(attend, *inputs, use_reentrant=False, preserve_rng_state=False)
        with _Seen() as seen:
            output.sum().backward()
    assert {_EFFICIENT, f"{_EFFICIENT}_backward"} <= set(seen.results)


def test_an_attention_that_no_allowed_kernel_suits_is_refused() -> None:
    with FakeTensorMode(), as_cuda(), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        inputs = _inputs(128, torch.float32)
        with pytest.raises(RuntimeError, match="No available kernel"):
            functional.scaled_dot_product_attention(*inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_keeps_its_mask_as_booleans(dtype: torch.dtype) -> None:
    with FakeTensorMode(), as_cuda(), _Seen() as seen:
        samples = torch.empty(64, 128, dtype=dtype, requires_grad=True)
        torch.nn.Dropout(0.1)(samples).sum().backward()
    assert seen.results["native_dropout"][1].dtype is torch.bool
    assert samples.grad is not None
    assert samples.grad.dtype is dtype


def test_plain_operators_of_attention_keep_it_so_too() -> None:
    with FakeTensorMode(), as_cuda(), sdpa_kernel(SDPBackend.MATH):
        seen, _ = _trained(_inputs(128), dropout_p=0.1)
    assert seen.results["native_dropout"][1].shape == (_BATCH, _HEADS, 128, 128)


@pytest.mark.parametrize(("p", "train"), [(0.1, False), (0.0, True), (1.0, True)])
def test_dropout_that_draws_nothing_is_left_to_torch(p: float, train: bool) -> None:
    def operators() -> set[str]:
        with FakeTensorMode(), _Seen() as seen:
            functional.dropout(torch.empty(64, requires_grad=True), p, train).sum().backward()
        return set(seen.results)

    expected = operators()
    with as_cuda():
        assert operators() == expected
    assert "native_dropout" not in expected


def _real_step() -> list[torch.Tensor]:
    torch.manual_seed(0)
    inputs = [torch.randn(1, 2, 5, 8, requires_grad=True) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16):
        output = functional.dropout(functional.scaled_dot_product_attention(*inputs, dropout_p=0.1), 0.5)
    output.sum().backward()
    return [output, *(tensor.grad for tensor in inputs if tensor.grad is not None)]


def test_real_tensors_are_left_to_torch() -> None:
    expected = _real_step()
    with as_cuda():
        assert all(torch.equal(one, other) for one, other in zip(_real_step(), expected, strict=True))


def test_a_torch_function_mode_sees_only_what_was_called() -> None:
    class Names(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            names.append(func.__name__)
            return func(*args, **(kwargs or {}))

    names: list[str] = []
    with FakeTensorMode(), as_cuda():
        inputs = _inputs(128, size=20)
        mask = torch.empty(128, 128, dtype=torch.bool)
        with Names():
            functional.scaled_dot_product_attention(*inputs)
            functional.scaled_dot_product_attention(*inputs, attn_mask=mask)
    assert names == ["scaled_dot_product_attention"] * 2


def test_only_one_may_be_open() -> None:
    with as_cuda():
        with pytest.raises(AssertionError, match="one context"), as_cuda():
            pass
        with FakeTensorMode():
            seen, _ = _trained(_inputs(128))
    assert _FLASH in seen.results


def test_torch_is_as_before_afterwards() -> None:
    with pytest.raises(KeyError), as_cuda():
        raise KeyError
    with FakeTensorMode(), _Seen() as seen:
        attended = functional.scaled_dot_product_attention(*_inputs(128, torch.float32))
        functional.dropout(attended, 0.1)
    assert not {_EFFICIENT, "native_dropout"} & set(seen.results)
