"""The attention backend behind ``--attention-backend CUSTOM``: vLLM's own, watched."""

from typing import Any

import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.attention.backend import AttentionCGSupport

from specbench.errors import UsageError
from specbench.integrations.vllm.hub import Hub

if current_platform.is_cpu():
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as _Backend
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackendImpl as _Impl
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionMetadataBuilder as _Builder
else:
    from vllm.v1.attention.backends.flash_attn import FlashAttentionBackend as _Backend
    from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl as _Impl
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder as _Builder


class SpecbenchImpl(_Impl):
    """vLLM's attention, unaltered, and a copy of the rows that the drafter asks for.

    Attributes
    ----------
    hub : Hub or None
        Set by the proposer once the model is loaded.
    layer_index : int
    """

    hub: Hub | None = None
    layer_index = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.sliding_window not in (-1, (-1, -1), None):
            raise UsageError(f"sliding-window attention ({self.sliding_window}) is not supported")

    def forward(
        self,
        layer: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Tensor:
        """See vLLM's AttentionImpl."""
        out: Tensor = super().forward(
            layer, query, key, value, kv_cache, attn_metadata, *args, **kwargs
        )
        if self.hub is not None and attn_metadata is not None:
            if self.layer_index == 0:
                self.hub.counters.forward()
            self.hub.keep(self.layer_index, query, key, value, attn_metadata.query_start_loc)
        return out


class SpecbenchBuilder(_Builder):
    """vLLM's metadata; what they say of the batch is noted for the drafter."""

    # what is captured beyond this would be mixed batches, whose rows are no verification's
    _cudagraph_support = min(
        _Builder._cudagraph_support, AttentionCGSupport.UNIFORM_BATCH, key=lambda x: x.value
    )

    def build(
        self, common_prefix_len: int, common_attn_metadata: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """See vLLM's AttentionMetadataBuilder."""
        layers = self.vllm_config.compilation_config.static_forward_context
        hub = getattr(layers[self.layer_names[0]].impl, "hub", None)
        if hub is not None:
            hub.begin(common_attn_metadata)
        return super().build(common_prefix_len, common_attn_metadata, *args, **kwargs)

    def use_cascade_attention(self, *args: Any, **kwargs: Any) -> bool:
        """Never: it would leave rows of one request in two calls."""
        return False


class SpecbenchBackend(_Backend):
    """FlashAttention on a CUDA device, vLLM's CPU attention elsewhere, both watched."""

    @staticmethod
    def get_impl_cls() -> type[SpecbenchImpl]:
        """See vLLM's AttentionBackend."""
        return SpecbenchImpl

    @staticmethod
    def get_builder_cls() -> type[SpecbenchBuilder]:
        """See vLLM's AttentionBackend."""
        return SpecbenchBuilder
