"""The fused norm against torch, and against the model's own order of rounding."""

import pytest
import torch
import torch.nn.functional as F

from specbench.kernels.norm import reference
from tests.support.buffers import DEVICE, KERNEL_DTYPES, close, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.norm.triton import NormLaunch, add_rms_norm, embed_prenorm, prenorm, rms_norm

EPS = 0.1


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 896), (3, 100), (17, 64), (2, 1), (2, 1025)])
def test_equals_the_reference(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, delta = (inputs(seed, rows, hidden, dtype=dtype) for seed in (1, 2))
    weight = inputs(3, hidden, dtype=dtype)
    close(rms_norm(x, weight, EPS), reference.rms_norm(x, weight, EPS))
    stream = x.clone()
    expected = reference.add_rms_norm(stream, delta, weight, EPS)
    close(add_rms_norm(x, delta, weight, EPS), expected)
    assert torch.equal(x, stream)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("rows", "hidden"), [(1, 896), (3, 100), (17, 64)])
def test_a_norm_that_is_only_begun(rows: int, hidden: int, dtype: torch.dtype) -> None:
    x, delta = (inputs(seed, rows, hidden, dtype=dtype) for seed in (1, 2))
    weight = inputs(3, hidden, dtype=dtype)
    stream = x.clone()
    expected = reference.prenorm(stream, weight, delta)
    begun = prenorm(x, weight, delta)
    assert torch.equal(x, stream)
    close(begun.rows, expected.rows)
    close(begun.squares, expected.squares)
    close((begun.rows * begun.root(EPS)).to(dtype), reference.rms_norm(stream, weight, EPS))


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_the_stream_begins_with_rows_of_the_table(dtype: torch.dtype) -> None:
    table, weight = inputs(1, 50, 100, dtype=dtype), inputs(2, 100, dtype=dtype)
    tokens = torch.tensor([49, 0, 7, 7], device=DEVICE)
    x, begun = embed_prenorm(tokens, table, weight)
    expected_x, expected = reference.embed_prenorm(tokens, table, weight)
    assert torch.equal(x, expected_x)
    close(begun.rows, expected.rows)
    close(begun.squares, expected.squares)


@pytest.mark.parametrize("dtype", [*KERNEL_DTYPES, torch.float64])
def test_reference_is_the_models_code(dtype: torch.dtype) -> None:
    x, delta, weight = (inputs(seed, 4, 100, dtype=dtype) for seed in (1, 2, 3))
    expected_x = x + delta
    expected = F.rms_norm(expected_x, (100,), weight[0], EPS)
    assert torch.equal(reference.add_rms_norm(x, delta, weight[0], EPS), expected)
    assert torch.equal(x, expected_x)


def test_the_norm_sees_the_stream_as_it_is_stored() -> None:
    """The other order of rounding would change a good share of the results."""
    x, delta, weight = (inputs(seed, 8, 256, dtype=torch.bfloat16) for seed in (1, 2, 3))
    unrounded = F.rms_norm(x.float() + delta.float(), (256,), weight[0].float(), EPS).bfloat16()
    expected = reference.add_rms_norm(x.clone(), delta, weight[0], EPS)
    assert (unrounded != expected).float().mean() > 0.1
    assert (add_rms_norm(x, delta, weight[0], EPS) != expected).float().mean() < 0.01


def test_rows_do_not_meet_and_their_surroundings_stay() -> None:
    x = inputs(1, 3, 100, dtype=torch.float32)
    delta, weight = torch.zeros_like(x), torch.ones(100, device=DEVICE)
    delta[1] = torch.nan
    whole = x.as_strided((3, 116), (116, 1))
    out = add_rms_norm(x, delta, weight, EPS, NormLaunch(2))
    assert out.isnan().any(1).tolist() == [False, True, False]
    assert whole[:, 100:].isnan().all()
    assert out.isfinite()[[0, 2]].all()


def test_no_rows_and_wrong_inputs() -> None:
    weight = torch.ones(8, device=DEVICE)
    assert rms_norm(torch.empty(0, 8, device=DEVICE), weight, EPS).shape == (0, 8)
    with pytest.raises(ValueError, match="float64"):
        rms_norm(torch.ones(1, 8, dtype=torch.float64, device=DEVICE), weight, EPS)
    with pytest.raises(ValueError, match="adjacent"):
        rms_norm(torch.ones(8, 8, device=DEVICE).T, weight, EPS)
