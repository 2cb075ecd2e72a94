"""What an attention pass keeps for its scores, and the kernels that finish them."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from specbench.kernels.paged_attention.launch import Launch, power_of_2
from specbench.kernels.paged_attention.reference import Collect
from specbench.kernels.paged_attention.triton_rows import (
    ALL,
    EXACT,
    FIRST_LAST,
    LAST,
    LOGIT,
    NORMED,
    NOTHING,
)
from specbench.kernels.paged_attention.triton_scores import sum_heads_kernel, weigh_kernel

WHICH = {"first+last": FIRST_LAST.value, "last": LAST.value, "all": ALL.value}
# packed rows that a product of their own can have
MAX_VOTERS = 64


@dataclass(frozen=True)
class Collecting:
    """How a pass collects, with the buffers between its kernels.

    Attributes
    ----------
    mode, which : int
        As `triton_rows` numbers them.
    rows : int
        Collected rows of a chunk, c.
    head_scores : Tensor or None
        `[R, Hkv T, L]`, to be summed over the T tiles of a KV head's rows, and over heads where
        they share a set.
    weights : Tensor or None
        `[R, Hkv, c G, L]` (L in whole key tiles), of each collected row relative to its largest
        so far.
    peaks : Tensor or None
        `[R, Hkv, tiles, c G]`, log2 of what the weights of a key tile are relative to.
    lse : Tensor or None
        `[R, Q, H]`.
    """

    mode: int = NOTHING.value
    which: int = FIRST_LAST.value
    rows: int = 1
    head_scores: Tensor | None = None
    weights: Tensor | None = None
    peaks: Tensor | None = None
    lse: Tensor | None = None

    @property
    def normed(self) -> bool:
        """Whether calls bring normalisers."""
        return self.mode == NORMED.value

    @property
    def votes(self) -> bool:
        """Whether the pass itself writes a score an entry and KV head."""
        return self.mode in (LOGIT.value, NORMED.value)

    @property
    def tensors(self) -> list[Tensor]:
        """The buffers there are."""
        every = (self.head_scores, self.weights, self.peaks, self.lse)
        return [x for x in every if x is not None]

    def finish(
        self,
        q_lens: Tensor,
        ranked: Tensor,
        scores: Tensor,
        lse: Tensor | None,
        kv_heads: int,
        group: int,
        tiles: int,
        launch: Launch,
    ) -> None:
        """Launch what follows the pass; nothing where that wrote `scores` itself."""
        requests, sets, length = scores.shape
        block_n = launch.block_n
        if self.head_scores is not None:
            block = 1024
            sum_heads_kernel[(triton.cdiv(length, block), requests, sets)](
                self.head_scores,
                q_lens,
                ranked,
                scores,
                self.head_scores.stride(),
                scores.stride(),
                HEADS=kv_heads // sets,
                TILES=tiles,
                GROUP=group,
                BLOCK_M=launch.block_m,
                SHARED=sets == 1,
                BLOCK=block,
            )
        elif self.weights is not None and self.peaks is not None and lse is not None:
            slots = self.weights.shape[2]
            block_c = min(16, power_of_2(slots))
            block_t = max(1, 4096 // (block_c * block_n))
            weigh_kernel[(triton.cdiv(length, block_t * block_n), sets, requests)](
                self.weights,
                self.peaks,
                lse,
                q_lens,
                ranked,
                scores,
                self.weights.stride(),
                self.peaks.stride(),
                lse.stride(),
                scores.stride(),
                KV_HEADS=kv_heads,
                GROUP=group,
                WHICH=self.which,
                SLOTS=slots,
                SHARED=sets == 1,
                BLOCK_N=block_n,
                BLOCK_T=block_t,
                BLOCK_C=block_c,
            )


def prepare(
    collect: Collect,
    one_pass: bool,
    shape: tuple[int, int, int, int],
    kv_heads: int,
    max_len: int,
    dtype: torch.dtype,
    device: torch.device | str,
    launch: Launch,
) -> Collecting:
    """Buffers for calls with queries of `shape`, `[R, Q, H, D]`."""
    requests, queries, heads, _ = shape
    group = heads // kv_heads
    rows = {"first+last": 2, "last": 1, "all": queries}[collect.queries]
    slots = rows * group
    which = WHICH[collect.queries]
    if collect.score == "weight" and not one_pass:
        tiles = triton.cdiv(max_len, launch.block_n)
        padded = tiles * launch.block_n
        # bfloat16 for float16 too: a weight far below the largest keeps its digits
        kind = torch.float32 if dtype == torch.float32 else torch.bfloat16
        return Collecting(
            EXACT.value,
            which,
            rows,
            weights=torch.empty(requests, kv_heads, slots, padded, dtype=kind, device=device),
            peaks=torch.empty(requests, kv_heads, tiles, slots, device=device),
            lse=torch.empty(requests, queries, heads, device=device),
        )
    mode = LOGIT.value if collect.score == "logit" else NORMED.value
    # under normalisers each tile of rows votes for itself
    tiles = triton.cdiv(queries * group, launch.block_m) if mode == NORMED.value else 1
    head_scores = None
    if collect.share == "layer" or tiles > 1:
        head_scores = torch.empty(requests, kv_heads * tiles, max_len, device=device)
    return Collecting(mode, which, rows, head_scores=head_scores)
