"""Bias, head norm, RoPE and the KV write in one launch, against torch and the model's own code."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.engine.rope import build_rope
from specbench.kernels.qkv import reference
from tests.support.buffers import (
    DEVICE,
    KERNEL_DTYPES,
    TOLERANCE,
    as_accurate,
    inputs,
    poison_empty,
)
from tests.support.paged import Paged, head_major, interleaved
from tests.support.tiny import tiny_config, tiny_model

pytest.importorskip("triton")
from specbench.kernels.launch import Scratch
from specbench.kernels.linear.plan import LinearLaunch
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.norm.triton import prenorm
from specbench.kernels.qkv.project import by_heads, choose, project_rope_write_kv
from specbench.kernels.qkv.triton import RopeLaunch, rope_write_kv

EPS = 0.5
MAX_LEN = 50


@pytest.fixture(autouse=True)
def _poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    poison_empty(monkeypatch)


def tables(dim: int) -> tuple[Tensor, Tensor]:
    cos, sin = build_rope(tiny_config(head_dim=dim), MAX_LEN, DEVICE)
    sin[:, : dim // 2].neg_()
    return cos, sin


def caches(pages: int, page_size: int, kv_heads: int, dim: int, dtype: torch.dtype) -> Paged:
    shape = pages, page_size, kv_heads, dim
    nan = torch.full(shape, torch.nan, dtype=dtype, device=DEVICE)
    return Paged(nan, nan.clone(), torch.empty(0), [], [])


def huge(shape: tuple[int, ...], stride: tuple[int, ...]) -> Tensor:
    """Uninitialised memory; `torch.empty` would write NaN to all of it."""
    try:
        return torch.empty_strided(shape, stride, dtype=torch.bfloat16, device=DEVICE)
    except RuntimeError:
        pytest.skip("not enough memory for 4 GiB")


def places(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions, and distinct slots outside page 0 of which every third is -1."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.randint(MAX_LEN, (rows,), generator=generator)
    slots = torch.randperm(rows, generator=generator) + 5
    slots[1::3] = -1
    return positions.to(DEVICE), slots.to(DEVICE)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Equal, NaN where NaN; page 0, which takes the reference's masked writes, aside."""
    relative, absolute = TOLERANCE[expected.dtype]
    torch.testing.assert_close(actual, expected, rtol=relative, atol=absolute, equal_nan=True)


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize(("bias", "norm"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim"), [(1, 14, 2, 64), (3, 4, 4, 80), (17, 3, 1, 128)]
)
def test_equals_the_reference(
    rows: int, heads: int, kv_heads: int, dim: int, bias: bool, norm: bool, dtype: torch.dtype
) -> None:
    width = (heads + 2 * kv_heads) * dim
    qkv = inputs(1, rows, width, dtype=dtype)
    b = inputs(2, width, dtype=dtype) if bias else None
    w = inputs(3, (heads + kv_heads) * dim, dtype=dtype).view(-1, dim) if norm else None
    positions, slots = places(rows)
    mine, theirs = (caches(8, 5, kv_heads, dim, dtype) for _ in range(2))
    common = b, w, *tables(dim), positions, slots
    q = rope_write_kv(qkv, *common, mine.k_cache, mine.v_cache, EPS)
    expected = reference.rope_write_kv(qkv, *common, theirs.k_cache, theirs.v_cache, EPS)
    assert_same(q, expected)
    for actual, reference_cache in (
        (mine.k_cache, theirs.k_cache),
        (mine.v_cache, theirs.v_cache),
    ):
        assert_same(actual[1:], reference_cache[1:])
        assert int(actual[1:].isnan().all(-1).all(-1).sum()) == 35 - int((slots >= 0).sum())
        assert actual[0].isnan().all()


@pytest.mark.parametrize("dtype", KERNEL_DTYPES)
@pytest.mark.parametrize("cut", ["one", "three", "held", "streamed"])
@pytest.mark.parametrize(
    ("rows", "heads", "kv_heads", "dim", "features"),
    [
        (1, 3, 1, 64, "bias"),
        (3, 2, 2, 80, "qk_norm"),
        (17, 2, 1, 128, "plain"),
        (3, 4, 1, 32, "bias, norm"),
        (2, 4, 1, 24, "bias, norm, qk_norm"),
        (35, 2, 1, 24, "bias, norm"),
    ],
)
def test_with_the_projection_in_front(
    rows: int, heads: int, kv_heads: int, dim: int, features: str, cut: str, dtype: torch.dtype
) -> None:
    """By heads, whose K is split over programs or not, and by halves that stay in a program."""
    hidden, width = 100, (heads + 2 * kv_heads) * dim
    head = 1 << (dim - 1).bit_length()
    launch = {
        "one": LinearLaunch(head, 16, 1),
        "three": LinearLaunch(head, 16, 3),
        "held": LinearLaunch(32, 128, 1, 2, over_k=True),
        "streamed": LinearLaunch(16, 32, 1, 2, over_k=True),
    }[cut]
    x = inputs(1, rows, hidden, dtype=dtype, scale=3)
    weight = inputs(2, width, hidden, dtype=dtype, scale=hidden**-0.5)
    bias = inputs(3, width, dtype=dtype) if "bias" in features else None
    norm = inputs(4, hidden, dtype=dtype) if features.endswith("norm") else None
    qk_norm = None
    if "qk_norm" in features and not launch.over_k:
        qk_norm = inputs(5, (heads + kv_heads) * dim, dtype=dtype).view(-1, dim)
    positions, slots = places(rows)
    mine, theirs, exact = (caches(9, 5, kv_heads, dim, d) for d in (dtype, dtype, torch.float64))
    common = *tables(dim), positions, slots
    weights = weight, bias, qk_norm
    wide: Tensor | Prenormed = x.double()
    if norm is not None:
        x = prenorm(x, norm)
        wide = Prenormed(x.rows.double(), x.squares.double())
    q = project_rope_write_kv(
        x, *weights, *common, mine.k_cache, mine.v_cache, EPS, launch=launch, settled=dim != 64
    )
    expected = reference.project_rope_write_kv(
        x, *weights, *common, theirs.k_cache, theirs.v_cache, EPS
    )
    doubles = (None if w is None else w.double() for w in weights)
    truth = reference.project_rope_write_kv(
        wide, *doubles, *common, exact.k_cache, exact.v_cache, EPS
    )
    as_accurate(q, expected, truth, hidden)
    kept = slots[slots >= 0]
    for cache in ("k_cache", "v_cache"):
        found, rounded, true = (getattr(kv, cache).flatten(0, 1) for kv in (mine, theirs, exact))
        as_accurate(found[kept], rounded[kept], true[kept], hidden)
        assert int(found.isfinite().all(-1).all(-1).sum()) == len(kept)


@pytest.mark.parametrize("settled", [False, True])
def test_halves_are_written_in_place_where_caches_are_strided(settled: bool) -> None:
    plain = caches(8, 4, 2, 8, torch.float32)
    keys, values = interleaved(plain).k_cache, head_major(plain).v_cache
    x, weight = inputs(1, 9, 32, dtype=torch.float32), inputs(2, 64, 32, dtype=torch.float32)
    common = x, weight, None, None, *tables(8), *places(9)
    launch = LinearLaunch(16, 128, 1, 1, over_k=True)
    q = project_rope_write_kv(*common, keys, values, EPS, launch, settled=settled)
    expected = project_rope_write_kv(
        *common, plain.k_cache, plain.v_cache, EPS, LinearLaunch(8, 32)
    )
    assert_same(q, expected)
    assert_same(keys, plain.k_cache)
    assert_same(values, plain.v_cache)


def test_a_bad_row_of_halves_stays_alone() -> None:
    kv = caches(8, 4, 2, 8, torch.float32)
    x, weight = inputs(1, 3, 32, dtype=torch.float32), inputs(2, 64, 32, dtype=torch.float32)
    x[1, 7] = torch.nan
    slots = torch.tensor([4, -1, 6], device=DEVICE)
    common = None, None, *tables(8), places(3)[0], slots, kv.k_cache, kv.v_cache, EPS
    q = project_rope_write_kv(x, weight, *common)
    assert q.isnan().flatten(1).any(1).tolist() == [False, True, False]
    written = kv.k_cache.isfinite().flatten(2).all(2)
    assert written.nonzero().tolist() == [[1, 0], [1, 2]]


def test_the_table_tiles_halves_of_heads_without_a_norm() -> None:
    assert choose(1, 18, 64, 896, 132) == LinearLaunch(16, 1024, 1, 8, over_k=True)
    assert choose(64, 18, 64, 896, 132) == LinearLaunch(16, 256, 1, 4, 4, over_k=True)
    by_head = choose(1, 18, 64, 896, 132, True)
    assert by_head == by_heads(1, 18, 64, 896, 132) == LinearLaunch(64, 256, 4, 2, 3)
    assert not choose(1, 48, 128, 4096, 132).over_k


def test_projection_with_shared_scratch() -> None:
    kv = caches(2, 4, 1, 8, torch.float32)
    x, weight = inputs(1, 2, 32, dtype=torch.float32), inputs(2, 48, 32, dtype=torch.float32)
    norm = torch.ones(5, 8, device=DEVICE)
    common = None, norm, *tables(8), *places(2), kv.k_cache, kv.v_cache, EPS
    scratch = Scratch.make(DEVICE, 2000, 6)
    scratch.partial.fill_(torch.nan)
    first = project_rope_write_kv(x, weight, *common, scratch=scratch)
    assert (scratch.counters == 0).all()
    assert torch.equal(project_rope_write_kv(x, weight, *common, scratch=scratch), first)
    with pytest.raises(ValueError, match="one head of 8"):
        project_rope_write_kv(x, weight, *common, launch=LinearLaunch(16, 32))
    with pytest.raises(ValueError, match="needs scratch"):
        project_rope_write_kv(x, weight, *common, scratch=Scratch.make(DEVICE, 9, 9))
    halves, split = LinearLaunch(16, 64, over_k=True), LinearLaunch(16, 64, 2, over_k=True)
    with pytest.raises(ValueError, match="does not hold the head"):
        project_rope_write_kv(x, weight, *common, launch=halves)
    with pytest.raises(ValueError, match="splits is 2"):
        project_rope_write_kv(x, weight, None, None, *common[2:], launch=split)


@pytest.mark.parametrize("launch", [RopeLaunch(2, 1), RopeLaunch(16, 4)])
@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_strided_caches_are_written_in_place(
    layout: Callable[[Paged], Paged], launch: RopeLaunch
) -> None:
    kv = layout(caches(8, 4, 2, 8, torch.float32))
    plain = caches(8, 4, 2, 8, torch.float32)
    qkv = inputs(1, 9, 64, dtype=torch.float32)
    common = None, None, *tables(8), *places(9)
    q = rope_write_kv(qkv, *common, kv.k_cache, kv.v_cache, EPS, launch)
    assert_same(q, rope_write_kv(qkv, *common, plain.k_cache, plain.v_cache, EPS))
    assert_same(kv.k_cache, plain.k_cache)
    assert_same(kv.v_cache, plain.v_cache)


def test_a_row_without_a_slot_leaves_the_caches_alone() -> None:
    kv = caches(2, 4, 2, 8, torch.float32)
    slots = torch.full((3,), -1, device=DEVICE)
    positions = torch.zeros(3, dtype=torch.int64, device=DEVICE)
    qkv = torch.full((3, 64), 7.0, device=DEVICE)
    rope_write_kv(qkv, None, None, *tables(8), positions, slots, kv.k_cache, kv.v_cache, EPS)
    assert kv.k_cache.isnan().all()
    assert kv.v_cache.isnan().all()


def test_a_bad_row_stays_alone() -> None:
    kv = caches(8, 4, 2, 8, torch.float32)
    qkv = inputs(1, 3, 64, dtype=torch.float32)
    qkv[1] = torch.nan
    positions, _ = places(3)
    slots = torch.tensor([4, 5, 6], device=DEVICE)
    launch = RopeLaunch(4, 1)
    common = None, torch.ones(6, 8, device=DEVICE), *tables(8), positions, slots
    q = rope_write_kv(qkv, *common, kv.k_cache, kv.v_cache, EPS, launch)
    assert q.isnan().flatten(1).any(1).tolist() == [False, True, False]
    assert kv.k_cache[1, :3].isnan().flatten(1).any(1).tolist() == [False, True, False]


def test_keys_and_values_have_strides_of_their_own() -> None:
    plain = caches(8, 4, 2, 8, torch.float32)
    keys, values = interleaved(plain).k_cache, head_major(plain).v_cache
    qkv = inputs(1, 9, 64, dtype=torch.float32)
    common = None, None, *tables(8), *places(9)
    rope_write_kv(qkv, *common, keys, values, EPS)
    rope_write_kv(qkv, *common, plain.k_cache, plain.v_cache, EPS)
    assert_same(keys, plain.k_cache)
    assert_same(values, plain.v_cache)


def test_addresses_beyond_two_to_the_31() -> None:
    """The last page of caches of more elements than an int32 can count, and rows as far apart."""
    pages = 2**25 + 1
    # memory that nothing touches costs nothing on a CPU
    keys, values = (huge((pages, 4, 1, 16), (64, 16, 16, 1)) for _ in range(2))
    qkv = huge((2, 48), (2**31 + 64, 1)).copy_(inputs(1, 2, 48, dtype=torch.bfloat16))
    positions = torch.tensor([3, 4], device=DEVICE)
    slots = torch.tensor([0, 3], device=DEVICE) + (pages - 1) * 4
    common = None, None, *tables(16), positions, slots
    q = rope_write_kv(qkv, *common, keys, values, EPS)
    expected = caches(2, 4, 1, 16, torch.bfloat16)
    common = None, None, *tables(16), positions, slots % 4 + 4
    assert_same(q, reference.rope_write_kv(qkv, *common, expected.k_cache, expected.v_cache, EPS))
    for offset in (0, 3):
        assert_same(keys[-1, offset], expected.k_cache[1, offset])
        assert_same(values[-1, offset], expected.v_cache[1, offset])


@pytest.mark.parametrize("changes", [{}, {"qkv_bias": True}, {"qk_norm": True}])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_reference_is_the_models_code(dtype: torch.dtype, changes: dict[str, bool]) -> None:
    """What the model hands to attention is what the reference computes from its projection."""
    model = tiny_model(3, dtype, num_layers=1, **changes)
    layer, config = model.layers[0], model.config
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    positions = torch.tensor([[7, 8, 9, 30, 2]])
    seen = {}

    def attention(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.update(q=q[0], k=k[0], v=v[0])
        return q

    model(tokens, positions, attention)
    x = torch.nn.functional.embedding(tokens[0], model.embed)
    h = torch.nn.functional.rms_norm(x, (32,), layer.attn_norm, config.rms_norm_eps)
    projected = torch.nn.functional.linear(h, layer.qkv, layer.qkv_bias)
    k_cache, v_cache = (torch.zeros(2, 8, 2, 8, dtype=dtype) for _ in range(2))
    q = reference.rope_write_kv(
        projected,
        None,
        layer.qk_norm,
        model.cos,
        model.signed_sin,
        positions[0],
        torch.arange(8, 13),
        k_cache,
        v_cache,
        config.rms_norm_eps,
    )
    assert torch.equal(q, seen["q"])
    assert torch.equal(k_cache[1, :5], seen["k"])
    assert torch.equal(v_cache[1, :5], seen["v"])


def test_wrong_inputs() -> None:
    kv = caches(2, 4, 1, 8, torch.float64)
    qkv = torch.zeros(1, 24, dtype=torch.float64, device=DEVICE)
    common = None, None, *tables(8), *places(1)
    with pytest.raises(ValueError, match="float64"):
        rope_write_kv(qkv, *common, kv.k_cache, kv.v_cache, EPS)
    with pytest.raises(ValueError, match="adjacent"):
        rope_write_kv(qkv.float().expand(24, 24).T, *common, kv.k_cache, kv.v_cache, EPS)
