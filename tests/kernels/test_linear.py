"""The projection of a few rows, norm before and residual behind, against torch."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specbench.kernels.linear import reference
from tests.support.buffers import DEVICE, KERNEL_DTYPES, as_accurate, close, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.launch import Scratch
from specbench.kernels.linear.plan import LinearLaunch, choose, fitting, scratch_size, shares
from specbench.kernels.linear.triton import linear_prenorm, linear_small
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.norm.triton import prenorm

EPS = 2.0
WHOLE, SPLIT, ODD = LinearLaunch(16, 64), LinearLaunch(32, 32, 3), LinearLaunch(64, 16, 100)
# warps that share K: of a weight that is held before the wait, and of one that is streamed
HELD, SHARED = LinearLaunch(8, 1024, 1, 8, over_k=True), LinearLaunch(32, 64, 3, over_k=True)


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def operands(
    rows: int, inner: int, outputs: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Rows, weight, bias, norm weight and residual, results of the size of 1."""
    return (
        inputs(1, rows, inner, dtype=dtype, scale=3),
        inputs(2, outputs, inner, dtype=dtype, scale=inner**-0.5),
        inputs(3, outputs, dtype=dtype),
        inputs(4, inner, dtype=dtype),
        inputs(5, rows, outputs, dtype=dtype),
    )


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(
    "launch", [WHOLE, SPLIT, ODD, HELD, SHARED], ids=["whole", "split", "odd", "held", "shared"]
)
@pytest.mark.parametrize(
    ("rows", "inner", "outputs"), [(1, 896, 40), (3, 100, 130), (17, 64, 100), (64, 33, 1)]
)
def test_equals_the_reference(
    rows: int, inner: int, outputs: int, launch: LinearLaunch, dtype: torch.dtype
) -> None:
    x, weight, bias, norm, residual = operands(rows, inner, outputs, dtype)
    launch = fitting(launch, rows, x.element_size())
    close(linear_small(x, weight, launch=launch), reference.linear_small(x, weight))
    expected, exact = residual.clone(), residual.double()
    x = prenorm(x, norm)
    reference.linear_small(x, weight, bias, eps=EPS, residual=expected)
    doubles = Prenormed(x.rows.double(), x.squares.double()), weight.double(), bias.double()
    reference.linear_small(*doubles, eps=EPS, residual=exact)
    surroundings = residual.as_strided((rows, outputs + 16), (outputs + 16, 1))[:, outputs:]
    found = linear_small(x, weight, bias, eps=EPS, residual=residual, launch=launch)
    assert found is residual
    as_accurate(found, expected, exact, inner)
    assert surroundings.isnan().all()


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("launch", [WHOLE, SPLIT, HELD], ids=["whole", "split", "held"])
@pytest.mark.parametrize(("rows", "inner", "outputs"), [(1, 96, 40), (17, 64, 100)])
def test_a_norm_begun_here_and_ended_in_the_next_product(
    rows: int, inner: int, outputs: int, launch: LinearLaunch, dtype: torch.dtype
) -> None:
    x, weight, bias, _, residual = operands(rows, inner, outputs, dtype)
    norm, onto = inputs(6, outputs, dtype=dtype), inputs(7, 24, outputs, dtype=dtype)
    stream = linear_small(x, weight, bias, residual=residual.clone(), launch=launch)
    begun = linear_prenorm(x, weight, bias, norm=norm, residual=residual, launch=launch)
    assert torch.equal(residual, stream)
    assert begun.squares.shape == (-(-outputs // launch.block_n), rows)
    expected = reference.prenorm(stream, norm)
    close(begun.rows, expected.rows)
    close(begun.squares.sum(0), expected.squares[0])
    whole = torch.nn.functional.rms_norm(stream.double(), (outputs,), norm.double(), EPS)
    exact = whole @ onto.double().T
    rounded = reference.linear_small(expected, onto, eps=EPS)
    as_accurate(linear_small(begun, onto, eps=EPS, launch=launch), rounded, exact, outputs)


def test_half_types_round_the_projection_before_the_residual() -> None:
    """Adding the unrounded projection would change a good share of the results."""
    x, weight, _, _, residual = operands(16, 64, 64, torch.bfloat16)
    unrounded = (residual.float() + x.float() @ weight.float().T).bfloat16()
    expected = reference.linear_small(x, weight, residual=residual.clone())
    assert (unrounded != expected).float().mean() > 0.1
    found = linear_small(x, weight, residual=residual, launch=SPLIT)
    assert (found != expected).float().mean() < 0.02


def test_the_order_of_a_sum_does_not_depend_on_who_comes_last() -> None:
    x, weight, *_ = operands(3, 256, 64, torch.float32)
    launch = LinearLaunch(32, 16, 8)
    parts = [
        linear_small(x[:, at : at + 32], weight[:, at : at + 32], launch=LinearLaunch(32, 16))
        for at in range(0, 256, 32)
    ]
    expected = torch.zeros(3, 64, device=DEVICE)
    for part in parts:
        expected += part
    assert torch.equal(linear_small(x, weight, launch=launch), expected)


def test_scratch_is_reused_and_may_be_dirty() -> None:
    x, weight, *_ = operands(3, 128, 70, torch.float32)
    launch = LinearLaunch(16, 16, 4)
    scratch = Scratch.make(DEVICE, *scratch_size(3, 70, 128, launch))
    scratch.partial.fill_(torch.nan)
    first = linear_small(x, weight, launch=launch, scratch=scratch)
    close(first, reference.linear_small(x, weight))
    assert (scratch.counters == 0).all()
    again = linear_small(x, weight, launch=launch, scratch=scratch)
    assert torch.equal(again, first)
    small = Scratch.make(DEVICE, 8, 8)
    with pytest.raises(ValueError, match="needs scratch"):
        linear_small(x, weight, launch=launch, scratch=small)


def test_a_bad_row_stays_alone() -> None:
    x, weight, _, norm, _ = operands(3, 64, 32, torch.float32)
    x[1, 5] = torch.nan
    out = linear_small(prenorm(x, norm), weight, eps=EPS, launch=LinearLaunch(16, 16, 2))
    assert out.isnan().all(1).tolist() == [False, True, False]
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("inner", [896, 4864, 100])
@pytest.mark.parametrize("outputs", [896, 1152, 9728, 10])
@pytest.mark.parametrize("rows", [1, 16, 17, 64])
def test_the_table_covers_the_device(rows: int, outputs: int, inner: int) -> None:
    launch = choose(rows, outputs, inner, 132)
    each, splits = shares(inner, launch)
    assert (splits - 1) * each * launch.block_k < inner <= splits * each * launch.block_k
    programs = splits * -(-outputs // launch.block_n)
    assert programs <= max(2 * 132, -(-outputs // launch.block_n))


def test_few_rows_of_a_long_k_need_no_scratch() -> None:
    assert scratch_size(4, 896, 4864, choose(4, 896, 4864, 132)) == (0, 0)
    assert scratch_size(5, 896, 4864, choose(5, 896, 4864, 132)) != (0, 0)
    # more tiles than multiprocessors would take turns
    assert scratch_size(4, 4096, 12288, choose(4, 4096, 12288, 132)) != (0, 0)


def test_blocks_that_do_not_fit_the_shared_memory_are_halved() -> None:
    launch = LinearLaunch(16, 1024, 1, 8, over_k=True)
    assert fitting(launch, 16, 2).block_k == 1024
    assert fitting(launch, 64, 4) == replace(launch, block_k=512, num_stages=1)


def test_wrong_inputs() -> None:
    x, weight, *_ = operands(3, 32, 16, torch.float32)
    with pytest.raises(ValueError, match="64 rows"):
        linear_small(x.repeat(30, 1), weight)
    with pytest.raises(ValueError, match="float64"):
        linear_small(x.double(), weight.double())
    with pytest.raises(ValueError, match="bfloat16"):
        linear_small(x, weight.bfloat16())
    with pytest.raises(ValueError, match="adjacent"):
        linear_small(x, weight[:, :16].T[:3].expand(3, 16).T.repeat(2, 1).T)
    with pytest.raises(ValueError, match="float16"):
        linear_small(prenorm(x.half(), x[0].half()), weight.half())
    with pytest.raises(ValueError, match="4 warps share blocks of 32"):
        linear_small(x, weight, launch=LinearLaunch(16, 32, over_k=True))
