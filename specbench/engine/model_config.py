"""The shape of a model: sizes, features, and what follows from them."""

from dataclasses import dataclass, replace

import torch

from specbench.engine.rope_scaling import RopeScaling, parse_override
from specbench.errors import ContextTooLongError, DataError
from specbench.parsing import is_plain, shown

LARGEST_SIZE = 2**31 - 1
MOST_LAYERS = 4096


@dataclass(frozen=True)
class ModelConfig:
    """Everything that the engine needs to know of a decoder-only model.

    Attributes
    ----------
    architecture : str
        ``llama``, ``qwen2`` or ``qwen3``.
    name : str
        The model's name for messages and records.
    rope_scaling : RopeScaling, optional
        `None` is plain RoPE.
    max_position_embeddings : int
        As the configuration has it; `context_length` is what the model holds.
    qkv_bias, o_bias, mlp_bias : bool
        Which projections have a bias.
    qk_norm : bool
        RMS norm of every query and key head (Qwen3).
    eos_ids : tuple of int
        Tokens that end a generation, of the configuration and the generation configuration.
    """

    architecture: str
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling | None
    max_position_embeddings: int
    tie_word_embeddings: bool
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool
    eos_ids: tuple[int, ...]

    def __post_init__(self) -> None:
        for field in _SIZES:
            value = getattr(self, field)
            if not is_plain(value, int) or not 1 <= value <= LARGEST_SIZE:
                raise DataError(
                    f"{self.name}: {field} must be a positive integer, not {shown(value)}"
                )
        if self.num_layers > MOST_LAYERS:
            raise DataError(f"{self.name}: {self.num_layers:,} layers are more than any model has")
        if self.num_heads % self.num_kv_heads:
            raise DataError(
                f"{self.name}: {self.num_heads} query heads cannot share {self.num_kv_heads} "
                "KV heads evenly"
            )
        if self.head_dim % 2:
            raise DataError(f"{self.name}: RoPE needs an even head dimension, not {self.head_dim}")

    @property
    def context_length(self) -> int:
        """Tokens that the model can hold, RoPE scaling included.

        Linear, dynamic and YaRN multiply the original context. Llama 3's maximum is stated with
        its scaling already applied.
        """
        scaling = self.rope_scaling
        if scaling is None or scaling.type == "llama3":
            return self.max_position_embeddings
        return int(scaling.original_max_position * scaling.factor)

    def check_context(self, tokens: int) -> None:
        """Refuse `tokens` (prompt and new ones together) beyond `context_length`.

        Raises
        ------
        ContextTooLongError
            Says the model's context, and which option would extend it.
        """
        if tokens > self.context_length:
            factor = -(-tokens // self._unscaled_context())
            llama3 = self.rope_scaling is not None and self.rope_scaling.type == "llama3"
            hint = "" if llama3 else f", or extend the model with --rope-scaling yarn:{factor}"
            raise ContextTooLongError(
                f"{self.name} holds {self.context_length:,} tokens, but {tokens:,} (prompt and new "
                f"tokens) are asked for: lower --context-len or --max-new-tokens{hint}"
            )

    def with_rope_scaling(self, text: str) -> "ModelConfig":
        """This model with another RoPE scaling.

        Parameters
        ----------
        text : str
            ``yarn:4``, ``linear:2`` or ``dynamic:2``; ``yarn:4:32768`` also gives the original
            context, which else is the model's own.

        Raises
        ------
        UsageError
            See `specbench.engine.rope_scaling.parse_override`.
        """
        scaling = parse_override(text, self._unscaled_context(), self.rope_scaling, self.name)
        return replace(self, rope_scaling=scaling)

    def parameter_count(self) -> int:
        """Exact number of stored weights, tied embeddings counted once."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        layer = hidden * (q + 2 * kv) + q * hidden + 3 * hidden * inner + 2 * hidden
        layer += self.qkv_bias * (q + 2 * kv) + self.o_bias * hidden
        layer += self.mlp_bias * (2 * inner + hidden) + self.qk_norm * 2 * self.head_dim
        embeddings = (1 if self.tie_word_embeddings else 2) * self.vocab_size * hidden
        return self.num_layers * layer + embeddings + hidden

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of the weights in `dtype`."""
        return self.parameter_count() * dtype.itemsize

    def kv_bytes_per_token(self, dtype: torch.dtype) -> int:
        """Bytes of keys and values of one token, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * dtype.itemsize

    def _unscaled_context(self) -> int:
        if self.rope_scaling is not None:
            return self.rope_scaling.original_max_position
        # Qwen3 states 32,768 trained positions plus room for the answer; YaRN stretches the former.
        if self.architecture == "qwen3" and self.max_position_embeddings == 40960:
            return 32768
        return self.max_position_embeddings


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)
