"""Where the weights of all layers are, for a kernel that goes through them by itself."""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from specbench.engine.model import Layer, Transformer
from specbench.kernels.step.plan import COLUMNS, Shape


@dataclass(frozen=True)
class StepWeights:
    """The addresses of a model's weights, and what else of it the kernel reads.

    Attributes
    ----------
    shape : Shape
    addresses : Tensor
        int64 `[layers, COLUMNS]`. The model must keep its weights where they are.
    embed : Tensor
        `[vocab, hidden]`.
    first_norm : Tensor
        `[hidden]`.
    biased : bool
        Whether q, k and v have biases.
    eps : float
    """

    shape: Shape
    addresses: Tensor
    embed: Tensor
    first_norm: Tensor
    biased: bool
    eps: float

    @classmethod
    def of(cls, model: Transformer) -> "StepWeights":
        """Of a model that `covers` allows."""
        layers = cast(list[Layer], list(model.layers))
        norms = [layer.attn_norm for layer in layers[1:]] + [model.final_norm]
        rows = []
        for layer, norm, following in zip(layers, norms, layers[1:] + layers[-1:], strict=True):
            used = [layer.qkv, layer.qkv_bias, layer.o, layer.mlp_norm, layer.gate_up, layer.down]
            used += [norm, following.qkv]
            assert len(used) == COLUMNS
            rows.append([0 if x is None else x.data_ptr() for x in used])
        config = model.config
        heads = config.num_heads, config.num_kv_heads, config.head_dim
        return cls(
            Shape(config.hidden_size, *heads, config.intermediate_size),
            torch.tensor(rows, dtype=torch.int64, device=model.embed.device),
            model.embed,
            layers[0].attn_norm,
            layers[0].qkv_bias is not None,
            config.rms_norm_eps,
        )


def covers(model: Transformer) -> bool:
    """Whether the kernel takes this model.

    Not: norms of heads, whose tile would be a head; biases but those of q, k and v; float16, of
    which an unnormed product can overflow; weights that do not begin at multiples of 16 bytes.
    """
    config = model.config
    layers = cast(list[Layer], list(model.layers))
    weights = [x for layer in layers for x in layer.parameters()] + [model.final_norm]
    return (
        not (config.qk_norm or config.o_bias or config.mlp_bias)
        and model.dtype in (torch.bfloat16, torch.float32)
        and all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in weights)
    )
