"""What operators take on an H100, in order: every line is one that torch's allocator was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from advisor.predict.prediction import CudaDevice
from advisor.predict.workspace.call import Give, Like, Result, WorkspaceCall, call_between
from advisor.predict.workspace.operators import has_workspace, steps_of
from advisor.predict.workspace.products import cublas_workspace_bytes, keeps_workspaces

H100 = CudaDevice(compute_capability=(9, 0), multiprocessors=132)
FLOAT, HALF, LONG = torch.float32, torch.bfloat16, torch.int64


def like(*shape: int, dtype: torch.dtype = FLOAT, order: tuple[int, ...] = ()) -> Like:
    """A dense tensor; with its dimensions in another order in memory."""
    tensor = torch.empty([shape[dim] for dim in order] if order else shape, dtype=dtype, device="meta")
    if order:
        tensor = tensor.permute([order.index(dim) for dim in range(len(shape))])
    return Like(tuple(tensor.shape), tuple(tensor.stride()), dtype)


def taken(operator: str, *results: Like, device: CudaDevice = H100, **arguments: Any) -> str:
    """``=0`` for a result, ``+`` and ``-`` with the bytes of what is none."""
    sizes: dict[str, int] = {}
    words = []
    for step in steps_of(WorkspaceCall(operator, tuple(arguments.items()), results), device):
        if isinstance(step, Result):
            words.append(f"={step.place}")
        elif isinstance(step, Give):
            words.append(f"-{sizes.pop(step.name)}")
        else:
            assert step.name not in sizes
            sizes[step.name] = step.nbytes
            words.append(f"+{step.nbytes}")
    assert not sizes, "what is taken is given back"
    return " ".join(words)


def test_a_sum_takes_its_partial_results_after_its_result() -> None:
    line = taken("sum.dim_IntList", like(1, 8192), self=like(1024, 8192), dim=(0,), keepdim=True)
    assert line == "=0 +67108864 +256 -256 -67108864"


def test_a_sum_of_truths_is_one_of_whole_numbers() -> None:
    assert taken("sum.default", like(dtype=LONG), self=like(4, 128, dtype=torch.bool)) == "=0 +4096 -4096"


def test_a_sum_of_16_bits_in_32_is_made_without_a_copy() -> None:
    assert taken("sum.dim_IntList", like(8), self=like(8, 64, dtype=HALF), dim=(1,)) == "=0"


def test_dropout_makes_its_mask_first() -> None:
    assert taken("native_dropout.default", like(4, 8), like(4, 8), self=like(4, 8), p=0.1, train=True) == "=1 =0"


def test_the_backward_pass_of_softmax_multiplies_first() -> None:
    scores = like(4, 6, 100, 100)
    line = taken("_softmax_backward_data.default", scores, grad_output=scores, output=scores, dim=-1)
    assert line == "=0 +960000 -960000"


QUERIES = like(4, 6, 256, 64, order=(0, 2, 1, 3))


def attention_backward(kind: str, gradient: Like, query: Like, shared: Like, **more: Any) -> str:
    named = {"grad_out_" if kind == "efficient" else "grad_out": gradient, "query": query, "key": shared}
    results = (query, shared, shared)
    operator = f"_scaled_dot_product_{kind}_attention_backward.default"
    return taken(operator, *results, **named, value=shared, out=query, **more)


def halves(one: Like) -> Like:
    return Like(one.shape, one.strides, HALF)


def test_efficient_attention_sums_products_in_32_bits_unless_its_kernel_does() -> None:
    line = "=0 =1 =2 +1572864 +24576 +24576 -24576 -1572864 +1574400 -24576 -1574400"
    assert attention_backward("efficient", QUERIES, QUERIES, QUERIES) == line
    line = "=0 =1 =2 +24576 +1574400 -24576 -1574400"
    assert attention_backward("efficient", *[halves(QUERIES)] * 3) == line


def test_a_gradient_in_another_layout_is_copied() -> None:
    line = attention_backward("efficient", like(4, 6, 256, 64), QUERIES, QUERIES)
    assert line.startswith("+1572864 =0 =1 =2 ")
    assert line.endswith(" -1572864")
    line = attention_backward("flash", halves(like(4, 6, 256, 64)), *[halves(QUERIES)] * 2)
    assert line == "+786432 =0 =1 =2 +24576 +1572864 -1572864 -24576 -786432"


def test_shared_keys_and_values_have_a_gradient_for_every_head_first() -> None:
    query, shared = like(4, 8, 512, 64, order=(0, 2, 1, 3)), like(4, 2, 512, 64, order=(0, 2, 1, 3))
    assert attention_backward("efficient", query, query, shared) == (
        "=0 =1 =2 +4194304 +4194304 +4194304 +65536 +65536 -65536 -4194304 +4198400 -65536 -4198400 -4194304 -4194304"
    )
    query, shared = (halves(like(4, heads, 128, 64, order=(0, 2, 1, 3))) for heads in (8, 2))
    line = "=0 =1 =2 +16384 +1048576 +524288 +524288 -524288 -524288 -1048576 -16384"
    assert attention_backward("flash", query, query, shared) == line
    assert attention_backward("cudnn", query, query, shared) == "=0 =1 =2 +1064960 -1064960"


@pytest.mark.parametrize(
    ("batch", "heads", "queries", "keys", "size", "dtype", "workspace"),
    [
        (4, 6, 100, 130, 64, FLOAT, 787_200),
        (2, 8, 256, 256, 128, FLOAT, 2_098_176),
        (2, 8, 300, 256, 128, FLOAT, 3_147_264),
        (4, 6, 256, 256, 80, HALF, 3_146_496),
        (2, 8, 256, 256, 256, HALF, 12_584_960),  # whose gradients of keys do not fit into registers
        (64, 8, 512, 512, 256, HALF, 335_675_392),
    ],
)
def test_the_workspace_of_efficient_attention_is_that_of_the_kernel_for_such_heads(
    batch: int, heads: int, queries: int, keys: int, size: int, dtype: torch.dtype, workspace: int
) -> None:
    query, key = (like(batch, heads, length, size, dtype=dtype, order=(0, 2, 1, 3)) for length in (queries, keys))
    assert attention_backward("efficient", query, query, key).split()[-1] == f"-{workspace}"


def test_flash_attention_splits_keys_where_there_are_few_blocks() -> None:
    results = [like(1)] * 4

    def line(batch: int, size: int, dropout: float = 0.0) -> str:
        query = halves(like(batch, 8, 256, size, order=(0, 2, 1, 3)))
        operator = "_scaled_dot_product_flash_attention.default"
        return taken(operator, *results, query=query, key=query, value=query, dropout_p=dropout)

    assert line(2, 128) == "=0 =1 +32768 +4194304 =2 =3 -32768 -4194304"
    assert line(2, 64) == "=0 =1 =2 =3"
    assert line(64, 128) == "=0 =1 =2 =3"
    assert line(2, 128, 0.1) == "=0 =1 +16 =3 =2 -16"


def test_seeds_are_the_hosts_where_efficient_attention_has_dropout() -> None:
    results = [like(1)] * 4
    operator = "_scaled_dot_product_efficient_attention.default"
    assert taken(operator, *results, query=QUERIES, value=QUERIES, dropout_p=0.1) == "=0 =1"
    assert taken(operator, *results, query=QUERIES, value=QUERIES, dropout_p=0.0) == "=2 =3 =0 =1"
    wide = halves(like(2, 4, 256, 256, order=(0, 2, 1, 3)))
    assert taken(operator, *results, query=wide, value=wide, dropout_p=0.1) == "=0 =1 +2097152 -2097152"


def normalization(rows: int, columns: int) -> str:
    given, weight = like(rows, columns), like(columns)
    return taken(
        "native_layer_norm_backward.default", given, weight, weight, grad_out=given, input=given, weight=weight
    )


def test_gradients_of_a_normalization_of_very_many_rows_are_summed_in_two_steps() -> None:
    assert normalization(65_536, 384) == "=0 =1 =2"
    half = "+6488064 +12 -12 -6488064 -1536"
    assert normalization(65_537, 384) == f"=0 +1536 +1536 +3147264 +3147264 =1 {half} =2 {half} -3147264 -3147264"
    assert normalization(131_072, 4096) == "=0 =1 =2"


def embedding(count: int, size: int, rows: int) -> str:
    gradient, indices = like(count, size), like(count, dtype=LONG)
    operator = "embedding_dense_backward.default"
    return taken(operator, like(rows, size), grad_output=gradient, indices=indices, num_weights=rows)


def test_gradients_of_many_rows_of_an_embedding_are_sorted() -> None:
    assert embedding(3072, 512, 8192) == "=0"
    assert embedding(6144, 512, 8192) == (
        "+49152 +49152 +49152 +104959 -104959 -49152 =0 +49152 +8 +49152 -49152 +49152 +49152 +8 +54064 +13840384 "
        "-13840384 -54064 -8 -49152 -49152 -8 -49152 -49152 -49152"
    )
    assert "+17017343" in embedding(1_048_576, 64, 128_000)
    assert "+6655" in embedding(16_384, 6, 32)


def test_convolutions_copy_what_is_not_laid_out_as_they_take_it() -> None:
    """The second is depthwise, and makes its weight's gradient first."""
    gradient = Like((12, 384, 14, 14), (75_648, 1, 5376, 384), FLOAT)
    common = {"output_mask": (False, True, True), "groups": 1}
    images, weight = like(12, 3, 224, 224), like(384, 3, 16, 16)
    line = taken("convolution_backward.default", grad_output=gradient, input=images, weight=weight, **common)
    assert line == "+3612672 =0 -3612672 =1 +7274496 +12 -12 -7274496"
    samples = Like((4, 512, 64), (65_536, 1, 1024), FLOAT)
    common = {"weight": like(512, 1, 4), "groups": 512}
    assert taken("convolution.default", input=samples, **common) == "+524288 =0 -524288"
    common |= {"output_mask": (True, True, True), "grad_output": like(4, 512, 67)}
    assert taken("convolution_backward.default", input=samples, **common) == "+524288 =1 =0 =2 -524288"


