"""LongSpec's draft: one decoder block with self-attention, cross-attention and an MLP."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from specbench.engine.model import Transformer
from specbench.methods.longspec.config import DraftConfig

Rotation = tuple[Tensor, Tensor]


def rotation(model: Transformer, positions: Tensor) -> Rotation:
    """The target's own cos and signed sin for positions `[R, Q]`, each `[R, Q, 1, D]`."""
    # rows that are masked may point past the tables; what they compute is never read
    positions = positions.clamp(0, model.max_len - 1)
    return model.cos[positions].unsqueeze(2), model.signed_sin[positions].unsqueeze(2)


class DraftBlock(nn.Module):
    """The trained part of the draft; embedding and LM head are the target's.

    ``x += SelfAttn(Norm1 x); x += CrossAttn(Norm2 x); x += MLP(Norm3 x)``, and the head follows
    without another norm. Cross-attention has a query and an output projection only: its keys and
    values are those of the target's last layer, as cached. What attends is left to the caller, so
    that training, chains and trees share the block.

    Parameters
    ----------
    config : DraftConfig
    dtype, device
        Of the weights.

    Notes
    -----
    Yang et al., "LongSpec", arXiv 2502.17421. Query, key and value projections have a bias and the
    output projections have none, whatever the target has.
    """

    def __init__(self, config: DraftConfig, dtype: torch.dtype, device: torch.device | str) -> None:
        super().__init__()

        def weight(*shape: int) -> nn.Parameter:
            empty = torch.empty(shape, dtype=dtype, device=device)
            return nn.Parameter(empty, requires_grad=False)

        self.config = config
        hidden, inner, dim = config.hidden_size, config.intermediate_size, config.head_dim
        q_rows = config.num_heads * dim
        qkv_rows = q_rows + 2 * config.num_kv_heads * dim
        self.self_norm = weight(hidden)
        self.qkv = weight(qkv_rows, hidden)
        self.qkv_bias = weight(qkv_rows)
        self.o = weight(hidden, q_rows)
        self.cross_norm = weight(hidden)
        self.cross_q = weight(q_rows, hidden)
        self.cross_q_bias = weight(q_rows)
        self.cross_o = weight(hidden, q_rows)
        self.mlp_norm = weight(hidden)
        self.gate_up = weight(2 * inner, hidden)
        self.gate_up_bias = weight(2 * inner) if config.mlp_bias else None
        self.down = weight(hidden, inner)
        self.down_bias = weight(hidden) if config.mlp_bias else None

    def randomise(self, seed: int) -> None:
        """Where training starts: matrices normal with deviation 0.02, biases zero, norms one.

        Drawn on the CPU in float32, so that every device and type starts alike.
        """
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if name.endswith("norm"):
                    parameter.fill_(1)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    noise = torch.empty(parameter.shape).normal_(0, 0.02, generator=generator)
                    parameter.copy_(noise)

    def keys_values(self, x: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
        """Self-attention's rotated keys, and its values, of embeddings `x`.

        They depend on a token and its position alone, the block being the only layer: so they can
        be had at any time for any part of a text.

        Parameters
        ----------
        x : Tensor
            `[R, Q, hidden]`.
        rotation : tuple of Tensor
            cos and signed sin, `[R, Q, 1, D]`.

        Returns
        -------
        keys, values : Tensor
            `[R, Q, Hkv, D]`.
        """
        skip = self.config.num_heads * self.config.head_dim
        normed = self._norm(x, self.self_norm)
        kv = self._heads(F.linear(normed, self.qkv[skip:], self.qkv_bias[skip:]))
        keys, values = kv.split(self.config.num_kv_heads, 2)
        return _rotate(keys, rotation), values

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
        attend_target: Callable[[Tensor], Tensor],
    ) -> Tensor:
        """What the target's LM head takes.

        Parameters
        ----------
        x : Tensor
            Embeddings `[R, Q, hidden]`.
        rotation : tuple of Tensor
            cos and signed sin, `[R, Q, 1, D]`.
        attend : callable
            Self-attention: of q `[R, Q, H, D]` and the same tokens' k and v `[R, Q, Hkv, D]`, q and
            k rotated, makes `[R, Q, H, D]`.
        attend_target : callable
            Cross-attention: of rotated q `[R, Q, H, D]` makes `[R, Q, H, D]`.

        Returns
        -------
        Tensor
            `[R, Q, hidden]`.
        """
        config = self.config
        sizes = config.num_heads, config.num_kv_heads, config.num_kv_heads
        qkv = F.linear(self._norm(x, self.self_norm), self.qkv, self.qkv_bias)
        q, k, v = self._heads(qkv).split(sizes, 2)
        out = attend(_rotate(q, rotation), _rotate(k, rotation), v)
        x = x + F.linear(out.flatten(2), self.o)
        q = F.linear(self._norm(x, self.cross_norm), self.cross_q, self.cross_q_bias)
        out = attend_target(_rotate(self._heads(q), rotation))
        x = x + F.linear(out.flatten(2), self.cross_o)
        h = F.linear(self._norm(x, self.mlp_norm), self.gate_up, self.gate_up_bias)
        gate, up = h.chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down, self.down_bias)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (self.config.hidden_size,), weight, self.config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.config.head_dim))


def _rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    # float32 tables promote half types, so that rotation happens in float32
    return (x * cos + x.roll(x.shape[-1] // 2, -1) * sin).to(x.dtype)
