"""Triton paged attention against the reference in fp64; interpreted where there is no GPU."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from specbench.kernels.paged_attention import reference
from specbench.kernels.paged_attention.reference import Collect
from tests.support.device import DEVICE
from tests.support.paged import Paged, head_major, interleaved, paged, randn
from tests.support.paged_kernels import (
    SCALE,
    assert_is_reference,
    assert_near,
    attend,
    attention,
    chunk,
    kernels,
    launching,
    lens,
    multiprocessors,
    on_device,
    small,
)

LENGTHS = (1, 15, 16, 17, 63, 100)
VERIFY = (1, 7, 3, 0, 5, 6)


@pytest.mark.parametrize(
    ("lengths", "q_lens", "group", "dim", "dtype"),
    [
        # each is a kernel to compile: other types where the rule or the tiles differ
        pytest.param(LENGTHS, (1, 1, 1, 1, 1, 1), 1, 16, torch.bfloat16, id="decode"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.bfloat16, id="verify"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.float16, id="verify, float16"),
        pytest.param(LENGTHS, VERIFY, 3, 16, torch.float32, id="verify, float32"),
        pytest.param((70, 33), (7, 2), 4, 128, torch.bfloat16, id="32/8 heads"),
        pytest.param((41, 129), (9, 9), 7, 64, torch.bfloat16, id="14/2 heads"),
        pytest.param((50, 64), (20, 17), 7, 80, torch.float16, id="tile sets"),
        pytest.param((50, 64), (20, 17), 7, 80, torch.float32, id="tile sets, float32"),
        pytest.param((5, 20), (5, 20), 2, 96, torch.bfloat16, id="prefill"),
    ],
)
def test_equals_the_reference_with_the_default_launch(
    lengths: tuple[int, ...],
    q_lens: tuple[int, ...],
    group: int,
    dim: int,
    dtype: torch.dtype,
) -> None:
    kv = on_device(paged(lengths, dim=dim, dtype=dtype))
    q = chunk(q_lens, 2 * group, dim, dtype)
    made = attention(q, kv, max_len=144)
    out, lse = attend(made, q, kv, lens(*lengths), lens(*q_lens))
    assert_is_reference(out, lse, q, kv, lens(*lengths), lens(*q_lens))


@pytest.mark.parametrize("merge_bytes", [0, 1 << 20], ids=["two kernels", "one kernel"])
@pytest.mark.parametrize("programs", [1, 2, 5, 13])
def test_any_number_of_programs_gives_the_same(programs: int, merge_bytes: int) -> None:
    """Also when one workspace serves calls of other lengths: its counters are back at zero."""
    kv = on_device(paged((1, 17, 100), dtype=torch.float32))
    q = chunk((1, 3, 2), 6, 8, torch.float32)
    made = attention(q, kv, launch=small(programs, merge_bytes))
    assert made.fused == (merge_bytes > 0)
    for kv_lens, q_lens in [((1, 17, 100), (1, 3, 2)), ((1, 8, 40), (1, 0, 2))]:
        out, lse = attend(made, q, kv, lens(*kv_lens), lens(*q_lens))
        assert_is_reference(out, lse, q, kv, lens(*kv_lens), lens(*q_lens))
        assert (made.arrived == 0).all()


@pytest.mark.parametrize("merge_bytes", [0, 1 << 20], ids=["two kernels", "one kernel"])
def test_programs_divide_any_lengths(merge_bytes: int) -> None:
    """Those too that leave most of the programs nothing."""
    kv = on_device(paged((2400, 17, 1), dtype=torch.float32))
    q = chunk((3, 1, 1), 6, 8, torch.float32)
    how = small(7, merge_bytes)
    made = attention(q, kv, max_len=2400, launch=how)
    assert made.programs == how.programs * multiprocessors(DEVICE)
    for kv_lens in ((2400, 17, 1), (500, 9, 0), (20, 1, 1)):
        q_lens = tuple(min(n, rows) for n, rows in zip(kv_lens, (3, 1, 1), strict=True))
        out, lse = attend(made, q, kv, lens(*kv_lens), lens(*q_lens))
        assert_is_reference(out, lse, q, kv, lens(*kv_lens), lens(*q_lens))
        assert (made.arrived == 0).all()


@pytest.mark.parametrize(
    ("partials", "merge_bytes"), [("keep", 0), ("discard", 0), ("discard", 1 << 20)]
)
def test_more_rows_than_a_tile_holds_are_split_too(partials: str, merge_bytes: int) -> None:
    """Partial results that were dropped are written anew by the next call."""
    kv = on_device(paged((100, 37), dim=32, dtype=torch.float32))
    q = chunk((9, 5), 14, 32, torch.float32)
    made = attention(q, kv, launch=small(7, merge_bytes, partials=partials))
    assert made.jobs == 4
    for _ in range(2):
        out, lse = attend(made, q, kv, lens(100, 37), lens(9, 5))
        assert_is_reference(out, lse, q, kv, lens(100, 37), lens(9, 5))


@pytest.mark.parametrize("partials", ["", "discard"])
@pytest.mark.parametrize("merge_bytes", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_partial_results_may_have_16_bits(
    dtype: torch.dtype, merge_bytes: int, partials: str
) -> None:
    kv = on_device(paged((100, 37), dim=64, dtype=dtype))
    q = chunk((9, 5), 14, 64, dtype)
    made = attention(q, kv, launch=small(7, merge_bytes, partials=partials, narrow=True))
    assert made.partial.dtype == torch.float16
    for _ in range(2):
        out, lse = attend(made, q, kv, lens(100, 37), lens(9, 5))
        assert_is_reference(out, lse, q, kv, lens(100, 37), lens(9, 5))


def test_a_workspace_serves_fewer_requests_and_rows() -> None:
    kv = on_device(paged((100, 37), dtype=torch.float32))
    q = chunk((9, 5), 14, 8, torch.float32)
    collect = Collect("weight", "all")
    made = attention(q, kv, launch=small(programs=7), collect=collect)
    few, lengths = q[:1, 2:5].contiguous(), (lens(98), lens(3))
    scores = torch.zeros(1, 2, 112, device=DEVICE)
    expected = scores.double()
    out, lse = attend(made, few, kv, *lengths, ranked=lens(96), scores=scores)
    assert_is_reference(out, lse, few, kv, *lengths)
    tail = kv.block_table, *lengths, lens(96), SCALE, collect
    reference.collect_scores(few.double(), kv.k_cache.double(), *tail, expected)
    assert_near(scores[..., :96], expected[..., :96], torch.float32)


@pytest.mark.parametrize("page_size", [1, 5, 32])
def test_page_size_is_read_from_the_cache(page_size: int) -> None:
    kv = on_device(paged((63, 17), dtype=torch.float32, page_size=page_size))
    q = chunk((4, 3), 4, 8, torch.float32)
    out, lse = attend(attention(q, kv, launch=small()), q, kv, lens(63, 17), lens(4, 3))
    assert_is_reference(out, lse, q, kv, lens(63, 17), lens(4, 3))


@pytest.mark.parametrize("layout", [interleaved, head_major])
def test_strided_caches_are_read_in_place(layout: Callable[[Paged], Paged]) -> None:
    kv = on_device(layout(paged((17, 33), dtype=torch.float16)))
    q = chunk((2, 3), 4, 8, torch.float16)
    # queries may be a slice of a wider projection
    wide = torch.cat([q, q], dim=2)[:, :, :4]
    out, lse = attend(attention(q, kv, launch=small()), wide, kv, lens(17, 33), lens(2, 3))
    assert_is_reference(out, lse, q, kv, lens(17, 33), lens(2, 3))


def test_entries_past_the_request_and_int32_tables() -> None:
    """Rejected drafts past `kv_lens` have no say; tables and lengths may be int32."""
    kv = on_device(paged((40, 40), dtype=torch.float32))
    q = chunk((2, 3), 4, 8, torch.float32)
    narrow = Paged(kv.k_cache, kv.v_cache, kv.block_table.int(), kv.keys, kv.values)
    lengths = lens(33, 17), lens(2, 3)
    out, lse = attend(attention(q, kv, launch=small()), q, narrow, *(x.int() for x in lengths))
    assert_is_reference(out, lse, q, kv, *lengths)


def test_large_logits_do_not_overflow() -> None:
    kv = on_device(paged((33,), kv_heads=1, dtype=torch.float32))
    q = chunk((1,), 1, 8, torch.float32) * 1e4
    out, lse = attend(attention(q, kv, launch=small()), q, kv, lens(33), lens(1))
    assert lse.isfinite().all()
    assert_is_reference(out, lse, q, kv, lens(33), lens(1))


@pytest.mark.parametrize("columns", [5, 16, 40])
def test_tree_mask(columns: int) -> None:
    """Whatever the mask hides of the last columns; one request is shorter than they are."""
    kv = on_device(paged((70, 21), dtype=torch.float32))
    q = chunk((5, 3), 6, 8, torch.float32)
    mask = randn(5, 2, 5, columns) > 0
    mask[:, :, -1] = True
    made = attention(q, kv, launch=small(programs=4))
    kv_lens, q_lens = lens(70, 21), lens(5, 3)
    out, lse = attend(made, q, kv, kv_lens, q_lens, tree_mask=mask.to(DEVICE))
    for row, (length, count) in enumerate([(70, 5), (21, 3)]):
        keys, values = (x[row].double().repeat_interleave(3, 1) for x in (kv.keys, kv.values))
        visible = torch.ones(count, length, dtype=torch.bool)
        last = min(columns, length)
        visible[:, length - last :] = mask[row, :count, columns - last :]
        logits = torch.einsum("mhd,nhd->mhn", q[row, :count].cpu().double(), keys) * SCALE
        logits = logits.masked_fill(~visible[:, None], -torch.inf)
        expected = torch.einsum("mhn,nhd->mhd", logits.softmax(-1), values)
        assert_near(out[row, :count].cpu(), expected, torch.float32)
        assert_near(lse[row, :count].cpu(), logits.logsumexp(-1), torch.float32)
        assert (out[row, count:] == 0).all()


def test_functions_have_the_signatures_and_results_of_the_reference() -> None:
    kv = on_device(paged((33, 5), dtype=torch.float32))
    q = chunk((3, 2), 4, 8, torch.float32)
    lengths = lens(33, 5), lens(3, 2)
    out = kernels.paged_attention(q, kv.k_cache, kv.v_cache, kv.block_table, *lengths, SCALE)
    lse = kernels.log_sum_exp(q, kv.k_cache, kv.block_table, *lengths, SCALE)
    assert_is_reference(out, lse, q, kv, *lengths)


@pytest.mark.parametrize("layout", [lambda kv: kv, interleaved, head_major])
def test_write_kv_stores_each_value_at_its_slot(layout: Callable[[Paged], Paged]) -> None:
    kv = on_device(layout(paged((60,), kv_heads=3, dim=10, dtype=torch.float16)))
    expected = kv.v_cache.clone()
    values = randn(3, 2, 3, 3, 10, dtype=torch.float16).to(DEVICE)
    slots = torch.tensor([[17, 64, -1], [-1, -1, 33]], device=DEVICE)
    reference.write_kv(expected, values, slots)
    kernels.write_kv(kv.v_cache, values, slots)
    # the reference leaves masked writes in page 0, the kernel nothing
    assert torch.equal(kv.v_cache[1:].nan_to_num(7), expected[1:].nan_to_num(7))
    assert kv.v_cache[0].isnan().all()


def test_caches_of_more_than_2_to_the_31_elements() -> None:
    """The last pages lie past what int32 can address; memory that nobody touches costs nothing."""
    pages = 2**31 // (2 * 16 * 16) + 8
    cache = torch.empty(pages, 2, 16, 1, 16, dtype=torch.float16, device=DEVICE)
    kv = paged((40,), kv_heads=1, dim=16, dtype=torch.float16)
    used = kv.block_table[0, :3]
    far = torch.arange(pages - 3, pages)
    cache[far.to(DEVICE)] = torch.stack([kv.k_cache, kv.v_cache], 1)[used].to(DEVICE)
    table = far[None].to(DEVICE)
    moved = Paged(cache[:, 0], cache[:, 1], table, kv.keys, kv.values)
    q = chunk((3,), 2, 16, torch.float16)
    out, lse = attend(attention(q, moved, launch=small()), q, moved, lens(40), lens(3))
    near = Paged(kv.k_cache.to(DEVICE), kv.v_cache.to(DEVICE), kv.block_table.to(DEVICE), [], [])
    assert_is_reference(out, lse, q, near, lens(40), lens(3))
    value = torch.ones(1, 1, 1, 16, dtype=torch.float16, device=DEVICE)
    kernels.write_kv(moved.v_cache, value, lens(int(far[2]) * 16 + 5)[None])
    assert (cache[-1, 1, 5] == 1).all()


def test_what_does_not_fit_is_refused() -> None:
    kv = on_device(paged((33,), dtype=torch.float32))
    q = chunk((3,), 4, 8, torch.float32)
    lengths = kv.block_table, lens(33), lens(3), SCALE
    made = attention(q, kv)
    with pytest.raises(ValueError, match="made for up to 1 requests of up to 3 rows"):
        made(torch.cat([q, q], 1), kv.k_cache, kv.v_cache, *lengths)
    with pytest.raises(ValueError, match="kv_lens"):
        made(q, kv.k_cache, kv.v_cache, kv.block_table, lens(33, 4), lens(3), SCALE)
    with pytest.raises(ValueError, match=r"cache \[6, 16, 2, 4\]"):
        made(q, kv.k_cache, kv.v_cache[..., :4], *lengths)
    with pytest.raises(ValueError, match="need `collect`"):
        made(q, kv.k_cache, kv.v_cache, *lengths, ranked=lens(9), scores=q.new_zeros(1, 2, 33))
    with pytest.raises(ValueError, match="no kernel for"):
        attention(q.double(), kv)


def test_the_table_goes_before_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = launching.default_launch(128, 28, torch.bfloat16, True)
    assert (rule.block_m, rule.block_n) == (32, 64)
    tuned = launching.Launch(64, 64)
    monkeypatch.setitem(launching.TUNED, (128, 32, True), tuned)
    assert launching.default_launch(128, 28, torch.bfloat16, True) is tuned
    assert launching.default_launch(128, 28, torch.bfloat16, False) == rule


@pytest.mark.gpu
def test_a_captured_call_follows_the_lengths() -> None:
    kv = on_device(paged((100, 63), dtype=torch.bfloat16))
    q = chunk((5, 5), 4, 8, torch.bfloat16)
    collect = Collect()
    made = attention(q, kv, collect=collect)
    kv_lens, q_lens, ranked = lens(100, 63), lens(5, 5), lens(96, 59)
    scores = torch.zeros(2, 2, 112, device=DEVICE)

    def call() -> Tensor:
        return made(
            q, kv.k_cache, kv.v_cache, kv.block_table, kv_lens, q_lens, SCALE,
            ranked=ranked, scores=scores,
        )  # fmt: skip

    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    for length, short in [(100, 63), (20, 40), (64, 1)]:
        kv_lens.copy_(lens(length, short))
        q_lens.copy_(lens(5, min(5, short)))
        ranked.copy_(kv_lens - q_lens + 1)
        graph.replay()
        replayed, found = out.clone(), scores.clone()
        assert torch.equal(call(), replayed)
        assert torch.equal(scores, found)
