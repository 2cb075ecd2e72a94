"""The draft by definition: whole rows, dense masks, no ring."""

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.methods.longspec.block import DraftBlock, rotation


def draft_logits(block: DraftBlock, engine: Engine, row: int, path: list[int]) -> Tensor:
    """Logits `[V]` after what `row` has committed and then `path`, every key made anew."""
    batch, config = engine.batch, engine.config
    length = int(batch.lengths[row])
    tokens = torch.tensor([*batch.history[row, : length + 1].tolist(), *path])[None]
    positions = torch.arange(tokens.shape[1])[None]
    cached = [
        cache[batch.block_table[row]].flatten(0, 1)[:length]
        for cache in engine.cache.layer(config.num_layers - 1)
    ]

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        groups = config.num_heads // config.num_kv_heads
        q, k, v = (x.transpose(0, 1) for x in (q[0], k, v))
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=engine.scale)
        return out.transpose(0, 1)[None]

    distance = positions[0][:, None] - positions[0]
    window = (distance >= 0) & (distance < block.config.window)
    hidden = block(
        F.embedding(tokens, engine.model.embed),
        rotation(engine.model, positions),
        lambda q, k, v: attend(q, k[0], v[0], window),
        lambda q: attend(q, *cached, None),
    )
    return engine.model.logits(hidden)[0, -1]
