"""The shape of a LongSpec draft, read off its target's, and whether the two fit."""

from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from specbench.errors import DataError, UsageError
from specbench.parsing import is_plain, shown

if TYPE_CHECKING:
    import torch

    from specbench.engine.model_config import ModelConfig

FORMAT = "specbench-longspec-1"
_LARGEST = 2**31 - 1
WINDOW = 512
# The authors' windows count 512 tokens to the left of the query, which stands beside them.
PUBLISHED_WINDOW = 513
_SHARED = ("vocab_size", "hidden_size", "num_heads", "num_kv_heads", "head_dim")


@dataclass(frozen=True)
class DraftConfig:
    """Sizes of the block; those that its target shares are equal to the target's.

    Attributes
    ----------
    target : str
        Name of the model that the block drafts for.
    window : int
        Tokens that self-attention sees, the query's own included.
    depth : int
        Largest number of tokens by which the target's KV lagged behind a query in training: the
        deepest draft that the block was trained for.
    """

    target: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    mlp_bias: bool = False
    window: int = WINDOW
    depth: int = 5

    @classmethod
    def of(cls, target: "ModelConfig", window: int = WINDOW, depth: int = 5) -> "DraftConfig":
        """The block for `target`."""
        return cls(
            target=target.name,
            vocab_size=target.vocab_size,
            hidden_size=target.hidden_size,
            intermediate_size=target.intermediate_size,
            num_heads=target.num_heads,
            num_kv_heads=target.num_kv_heads,
            head_dim=target.head_dim,
            rms_norm_eps=target.rms_norm_eps,
            mlp_bias=target.mlp_bias,
            window=window,
            depth=depth,
        )

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any], label: str) -> "DraftConfig":
        """The configuration beside a draft's weights: ours, or one that LongSpec's authors publish.

        Raises
        ------
        DataError
            A key that is missing or of another type, or another format.
        """
        if "format" not in values:
            return cls._from_published(values, label)
        if values["format"] != FORMAT:
            raise DataError(
                f"draft {label}: config.json has the format {shown(values['format'])}, this "
                f"version reads {FORMAT!r}; train it anew with 'specbench train longspec'"
            )
        known = {field.name: field.type for field in fields(cls)}
        given = {key: value for key, value in values.items() if key != "format"}
        if given.keys() != known.keys():
            odd = ", ".join(sorted(given.keys() ^ known.keys()))[:300]
            raise DataError(f"draft {label}: config.json has missing or unknown keys: {odd}")
        for key, value in given.items():
            # true is an int in Python, and an epsilon may be written 0
            kind = {int: (int,), str: (str,), bool: (bool,), float: (int, float)}[known[key]]  # type: ignore[index]
            fits = isinstance(value, kind) and (bool in kind or not isinstance(value, bool))
            least = 1 if kind == (int,) else 0
            if not fits or (is_plain(value, (int, float)) and not least <= value <= _LARGEST):
                raise DataError(f"draft {label}: {key} in config.json cannot be {shown(value)}")
        return cls(**given)

    @classmethod
    def _from_published(cls, values: dict[str, Any], label: str) -> "DraftConfig":
        from specbench.engine.hf_config import from_hf

        # the class that is named there is the draft's own, which no other reader knows
        qwen = values.get("model_type") == "qwen2"
        named = {**values, "architectures": ["Qwen2ForCausalLM" if qwen else "LlamaForCausalLM"]}
        return replace(cls.of(from_hf(named, label)), window=PUBLISHED_WINDOW, depth=4)

    def check_target(self, target: "ModelConfig", label: str) -> None:
        """Refuse a draft of another shape than its target's.

        Raises
        ------
        UsageError
            Says the sizes that differ.
        """
        differing = [
            f"{name} {getattr(self, name)} (not {getattr(target, name)})"
            for name in _SHARED
            if getattr(self, name) != getattr(target, name)
        ]
        if differing:
            raise UsageError(
                f"draft {label} was made for {self.target} and does not fit {target.name}: "
                f"{', '.join(differing)}. Train one: specbench train longspec --model {target.name}"
            )

    def parameter_count(self) -> int:
        """Exact number of the block's own weights."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        own = hidden * (q + 2 * kv) + (q + 2 * kv) + q * hidden
        cross = hidden * q + q + q * hidden
        mlp = 3 * hidden * inner + self.mlp_bias * (2 * inner + hidden)
        return own + cross + mlp + 3 * hidden

    def memory_bytes(self, rows: int, drafts: int, dtype: "torch.dtype") -> int:
        """Bytes of the weights and of the rings with room for `drafts` tokens each.

        Neither depends on the context's length.
        """
        from specbench.methods.longspec.ring import ring_size

        entry = 2 * self.num_kv_heads * self.head_dim
        size = ring_size(self.window, drafts)
        return (self.parameter_count() + rows * size * entry) * dtype.itemsize
