"""The small model that drafts: what it must have in common with the target, and its weights."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from specbench.config import RunConfig
from specbench.errors import ContextTooLongError, UsageError

if TYPE_CHECKING:
    from specbench.engine.model import Transformer
    from specbench.engine.model_config import ModelConfig


@dataclass(frozen=True)
class Reach:
    """How far a drafter's positions go.

    Attributes
    ----------
    working : int
        Entries of its working KV, drafts included.
    drafted : int
        Positions of these, which of a tree are fewer.
    look_back : int
        Tokens before its chunk that the prefill sees.
    prefill_chunk : int
    prompt : int
        Positions of the prefill: of a whole prompt, or of a chunk and what it sees.
    """

    working: int
    drafted: int
    look_back: int
    prefill_chunk: int
    prompt: int

    @property
    def positions(self) -> int:
        """Rotary positions, at most."""
        return max(self.drafted, self.prompt)


class DraftModel:
    """A model named as for ``--model``, or one that is loaded already.

    Parameters
    ----------
    spec : str
    loaded : Transformer, optional
    """

    def __init__(self, spec: str, loaded: "Transformer | None" = None) -> None:
        self.spec = spec
        self.loaded = loaded

    @cached_property
    def config(self) -> "ModelConfig":
        """Its shape."""
        if self.loaded is not None:
            return self.loaded.config
        from specbench.engine.loader import read_model_config

        return read_model_config(self.spec)

    @cached_property
    def provenance(self) -> dict[str, Any]:
        """What a record says of it (see `specbench.engine.provenance`)."""
        if self.loaded is not None:
            return {"spec": self.config.name}
        from specbench.engine.loader import describe_model

        return describe_model(self.spec)

    def check_vocabulary(self, config: RunConfig, target: "ModelConfig") -> None:
        """Refuse a drafter whose token ids do not mean what the target's mean.

        Embeddings may be padded to other sizes: of two models with tokenizers these are compared.

        Raises
        ------
        UsageError
        """
        from specbench.engine.tokenizer import load_tokenizer

        trusted = config.trust_remote_code
        ours = load_tokenizer(self.spec, trust_remote_code=trusted)
        theirs = load_tokenizer(str(config.model), config.model_revision, trusted)
        if ours is not None and theirs is not None:
            if ours.get_vocab() == theirs.get_vocab():
                return
            sizes = f"{len(ours):,} tokens, and {target.name} another of {len(theirs):,}"
        elif self.config.vocab_size == target.vocab_size:
            return
        else:
            sizes = f"{self.config.vocab_size:,} tokens, and {target.name} {target.vocab_size:,}"
        raise UsageError(
            f"--draft-model {self.config.name} has a vocabulary of {sizes}: drafts must be token "
            "ids of the target, so choose a smaller model of its family"
        )

    def reach(
        self, working: int, drafted: int, max_len: int, window: int, prefill_chunk: int
    ) -> Reach:
        """With `working` entries at `drafted` positions, and prompts of up to `max_len` tokens.

        A prefill sees everything where the model's context holds it, else `window` tokens before
        each chunk: positions count from the first that is seen.

        Raises
        ------
        ContextTooLongError
            Either goes beyond the model's context.
        """
        context = self.config.context_length
        # without gaps no position exceeds the token's own
        drafted = min(drafted, max_len)
        look_back, prompt = max_len, max_len
        if context < max_len:
            look_back, prompt = window, window + prefill_chunk
        reach = Reach(working, drafted, look_back, prefill_chunk, prompt)
        if drafted > context:
            raise ContextTooLongError(
                f"--draft-model {self.config.name} holds {context:,} tokens, and its drafts would "
                f"read {drafted:,}: lower --top-chunks, --budget or --kept-ratio"
            )
        if reach.positions > context:
            raise ContextTooLongError(
                f"--draft-model {self.config.name} holds {context:,} tokens, fewer than a window "
                f"of {window:,} and a prefill chunk of {prefill_chunk:,}: lower --draft-window or "
                "--prefill-chunk"
            )
        return reach

    def load(self, dtype: torch.dtype, device: torch.device, positions: int) -> "Transformer":
        """The model with its weights, as it is named.

        Raises
        ------
        SpecbenchError
            See `load_model`.
        """
        from specbench.engine.loader import load_model

        return load_model(self.spec, device=device, dtype=dtype, max_len=positions).model


def fit_vocabulary(logits: Tensor, size: int) -> Tensor:
    """Logits `[..., V]` as `[..., size]`: tokens that one of the models lacks are impossible."""
    missing = size - logits.shape[-1]
    if missing <= 0:
        return logits[..., :size]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
