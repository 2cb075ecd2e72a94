"""The bytes that an iteration has to move: what its time is held against."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specbench.engine.engine import Engine
    from specbench.engine.model import Transformer


@dataclass(frozen=True)
class Traffic:
    """Bytes of one iteration with every row in use, each read or written once a forward.

    Attributes
    ----------
    draft : int or None
        Of all draft steps; None where these are no chain of the target's own forwards over a
        selection of its KV.
    iteration : int or None
        Draft steps and verification; None where `draft` is and there is something to draft.
    """

    draft: int | None
    iteration: int | None


def traffic(engine: "Engine") -> Traffic:
    """Of the running batch, at the lengths that it has.

    Counted are the weights, of the embedding only what is the LM head too, and the KV that is read
    and written: by the verification all, by a draft step what `entries_read` says and the drafts
    before it. Activations and scores, tables and logits are not.
    """
    method, config = engine.method, engine.config
    weights = weight_bytes(engine.model)
    entry = 2 * config.num_layers * config.num_kv_heads * config.head_dim * engine.dtype.itemsize
    lengths, gamma = engine.batch.lengths.tolist(), method.gamma
    verified = gamma + 1
    # each row sees what was committed and the chunk, whose entries are written too
    verify = weights + entry * sum(length + 2 * verified for length in lengths)
    if gamma == 0:
        return Traffic(None, verify)
    if not method.drafts_with_target:
        return Traffic(None, None)
    read = sum(method.entries_read(length) for length in lengths)
    steps = [read + len(lengths) * (step + 2) for step in range(gamma)]
    draft = gamma * weights + entry * sum(steps)
    return Traffic(draft, draft + verify)


def weight_bytes(model: "Transformer") -> int:
    """Of what a forward reads whole."""
    read = {id(part): part.nbytes for part in model.parameters()}
    if model.head is not model.embed:
        del read[id(model.embed)]
    return sum(read.values())
