"""The LM head's arg-max against torch and the engine's own decisions."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.sampling import argmax, invalid
from specbench.kernels.head import reference
from tests.support.buffers import DEVICE, KERNEL_DTYPES, inputs, poison_empty

pytest.importorskip("triton")
from specbench.kernels.head.triton import SCRATCH_TILES, HeadLaunch, head_argmax
from specbench.kernels.launch import Scratch
from specbench.kernels.norm.triton import prenorm

# numpy, which the interpreter computes with, warns of infinities
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in:RuntimeWarning")
EPS = 0.5
NAN, INF = torch.nan, torch.inf
SHAPES = [(1, 896, 130), (3, 100, 1000), (17, 64, 5)]
LAUNCHES = [None, HeadLaunch(16, 32, 3, False)]


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def whole(seed: int, bound: int, rows: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Random whole numbers in a buffer that is NaN around them: their sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(-bound, bound + 1, (rows, columns), generator=generator)
    return inputs(0, rows, columns, dtype=dtype).copy_(numbers)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("launch", LAUNCHES, ids=["table", "odd"])
@pytest.mark.parametrize(("rows", "inner", "vocab"), SHAPES)
def test_equals_the_reference_ties_included(
    rows: int, inner: int, vocab: int, launch: HeadLaunch | None, dtype: torch.dtype
) -> None:
    hidden, weight = whole(1, 1, rows, inner, dtype), whole(2, 2, vocab, inner, dtype)
    logits = F.linear(hidden, weight)
    token, bad = head_argmax(hidden, weight, launch=launch)
    assert torch.equal(token, argmax(logits))
    assert torch.equal(bad, invalid(logits))
    if (rows, vocab) == (3, 1000):
        assert ((logits == logits.amax(-1, keepdim=True)).sum(-1) > 1).any()


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("rows", "inner", "vocab"), SHAPES)
def test_the_folded_norm_chooses_a_best_token(
    rows: int, inner: int, vocab: int, dtype: torch.dtype
) -> None:
    hidden = inputs(1, rows, inner, dtype=dtype, scale=7)
    weight = inputs(2, vocab, inner, dtype=dtype, scale=inner**-0.5)
    norm = inputs(3, inner, dtype=dtype)
    begun = prenorm(hidden, norm)
    token, bad = head_argmax(begun, weight, eps=EPS)
    expected, _ = reference.head_argmax(begun, weight, eps=EPS)
    assert not bad.any()
    exact = F.rms_norm(hidden.double(), (inner,), norm.double(), EPS) @ weight.double().T
    # another token only where the two are a rounding of their sums apart
    mine, theirs = (exact.gather(1, t[:, None]) for t in (token, expected))
    assert ((mine - theirs).abs() <= 8 * torch.finfo(dtype).eps).all()


@pytest.mark.parametrize(
    ("logits", "token", "bad"),
    [
        ([1.0, 5.0, 5.0, 2.0], 1, False),
        ([-0.0, 0.0, -1.0], 0, False),
        ([0.0, -0.0], 0, False),
        ([-3.0, -1.0, -2.0, -1.0], 1, False),
        ([-INF, -7.0, -INF], 1, False),
        ([-INF, -INF, -INF], 0, True),
        ([0.0, INF, 1.0, INF], 1, True),
        ([0.0, NAN, INF, NAN], 1, True),
        ([NAN, 1.0], 0, True),
        ([0.0, -NAN, NAN], 1, True),
        ([-3.3e38, -3.38e38], 0, False),
        ([1.0, 3.38e38], 1, False),
        ([1e-30, 2e-30, -1e-30], 1, False),
        ([-1e-30, -2e-30, -1e30], 0, False),
    ],
)
@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
def test_order_of_single_logits(
    logits: list[float], token: int, bad: bool, dtype: torch.dtype
) -> None:
    weight = torch.tensor(logits, dtype=dtype, device=DEVICE)[:, None]
    hidden = torch.ones(1, 1, dtype=dtype, device=DEVICE)
    found, flagged = head_argmax(hidden, weight)
    expected, expected_bad = reference.head_argmax(hidden, weight)
    assert (int(found), bool(flagged)) == (token, bad)
    assert (int(expected), bool(expected_bad)) == (token, bad)
    assert found.dtype == torch.int64
    assert flagged.dtype == torch.bool


def test_ties_across_tiles_and_programs_go_to_the_lowest_id() -> None:
    """A best token in every tile."""
    weight = torch.zeros(500, 16, device=DEVICE)
    for first in (3, 100, 499):
        weight[first::16] = 1
        hidden = torch.ones(2, 16, device=DEVICE)
        token, _ = head_argmax(hidden, weight, launch=HeadLaunch(16, 16, 7))
        assert token.tolist() == [first, first]
        weight.zero_()


def test_half_types_compare_what_the_model_rounds() -> None:
    """1 and 1 + 2^-9 are the same logit in bfloat16."""
    weight = torch.tensor([[1.0, 0.0], [1.0, 2.0**-9]], device=DEVICE)
    hidden = torch.ones(1, 2, device=DEVICE)
    assert int(head_argmax(hidden, weight)[0]) == 1
    assert int(head_argmax(hidden.bfloat16(), weight.bfloat16())[0]) == 0


def test_a_negative_zero_equals_a_positive_one() -> None:
    """A product too small for bfloat16."""
    hidden = torch.tensor([[1e-30]], dtype=torch.bfloat16, device=DEVICE)
    weight = torch.tensor([[-1e-12], [0.0]], dtype=torch.bfloat16, device=DEVICE)
    assert int(head_argmax(hidden, weight)[0]) == 0


def test_a_bad_row_stays_alone_and_scratch_is_left_clean() -> None:
    hidden, weight = whole(1, 1, 3, 64, torch.float32), whole(2, 2, 100, 64, torch.float32)
    expected = argmax(F.linear(hidden, weight))
    hidden[1, 7] = NAN
    scratch = Scratch.make(DEVICE, 0, SCRATCH_TILES)
    for _ in range(2):
        token, bad = head_argmax(hidden, weight, launch=HeadLaunch(16, 16, 4), scratch=scratch)
        assert bad.tolist() == [False, True, False]
        assert token[1] == 0
        assert torch.equal(token[::2], expected[::2])
        assert (scratch.counters == 0).all()
    with pytest.raises(ValueError, match="needs scratch"):
        head_argmax(hidden, weight, scratch=Scratch.make(DEVICE, 0, 8))


def test_reference_is_the_engines_code() -> None:
    hidden, weight = inputs(1, 4, 32, dtype=torch.bfloat16), inputs(2, 9, 32, dtype=torch.bfloat16)
    logits = F.linear(hidden, weight).float()
    token, bad = reference.head_argmax(hidden, weight)
    assert torch.equal(token, argmax(logits))
    assert torch.equal(bad, invalid(logits))
