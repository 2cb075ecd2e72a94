"""Tensor parallelism: the drafter's forward on each rank's weights, joined by vLLM's functions."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specbench.engine.kv_cache import KVCache
from specbench.engine.model import Attention, Transformer
from specbench.engine.model_config import ModelConfig
from specbench.engine.stream import Stream
from specbench.engine.triton_compute import Fusion, TritonCompute
from specbench.integrations.vllm.target import Shard, shard_of
from specbench.kernels.linear.plan import MAX_ROWS


class Ranks:
    """Sums and gathers over the tensor-parallel group, by vLLM's own functions."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard

    def sum(self, x: Tensor) -> Tensor:
        """The ranks' sum, on all of them."""
        from vllm.distributed import tensor_model_parallel_all_reduce

        out: Tensor = tensor_model_parallel_all_reduce(x.contiguous())
        return out

    def gather(self, x: Tensor) -> Tensor:
        """`[ranks, ...]` of each rank's `[...]`."""
        from vllm.distributed import tensor_model_parallel_all_gather

        out: Tensor = tensor_model_parallel_all_gather(x.contiguous()[None], dim=0)
        return out

    def capture(self, device: torch.device) -> Any:
        """Within it, captured sums take vLLM's fast path."""
        from vllm.distributed.parallel_state import graph_capture

        return graph_capture(device)


def join(model: Any, shape: ModelConfig, size: int) -> Ranks:
    """This process's place among `size` ranks that share vLLM's `model`."""
    from vllm.distributed import get_tensor_model_parallel_rank

    return Ranks(shard_of(model, shape, get_tensor_model_parallel_rank(), size))


class ParallelCompute(TritonCompute):
    """Each rank's heads, MLP columns and part of the vocabulary.

    What rows of attention and MLP add is summed over the ranks before it joins the stream, so
    those products are cuBLAS's; of the LM head only the best token of each rank travels.

    Parameters
    ----------
    model : Transformer
        This rank's.
    cache : KVCache
        This rank's heads.
    ranks : Ranks
    """

    def __init__(self, model: Transformer, cache: KVCache, ranks: Ranks) -> None:
        whole = 0 if model.dtype == torch.float16 else MAX_ROWS
        super().__init__(model, cache, Fusion(qkv=whole, o=0, gate_up=whole, down=0, head=0))
        self.ranks = ranks

    def begin(self, tokens: Tensor, norm: Tensor | None) -> Stream:
        """See `TritonCompute`; of the rank that holds a token."""
        begin, end = self.ranks.shard.vocab_begin, self.ranks.shard.vocab_end
        here = (tokens >= begin) & (tokens < end)
        own = F.embedding((tokens - begin) * here, self.model.embed)
        return Stream(self.ranks.sum(own * here[:, None]))

    def projection(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """See `TritonCompute`; the sum of what the ranks hold."""
        total = self.ranks.sum(F.linear(x, weight))
        return total if bias is None else total + bias

    def best(
        self, tokens: Tensor, positions: Tensor, attention: Attention
    ) -> tuple[Tensor, Tensor]:
        """See `Compute`; the first of equals, as on one rank."""
        shard = self.ranks.shard
        head = self.model.head[: shard.vocab_end - shard.vocab_begin]
        most, at = F.linear(self.hidden(tokens, positions, attention), head).max(-1)
        # a token number is exact in float64, so that one gather does
        pair = torch.stack([most.double(), (at + shard.vocab_begin).double()])
        every = self.ranks.gather(pair)
        winner = every[:, 0].argmax(0)
        best = every[:, 1].gather(0, winner[None])[0].long()
        return best, ~every[:, 0].isfinite().all(0)