def test_depthwise_convolutions_with_channels_last_are_cudnns() -> None:
    """They take it as it is, and make the input's gradient first; in 64 bits torch's own kernels copy it."""
    common: dict[str, Any] = {"weight": like(64, 1, 7, 7), "groups": 64, "transposed": False}
    last, first = like(4, 64, 16, 16, order=(0, 2, 3, 1)), like(4, 64, 16, 16)
    assert taken("convolution.default", input=last, **common) == "=0"
    assert taken("convolution.default", input=first, **common) == "=0"
    wide = like(4, 64, 16, 16, dtype=torch.float64, order=(0, 2, 3, 1))
    assert taken("convolution.default", input=wide, **common) == "+524288 =0 -524288"
    common |= {"output_mask": (True, True, True)}
    assert taken("convolution_backward.default", grad_output=last, input=last, **common) == "=0 =1 =2"
    assert taken("convolution_backward.default", grad_output=first, input=first, **common) == "=1 =0 =2"
    line = taken("convolution_backward.default", grad_output=first, input=last, **common)
    assert line == "+262144 =0 =1 -262144 =2"


def test_a_roll_goes_over_one_dimension_after_the_other() -> None:
    tensor, other = like(4, 8, 64, 32), like(4, 8, 64, 32, order=(0, 2, 1, 3))
    lines = {
        (): ("=0", "+262144 =0 -262144"),
        (1,): ("=0", "+262144 =0 -262144"),
        (1, 2): ("+262144 =0 -262144", "+262144 +262144 -262144 =0 -262144"),
        (0, 1, 2): ("+262144 +262144 =0 -262144 -262144", "+262144 +262144 -262144 +262144 =0 -262144 -262144"),
    }
    for dims, expected in lines.items():
        common: dict[str, Any] = {"shifts": (1,) * max(1, len(dims)), "dims": dims}
        assert taken("roll.default", self=tensor, **common) == expected[0]
        assert taken("roll.default", self=other, **common) == expected[1]


