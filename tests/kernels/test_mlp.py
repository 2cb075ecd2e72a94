"""SiLU times up, and the fused projection before it, against torch and the model's own code."""

import pytest
import torch
import torch.nn.functional as F

from specbench.kernels.mlp import reference
from tests.support.buffers import DEVICE, KERNEL_DTYPES, as_accurate, close, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.linear.plan import LinearLaunch
from specbench.kernels.mlp.triton import SiluLaunch, choose, gate_up_small, silu_mul
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.norm.triton import prenorm

EPS = 0.5


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("rows", "inner"), [(1, 4864), (3, 100), (17, 1)])
def test_silu_mul_equals_the_reference(rows: int, inner: int, dtype: torch.dtype) -> None:
    gate_up = inputs(1, rows, 2 * inner, dtype=dtype, scale=4)
    out = silu_mul(gate_up, SiluLaunch(block=128))
    assert out.shape == (rows, inner)
    close(out, reference.silu_mul(gate_up))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning")
def test_silu_of_large_numbers() -> None:
    gate = torch.tensor([[-1e4, -100.0, 0.0, 100.0, 1e4]], device=DEVICE)
    out = silu_mul(torch.cat([gate, torch.ones_like(gate)], 1))
    close(out, F.silu(gate))
    assert out.isfinite().all()


def test_bad_rows_stay_alone() -> None:
    gate_up = inputs(1, 3, 40, dtype=torch.float32)
    gate_up[1] = torch.nan
    assert silu_mul(gate_up).isnan().all(1).tolist() == [False, True, False]
    x, weight = inputs(2, 3, 20, dtype=torch.float32), inputs(3, 40, 20, dtype=torch.float32)
    x[1, 2] = torch.nan
    norm = torch.ones(20, device=DEVICE)
    out = gate_up_small(prenorm(x, norm), weight, eps=EPS)
    assert out.isnan().all(1).tolist() == [False, True, False]
    assert out[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(
    "launch",
    [None, LinearLaunch(64, 16), LinearLaunch(16, 128, 1, 2, over_k=True)],
    ids=["table", "odd", "held"],
)
@pytest.mark.parametrize(("rows", "hidden", "inner"), [(1, 896, 40), (3, 100, 65), (17, 64, 1)])
def test_the_fused_projection_equals_the_reference(
    rows: int, hidden: int, inner: int, launch: LinearLaunch | None, dtype: torch.dtype
) -> None:
    x = inputs(1, rows, hidden, dtype=dtype, scale=3)
    weight = inputs(2, 2 * inner, hidden, dtype=dtype, scale=hidden**-0.5)
    bias, norm = inputs(3, 2 * inner, dtype=dtype), inputs(4, hidden, dtype=dtype)
    plain = gate_up_small(x, weight, launch=launch)
    exact = reference.gate_up_small(x.double(), weight.double())
    as_accurate(plain, reference.gate_up_small(x, weight), exact, hidden)
    x = prenorm(x, norm)
    found = gate_up_small(x, weight, bias, eps=EPS, launch=launch)
    doubles = Prenormed(x.rows.double(), x.squares.double()), weight.double(), bias.double()
    exact = reference.gate_up_small(*doubles, eps=EPS)
    expected = reference.gate_up_small(x, weight, bias, eps=EPS)
    as_accurate(found, expected, exact, hidden)


def test_half_types_are_rounded_where_the_model_rounds_them() -> None:
    """One unit in the last place between the two orders of rounding, for a good share of them."""
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(4, 512, generator=generator).bfloat16().to(DEVICE)
    gate, up = gate_up.chunk(2, -1)
    once = (F.silu(gate.float()) * up.float()).bfloat16()
    expected = reference.silu_mul(gate_up)
    assert (once != expected).float().mean() > 0.1
    assert (silu_mul(gate_up) != expected).float().mean() < 0.01


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_reference_is_the_models_code(dtype: torch.dtype) -> None:
    x, weight = inputs(1, 5, 32, dtype=dtype), inputs(2, 96, 32, dtype=dtype)
    gate, up = F.linear(x, weight).chunk(2, -1)
    expected = F.silu(gate).mul_(up)
    assert torch.equal(reference.gate_up_small(x, weight), expected)


def test_wrong_inputs() -> None:
    x, weight = inputs(1, 3, 32, dtype=torch.float32), inputs(2, 64, 32, dtype=torch.float32)
    with pytest.raises(ValueError, match="splits is 2"):
        gate_up_small(x, weight, launch=LinearLaunch(16, 16, 2))
    with pytest.raises(ValueError, match="float64"):
        silu_mul(x.double())
    assert choose(17, 4864, 132).block_n == 32
    assert choose(17, 1536, 132).block_n == 16
    assert silu_mul(torch.empty(0, 8, device=DEVICE)).shape == (0, 4)
