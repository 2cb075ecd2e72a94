"""Paged attention on a GPU, with the memory that its kernels share."""

import torch
from torch import Tensor

from specbench.kernels.launch import dependent, multiprocessors, to_fetch
from specbench.kernels.paged_attention.collecting import MAX_VOTERS, Collecting, prepare
from specbench.kernels.paged_attention.launch import (
    Launch,
    default_launch,
    power_of_2,
)
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.paged_attention.triton_attend import attend_kernel
from specbench.kernels.paged_attention.triton_split import merge_kernel

MAX_COLUMNS = 512
# rows of a tensor core's result that each thread has one of: the least whose weights can be summed
FRONT = 8


class PagedAttention:
    """Paged attention and the memory that its kernels share: made once, called layer after layer.

    A call launches one to three kernels, whose grids depend on shapes and on the constructor's
    arguments alone, so that it can be captured in a CUDA graph. Calls take turns with the
    workspace: one stream at a time.

    Parameters
    ----------
    rows, queries : int
        Most requests and most query rows of a call, R and Q.
    heads, kv_heads, head_dim : int
        H, Hkv and D.
    max_len : int
        Longest context of a request.
    dtype : torch.dtype
        float16, bfloat16 or float32, of queries and caches.
    device : torch.device or str
    collect : Collect, optional
        What calls with `scores` collect.
    one_pass : bool
        Collect weights within the pass, under normalisers that each call brings (`norm`): an
        approximation. Otherwise weights are exact, and cost more memory and time.
    launch : Launch, optional
        Instead of `default_launch`.

    Raises
    ------
    ValueError
        A type, shape or collection that the kernels cannot do.
    """

    def __init__(
        self,
        rows: int,
        queries: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        max_len: int,
        dtype: torch.dtype,
        device: torch.device | str,
        collect: Collect | None = None,
        one_pass: bool = False,
        launch: Launch | None = None,
    ) -> None:
        if dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise ValueError(f"no kernel for {dtype}: use float16, bfloat16 or float32")
        if heads % kv_heads:
            raise ValueError(f"{heads} query heads do not divide into {kv_heads} groups")
        self.shape = rows, queries, heads, head_dim
        self.kv_heads, self.group = kv_heads, heads // kv_heads
        self.dtype, self.collect = dtype, collect
        packed = queries * self.group
        if launch is None:
            keys = rows * kv_heads * max_len // multiprocessors(device)
            every = collect is not None and collect.queries == "all"
            launch = default_launch(head_dim, packed, dtype, collect is not None, keys, every)
        self.launch = launch
        self.padded_d = max(16, power_of_2(head_dim))
        self.tile_rows = min(launch.block_m, packed)
        self.jobs = kv_heads * -(-packed // launch.block_m)
        shares = -(-max_len // (launch.block_n * launch.min_tiles))
        self.programs = min(rows * self.jobs * shares, multiprocessors(device) * launch.programs)
        # a job's share of the programs, and one that it has in common with its neighbour
        parts = -(-self.programs // (rows * self.jobs)) + 1
        self.fused = 4 * parts * self.tile_rows * self.padded_d <= launch.merge_bytes
        # rows of a program that merges: as few as make no more than a few waves
        waves = self.tile_rows * rows * self.jobs // (4 * multiprocessors(device))
        self.merged_rows = min(power_of_2(max(1, waves)), power_of_2(self.tile_rows))
        # of the first and the last job of each program, which may be others' too
        partials = 2 * self.programs, launch.block_m
        narrow = launch.narrow and dtype.itemsize == 2
        kind = torch.float16 if narrow else torch.float32
        self.partial = torch.empty(*partials, self.padded_d, dtype=kind, device=device)
        self.partial_lse = torch.empty(partials, device=device)
        self.arrived = torch.zeros(rows * self.jobs, dtype=torch.int32, device=device)
        self.collecting = Collecting()
        if collect is not None:
            self.collecting = prepare(
                collect, one_pass, self.shape, kv_heads, max_len, dtype, device, launch
            )

    @property
    def workspace_bytes(self) -> int:
        """Bytes that this object holds on the device."""
        own = [self.partial, self.partial_lse, self.arrived]
        return sum(x.nbytes for x in own + self.collecting.tensors)

    def __call__(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor | None,
        block_table: Tensor,
        kv_lens: Tensor,
        q_lens: Tensor,
        scale: float,
        *,
        out: Tensor | None = None,
        lse: Tensor | None = None,
        tree_mask: Tensor | None = None,
        ranked: Tensor | None = None,
        scores: Tensor | None = None,
        norm: Tensor | None = None,
        ahead: Tensor | None = None,
    ) -> Tensor:
        """Attention of each request's last rows over its paged KV, as the reference has it.

        Parameters
        ----------
        q, k_cache, v_cache, block_table, kv_lens, q_lens, scale
            As for `reference.paged_attention`; `scale` is positive. Without values the output is
            zeros: for scores and log-sum-exps alone.
        out : Tensor, optional
            `[R, Q, H, D]`, written and returned.
        lse : Tensor, optional
            float32 `[R, Q, H]`, written: natural log-sum-exp of the scaled logits, -inf on padding.
        tree_mask : Tensor, optional
            bool `[R, Q, C]`, C up to 512: which of the last C entries a row sees, in place of
            causal order. All rows see what lies before them.
        ranked, scores : Tensor, optional
            `[R]` and float32 `[R, S, L]`, written: as for `reference.collect_scores`, but entries
            at or past ``ranked[r]`` are left as they were.
        norm : Tensor, optional
            float32 `[R, c, H]`, for `one_pass` weights of c collected rows (2, 1 or Q): their
            normalisers, finite; replaced by this call's log-sum-exp. A single row of a request
            is both its first and its last.
        ahead : Tensor, optional
            A weight that is read soon; see `to_fetch`.

        Returns
        -------
        Tensor
            `[R, Q, H, D]`.

        Raises
        ------
        ValueError
            Arguments that do not fit the constructor's.
        """
        lengths = {"kv_lens": kv_lens, "q_lens": q_lens}
        if ranked is not None:
            lengths["ranked"] = ranked
        valued = v_cache is not None
        v_cache = k_cache if v_cache is None else v_cache
        check(self, q, k_cache, v_cache, lengths, tree_mask, scores, norm)
        kept = Collecting() if scores is None else self.collecting
        if out is None:
            out = torch.empty_like(q)
        if lse is None:
            lse = kept.lse
        voted = None
        if kept.votes:
            voted = scores if kept.head_scores is None else kept.head_scores
        rows, queries, _, head_dim = q.shape
        launch = self.launch
        slots = kept.rows * self.group
        tiles = -(-queries * self.group // launch.block_m)
        summed = launch.votes == "weights" or tiles > 1 or slots > MAX_VOTERS
        weighed = kept.normed and summed
        probed = kept.votes and not weighed
        front = weighed and slots <= FRONT < launch.block_m and tiles == 1
        options = dependent(True, q.device)
        whole_lines = self.padded_d * self.partial.itemsize >= 128
        merge_m = power_of_2(self.tile_rows) if self.fused else self.merged_rows
        both = {
            "QUERIES": queries,
            "KV_HEADS": self.kv_heads,
            "GROUP": self.group,
            "HEAD_DIM": head_dim,
            "WHICH": kept.which,
            "FRONT": FRONT if front else 0,
            "PADDED_R": power_of_2(rows),
            "PADDED_D": self.padded_d,
            "BLOCK_M": launch.block_m,
            "BLOCK_N": launch.block_n,
            "MIN_TILES": launch.min_tiles,
            "MERGE_M": merge_m,
            # a step of merging loads what an eighth of the registers holds
            "MERGE_S": min(32, max(1, 1024 * launch.warps // (merge_m * self.padded_d))),
            # whole lines of L2, and not where the kernels are interpreted
            "DISCARD": launch.partials == "discard" and whole_lines and options["PDL"],
            "num_warps": launch.warps,
            **options,
        }
        # each entry of a tree's mask has an address, of two registers
        narrow = tree_mask is not None and scores is None and launch.block_m >= 64
        edge = min(launch.block_n, 8192 // (2 * self.padded_d)) if narrow else launch.block_n
        following, parts = to_fetch(ahead, q.device)
        attend_kernel[(self.programs,)](
            q,
            k_cache,
            v_cache,
            block_table,
            kv_lens,
            q_lens,
            None if tree_mask is None else tree_mask.view(torch.uint8),
            ranked,
            voted,
            norm,
            kept.weights,
            kept.peaks,
            out,
            lse,
            self.partial,
            self.partial_lse,
            self.arrived,
            following,
            scale,
            rows,
            q.stride(),
            block_table.stride(),
            _stride(tree_mask),
            _stride(voted),
            _stride(norm),
            _stride(kept.weights),
            _stride(kept.peaks),
            out.stride(),
            _stride(lse),
            K_STRIDE=k_cache.stride(),
            V_STRIDE=v_cache.stride(),
            PAGE_SIZE=k_cache.shape[1],
            COLUMNS=0 if tree_mask is None else tree_mask.shape[2],
            COLLECT=kept.mode,
            PROBED=probed,
            # the same kernel for all launches that differ in what it does not do
            TURNED=probed and launch.votes == "turned",
            HOLD=launch.hold if kept.votes else 1,
            STORE=launch.store if kept.votes else "",
            VALUES=valued,
            SLOTS=slots,
            EDGE_N=max(16, edge),
            BLOCK_C=max(16, power_of_2(slots)) if kept.normed else 16,
            FUSED=self.fused,
            EVICT="evict_last" if launch.partials == "keep" else "",
            PARTS=parts,
            num_stages=launch.stages,
            **both,
        )
        if not self.fused:
            merge_kernel[(-(-self.tile_rows // merge_m), rows * self.jobs)](
                kv_lens,
                q_lens,
                out,
                lse,
                norm,
                self.partial,
                self.partial_lse,
                rows,
                self.programs,
                out.stride(),
                _stride(lse),
                _stride(norm),
                **both,
            )
        if scores is not None and ranked is not None:
            sizes = self.kv_heads, self.group, tiles if kept.normed else 1
            kept.finish(q_lens, ranked, scores, lse, *sizes, launch)
        return out


def check(
    attention: PagedAttention,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: dict[str, Tensor],
    tree_mask: Tensor | None,
    scores: Tensor | None,
    norm: Tensor | None,
) -> None:
    """Raise ValueError for arguments that the kernels would read or write astray."""
    most_rows, most_queries, heads, head_dim = attention.shape
    kv_heads, dtype, collect = attention.kv_heads, attention.dtype, attention.collect
    rows, queries = q.shape[:2]
    if rows > most_rows or queries > most_queries or q.shape[2:] != (heads, head_dim):
        raise ValueError(
            f"queries {list(q.shape)}: made for up to {most_rows} requests of up to "
            f"{most_queries} rows, [R, Q, {heads}, {head_dim}]"
        )
    for cache in (k_cache, v_cache):
        if q.dtype != dtype or cache.dtype != dtype:
            raise ValueError(f"queries {q.dtype}, cache {cache.dtype}: made for {dtype}")
        if cache.shape[1:] != (k_cache.shape[1], kv_heads, head_dim):
            raise ValueError(
                f"cache {list(cache.shape)}: expected [pages, page_size, {kv_heads}, {head_dim}], "
                "with one page_size for keys and values"
            )
    for name, length in lengths.items():
        if length.shape != (rows,) or not length.is_contiguous():
            raise ValueError(f"{name} {list(length.shape)}: expected [{rows}], contiguous")
    if tree_mask is not None and (
        tree_mask.dtype != torch.bool
        or tree_mask.shape[:2] != (rows, queries)
        or not 0 < tree_mask.shape[2] <= MAX_COLUMNS
    ):
        raise ValueError(
            f"tree mask {tree_mask.dtype} {list(tree_mask.shape)}: expected torch.bool "
            f"[{rows}, {queries}, 1 to {MAX_COLUMNS}]"
        )
    normed = scores is not None and attention.collecting.normed
    expected = (rows, attention.collecting.rows, heads) if normed else None
    given = None if norm is None else tuple(norm.shape)
    if given != expected:
        raise ValueError(f"norm {given}: expected {expected} (of `one_pass` weights, with scores)")
    if scores is None:
        return
    if collect is None or "ranked" not in lengths:
        raise ValueError("scores need `collect` in the constructor and `ranked` in the call")
    sets = kv_heads if collect.share == "head" else 1
    if scores.shape[:2] != (rows, sets) or scores.stride(2) != 1:
        raise ValueError(
            f"scores {list(scores.shape)}: expected [{rows}, {sets}, L], contiguous along L"
        )


def _stride(tensor: Tensor | None) -> tuple[int, ...]:
    return (0, 0, 0, 0) if tensor is None else tensor.stride()
