"""The growth of a tree in three launches a level, in Triton."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from specbench.kernels.head.choose import survey_groups
from specbench.kernels.launch import check_dtype, dependent
from specbench.kernels.tree_growth.device import choose_level, choose_top
from specbench.kernels.tree_growth.reference import GrownTree, check_level, check_top

# groups that a program holds in registers, at most
_MOST_GROUPS = 2048
# keys, or addresses, of a thread, at most: 64 registers
_MOST_OF_THREAD = 32


@dataclass(frozen=True)
class TopLaunch:
    """How a row is cut; any choice gives the same tokens.

    Attributes
    ----------
    group : int
        Tokens whose best one is known before candidates are read, a power of two; larger where a
        vocabulary has more groups than a program holds.
    chunk : int
        Tokens of a program that surveys, a power of two, at least `group`.
    num_warps : int
        Of the program that chooses a row's tokens, a power of two; more where these are many.
    pdl : bool
        Programmatic dependent launch.
    """

    group: int = 128
    chunk: int = 4096
    num_warps: int = 8
    pdl: bool = True


def top_tokens(logits: Tensor, k: int, launch: TopLaunch | None = None) -> tuple[Tensor, Tensor]:
    """As `reference.top_tokens`, for logits of float32 or a half type, in two launches.

    Parameters
    ----------
    logits : Tensor
        `[n, V]`; rows may be strided.
    k : int
        1 to V.
    launch : TopLaunch, optional
        Instead of the default.

    Returns
    -------
    scores, tokens : Tensor
        float32 and int64 `[n, k]`.

    Raises
    ------
    ValueError
        As the reference does, and for float64 logits and rows whose elements are not adjacent.
    """
    check_dtype(logits)
    check_top(logits, k)
    if logits.stride(1) != 1:
        raise ValueError("the elements of a row must be adjacent")
    launch = launch or TopLaunch()
    (rows, vocab), device = logits.shape, logits.device
    scores = torch.empty((rows, k), dtype=torch.float32, device=device)
    tokens = torch.empty((rows, k), dtype=torch.int64, device=device)
    if not rows:
        return scores, tokens
    group = max(launch.group, triton.next_power_of_2(triton.cdiv(vocab, _MOST_GROUPS)))
    chunk, groups = max(launch.chunk, group), triton.cdiv(vocab, group)
    padded = triton.next_power_of_2(k)
    best, mass = torch.empty((2, rows, groups), dtype=torch.float32, device=device)
    options = dependent(launch.pdl, device)
    size = {"GROUPS": groups, "V": vocab, "GROUP": group}
    survey_groups[(rows, triton.cdiv(vocab, chunk))](
        logits, logits.stride(0), None, best, mass, 1.0, ALL=True, CHUNK=chunk, **size, **options
    )
    choose_top[(rows,)](
        logits,
        logits.stride(0),
        best,
        mass,
        scores,
        tokens,
        K=k,
        PADDED_K=padded,
        PADDED_GROUPS=triton.next_power_of_2(groups),
        num_warps=_warps(padded * group, launch.num_warps),
        **size,
        **options,
    )
    return scores, tokens


def add_level(tree: GrownTree, scores: Tensor, tokens: Tensor, begin: int, width: int) -> None:
    """As `reference.add_level`, for float32 scores, in one launch.

    Parameters
    ----------
    tree : GrownTree
        As `GrownTree.empty` gives it: dense.
    scores, tokens, begin, width
        As for the reference; any strides.

    Raises
    ------
    ValueError
        As the reference does, and for float64 scores and a tree that is not dense.
    """
    check_dtype(scores)
    check_level(tree, scores, tokens, begin, width)
    if not all(x.is_contiguous() for x in (tree.tokens, tree.parents, tree.scores, tree.paths)):
        raise ValueError("the tensors of a tree must be dense")
    rows, nodes, k = scores.shape
    if not rows:
        return
    padded_nodes, padded_k = triton.next_power_of_2(nodes), triton.next_power_of_2(k)
    size = tree.tokens.shape[1]
    padded_width, padded_size = triton.next_power_of_2(width), triton.next_power_of_2(size)
    choose_level[(rows,)](
        scores,
        scores.stride(),
        tokens,
        tokens.stride(),
        tree.tokens,
        tree.parents,
        tree.scores,
        tree.paths.view(torch.uint8),
        begin,
        NODES=nodes,
        K=k,
        WIDTH=width,
        SIZE=size,
        PADDED_NODES=padded_nodes,
        PADDED_K=padded_k,
        PADDED_WIDTH=padded_width,
        PADDED_SIZE=padded_size,
        num_warps=max(_warps(padded_nodes * padded_k, 4), _warps(padded_width * padded_size, 4)),
        **dependent(True, scores.device),
    )


def _warps(elements: int, least: int) -> int:
    """Warps of a program that holds so many keys or addresses in its registers."""
    return min(max(least, elements // (32 * _MOST_OF_THREAD)), 16)
