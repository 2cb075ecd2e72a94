"""Verification of a drafted tree: hybrid attention beside torch's, which masks all it reads."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.inputs import pool, randn

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    Attend = Callable[[], Tensor]


@dataclass(frozen=True)
class Tree:
    """Inputs of a case; the tree is the last `rows` of the context's tokens.

    Attributes
    ----------
    q : Tensor
        `[R, Q, H, D]`.
    keys, values, table : Tensor
        As of `inputs.pool`.
    kv_lens, q_lens : Tensor
        int32 `[R]`.
    mask : Tensor
        bool `[R, Q, Q]`: each node's ancestors and itself.
    """

    q: "Tensor"
    keys: "Tensor"
    values: "Tensor"
    table: "Tensor"
    kv_lens: "Tensor"
    q_lens: "Tensor"
    mask: "Tensor"


def make_tree(case: Case, device: str, seed: int) -> Tree:
    """A random tree of `case.rows` nodes in topological order, each behind any earlier one."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    keys, values, table = pool(case, device, seed)
    q = randn((case.batch, case.rows, case.heads, case.dim), device, seed + 1)
    kv_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
    mask = torch.eye(case.rows, dtype=torch.bool).repeat(case.batch, 1, 1)
    for node in range(1, case.rows):
        parent = torch.randint(node, (case.batch,), generator=generator)
        mask[:, node] |= mask[torch.arange(case.batch), parent]
    q_lens = torch.full_like(kv_lens, case.rows)
    return Tree(q, keys, values, table, kv_lens, q_lens, mask.to(device))


def tree_calls(case: Case, device: str, seed: int) -> "tuple[Attend, Attend, Attend]":
    """Calls of the hybrid kernel, of torch's fused attention under a mask, and of a plain one.

    Torch's have keys and values of every query head side by side beforehand and the mask of the
    whole context made, so that attention alone is timed.
    """
    import torch
    import torch.nn.functional as F

    from specbench.kernels.paged_attention.reference import read_kv
    from specbench.kernels.paged_attention.triton import PagedAttention

    tree, scale = make_tree(case, device, seed), case.dim**-0.5
    out = torch.empty_like(tree.q)
    hybrid = PagedAttention(
        *(case.batch, case.rows, case.heads, case.kv_heads, case.dim, case.context),
        *(tree.q.dtype, device),
    )
    given = tree.q, tree.keys, tree.values, tree.table, tree.kv_lens, tree.q_lens, scale
    q = tree.q.transpose(1, 2).contiguous()
    k, v = (
        torch.stack([read_kv(cache, pages, case.context) for pages in tree.table.long()])
        .transpose(1, 2)
        .repeat_interleave(case.heads // case.kv_heads, 1)
        .contiguous()
        for cache in (tree.keys, tree.values)
    )
    # rows of a multiple of eight columns, as the fused kernels want them
    prefix = case.context - case.rows
    wide = torch.zeros(case.batch, 1, case.rows, -(-case.context // 8) * 8, device=device)
    seen = wide.bool()[..., : case.context]
    seen[:, 0, :, :prefix], seen[:, 0, :, prefix:] = True, tree.mask
    unseen = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, -torch.inf)

    def plain() -> "Tensor":
        weights = (q @ k.transpose(2, 3) * scale + unseen).float().softmax(-1).to(q.dtype)
        return weights @ v

    return (
        lambda: hybrid(*given, out=out, tree_mask=tree.mask),
        lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale),
        plain,
    )


def check_tree(case: Case, device: str, seed: int) -> "list[Tensor]":
    """Outputs of the hybrid kernel, torch's and the plain one, and at last the reference's."""
    from specbench.kernels.tree_attention.reference import tree_attention

    tree = make_tree(case, device, seed)
    hybrid, fused, plain = (call() for call in tree_calls(case, device, seed))
    expected, _ = tree_attention(
        *(tree.q.float(), tree.keys.float(), tree.values.float(), tree.table.long()),
        *(tree.kv_lens, tree.q_lens, tree.mask, case.dim**-0.5),
    )
    return [hybrid, fused.transpose(1, 2), plain.transpose(1, 2), expected]