def test_calls_are_carried_to_a_third_batch_by_their_sizes() -> None:
    first, second, third = (
        WorkspaceCall("sum.dim_IntList", (("self", like(batch * 256, 384)), ("dim", (0,))), (like(384),))
        for batch in (2, 4, 12)
    )
    assert call_between((2, first), (4, second), 12) == third


def test_operators_without_a_rule_take_nothing() -> None:
    assert not has_workspace("relu.default")


def test_a_product_takes_what_cublas_works_in_after_its_result() -> None:
    assert taken("mm.default", like(4, 8), self=like(4, 16), mat2=like(16, 8)) == "=0 +33554432 -33554432"
    ampere = CudaDevice(compute_capability=(8, 0), multiprocessors=108)
    line = taken("bmm.default", like(2, 4, 8), device=ampere, self=like(2, 4, 16), mat2=like(2, 16, 8))
    assert line == "=0 +8519680 -8519680"
    assert taken("mv.default", like(4), self=like(4, 8), vec=like(8)) == "=0 +33554432 -33554432"
    assert taken("mm.default", like(4, 8), self=like(4, 0), mat2=like(0, 8)) == "=0", "nothing is multiplied"


def test_cublas_takes_a_larger_workspace_from_hopper_on() -> None:
    assert cublas_workspace_bytes(CudaDevice(compute_capability=(8, 0), multiprocessors=108)) == 8_519_680
    assert cublas_workspace_bytes(H100) == 33_554_432


