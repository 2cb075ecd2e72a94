"""Where a token's keys and values are in vLLM's cache: strided views, one adapter a layout."""

from torch import Tensor

from specbench.errors import UsageError


def split_cache(cache: Tensor, kv_heads: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one layer, each a view `[blocks, block, Hkv, D]`.

    Parameters
    ----------
    cache : Tensor
        As `static_forward_context[name].kv_cache` has it: `[blocks, 2, block, Hkv, D]` in vLLM
        0.25, `[blocks, Hkv, block, 2 D]` from 0.26 on, in whatever order of memory.
    kv_heads, head_dim : int
        Of this rank.

    Raises
    ------
    UsageError
        Another layout.

    Notes
    -----
    On a CPU the block of a head holds its keys, transposed to ``[D, block]``, before its values
    ``[block, D]``.
    """
    if cache.dim() == 5 and cache.shape[1] == 2 and cache.shape[3:] == (kv_heads, head_dim):
        keys, values = cache.unbind(1)
        return keys, values
    packed = cache.dim() == 4 and cache.shape[1] == kv_heads and cache.shape[3] == 2 * head_dim
    if packed and cache.device.type == "cpu":
        blocks, _, block, _ = cache.shape
        halves = cache.view(blocks, kv_heads, 2, block * head_dim)
        keys = halves[:, :, 0].unflatten(-1, (head_dim, block)).permute(0, 3, 1, 2)
        values = halves[:, :, 1].unflatten(-1, (block, head_dim)).permute(0, 2, 1, 3)
        return keys, values
    if packed:
        keys, values = cache.transpose(1, 2).split(head_dim, -1)
        return keys, values
    raise UsageError(
        f"vLLM's KV cache has the shape {tuple(cache.shape)}, which is no layout of the tested "
        "versions (0.25 to 0.33)"
    )