def test_a_product_copies_what_has_neither_rows_nor_columns_in_one_piece() -> None:
    turned, every_other = like(16, 8, order=(1, 0)), Like((16, 8), (16, 2), FLOAT)
    assert taken("mm.default", like(4, 8), self=like(4, 16), mat2=turned) == "=0 +33554432 -33554432"
    line = taken("mm.default", like(4, 8), self=Like((4, 16), (64, 2), FLOAT), mat2=every_other)
    assert line == "=0 +512 +256 +33554432 -33554432 -256 -512"


def test_a_product_that_adds_a_bias_at_once_takes_less() -> None:
    def added(self: Like, dtype: torch.dtype = FLOAT, **more: Any) -> bool:
        matrices = {"mat1": like(4, 16, dtype=dtype), "mat2": like(16, 8, dtype=dtype)}
        line = taken("addmm.default", like(4, 8, dtype=dtype), self=self, **matrices, **more)
        assert line in ("=0 +1048576 -1048576", "=0 +33554432 -33554432")
        return "1048576" in line

    assert added(like(8))
    assert added(like(1, 8))
    assert not added(like(8), beta=0.5)
    assert not added(Like((8,), (2,), FLOAT))
    assert not added(like(4, 8)), "no bias"
    assert added(like(4, 8, dtype=HALF), dtype=HALF)
    assert not added(like(4, 8, dtype=HALF), dtype=HALF, beta=0)


@pytest.mark.parametrize(
    ("version", "variables", "kept"),
    [("2.14.1+cu130", {}, True), ("2.15.0+cu132", {}, False), ("2.15.0", {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}, True)],
)
def test_up_to_torch_2_14_only_the_first_product_of_a_thread_takes_it(
    version: str, variables: dict[str, str], kept: bool
) -> None:
    assert keeps_workspaces(version, variables) is kept


def test_products_have_a_rule_where_each_takes_its_own() -> None:
    assert has_workspace("mm.default") is not keeps_workspaces()
