"""Tiny random models and short helpers around the engine."""

from collections.abc import Sequence

import torch

from specbench.engine.engine import Engine
from specbench.engine.generate import Generated, Request, generate
from specbench.engine.model import Transformer
from specbench.engine.model_config import ModelConfig
from specbench.engine.sampling import Sampling
from specbench.methods.autoregressive import Autoregressive
from specbench.methods.base import EngineMethod
from specbench.methods.longspec.block import DraftBlock
from specbench.methods.longspec.chain_method import LongSpecChain, LongSpecChainParameters
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.method import LongSpec
from specbench.methods.longspec.tree_method import LongSpecTree, LongSpecTreeParameters
from specbench.methods.lookup import Lookup, LookupParameters
from specbench.methods.magicdec.method import MagicDec
from specbench.methods.magicdec.stream_draft import StreamDraft, StreamDraftParameters
from specbench.methods.specextend.self_draft import SelfDraft, SelfDraftParameters
from specbench.methods.specextend.self_tree import SelfTree, SelfTreeParameters
from specbench.methods.specextend.separate import SeparateDraft, SeparateDraftParameters
from specbench.methods.vegas import Vegas, VegasParameters

GREEDY = Sampling()


def tiny_config(**changes: object) -> ModelConfig:
    """A two-layer grouped-query model; fields by keyword."""
    values: dict[str, object] = {
        "architecture": "llama",
        "name": "tiny",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "qkv_bias": False,
        "o_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "eos_ids": (),
    }
    return ModelConfig(**(values | changes))  # type: ignore[arg-type]


def tiny_model(
    seed: int = 0, dtype: torch.dtype = torch.float64, max_len: int = 256, **changes: object
) -> Transformer:
    """A model with weights large enough that its logits differ clearly."""
    model = Transformer(tiny_config(**changes), max_len, dtype, "cpu")
    generator = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if name.endswith("norm"):
            weight.fill_(1)
        else:
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(noise * (1.0 if weight.dim() > 1 and "embed" in name else 0.35))
    return model


def prompts(seed: int, lengths: Sequence[int], vocab: int = 32) -> list[list[int]]:
    """Random prompts of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocab, (n,), generator=generator).tolist() for n in lengths]


def vegas(**settings: object) -> Vegas:
    """Vegas with a set small enough to be sparse on short prompts."""
    values: dict[str, object] = {"gamma": 3, "kept_ratio": 0.1, "min_tokens": 2}
    return Vegas(VegasParameters(**(values | settings)))


def lookup(**settings: object) -> Lookup:
    """Prompt lookup."""
    return Lookup(LookupParameters(**settings))


def magicdec(variant: str, **settings: object) -> MagicDec:
    """A variant of MagicDec with a KV small enough to be sparse on short prompts."""
    small: dict[str, dict[str, object]] = {
        "stream": {"budget": 8, "sinks": 2},
        "snapkv": {"budget": 12, "window": 5, "pool": 3},
        "quest": {"budget": 16, "dense_layers": 1},
    }
    values = small[variant] | settings
    if "kept_ratio" in settings:
        del values["budget"]
    method = MagicDec.variants()[f"magicdec-{variant}"]
    assert issubclass(method, MagicDec)
    return method(method.parameters_type(**values))


def specextend(**settings: object) -> SelfDraft:
    """SpecExtend on itself, with chunks small enough to leave some of a short prompt out."""
    values: dict[str, object] = {"gamma": 3, "chunk": 4, "interval": 2} | settings
    if "kept_ratio" not in settings:
        values.setdefault("top_chunks", 3)
    return SelfDraft(SelfDraftParameters(**values))


def self_tree(**settings: object) -> SelfTree:
    """SpecExtend on itself, in trees."""
    values: dict[str, object] = {"chunk": 4, "interval": 2, "nodes": 6, "depth": 4}
    values |= {"threshold": 0.1} | settings
    if "kept_ratio" not in settings:
        values.setdefault("top_chunks", 3)
    return SelfTree(SelfTreeParameters(**values))


def with_draft(model: Transformer, **settings: object) -> SeparateDraft:
    """SpecExtend with `model` as its drafter."""
    values: dict[str, object] = {"chunk": 4, "interval": 2, "nodes": 6, "depth": 4}
    values |= {"threshold": 0.1, "draft_model": "given"} | settings
    if "kept_ratio" not in settings:
        values.setdefault("top_chunks", 3)
    return SeparateDraft(SeparateDraftParameters(**values), model)


def stream_draft(model: Transformer, **settings: object) -> StreamDraft:
    """MagicDec's stream with `model` as its drafter."""
    values: dict[str, object] = {"gamma": 4, "budget": 8, "sinks": 2, "draft_model": "given"}
    return StreamDraft(StreamDraftParameters(**(values | settings)), model)


class RandomBlock(LongSpec):
    """A block of random weights that are as large as the tiny target's."""

    window = 8

    def load_block(self, engine: Engine) -> DraftBlock:
        """A block whose biases and norms are random too."""
        config = DraftConfig.of(engine.config, window=self.window)
        return random_block(config, engine.dtype).to(engine.device)


def random_block(config: DraftConfig, dtype: torch.dtype = torch.float64) -> DraftBlock:
    """A block whose every weight matters."""
    block = DraftBlock(config, dtype, "cpu")
    generator = torch.Generator().manual_seed(1)
    for name, weight in block.named_parameters():
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        weight.copy_(noise * 0.35 + name.endswith("norm"))
    return block


class RandomChain(RandomBlock, LongSpecChain):
    """LongSpec in chains."""


class RandomTree(RandomBlock, LongSpecTree):
    """LongSpec in trees."""


def longspec(window: int = 8, **settings: object) -> RandomChain:
    """LongSpec in chains, with a random block and a window shorter than the prompts."""
    values: dict[str, object] = {"draft_weights": "dummy"}
    method = RandomChain(LongSpecChainParameters(**(values | settings)))
    method.window = window
    return method


def longspec_tree(window: int = 8, **settings: object) -> RandomTree:
    """The same in trees."""
    values: dict[str, object] = {"draft_weights": "dummy", "tree_shape": (2, 3, 2)}
    method = RandomTree(LongSpecTreeParameters(**(values | settings)))
    method.window = window
    return method


def decode(
    engine: Engine,
    method: EngineMethod,
    token_ids: Sequence[list[int]],
    max_new_tokens: int | Sequence[int],
    sampling: Sampling = GREEDY,
    indices: Sequence[int] | None = None,
) -> dict[int, Generated]:
    """Run prompts through `engine`; results by index."""
    new = [max_new_tokens] * len(token_ids) if isinstance(max_new_tokens, int) else max_new_tokens
    indices = range(len(token_ids)) if indices is None else indices
    requests = [
        Request(i, f"item-{i}", ids, n) for i, ids, n in zip(indices, token_ids, new, strict=True)
    ]
    engine.use(method, sampling)
    return {g.request.index: g for g in generate(engine, requests)}


def autoregressive() -> Autoregressive:
    """The baseline."""
    return Autoregressive(Autoregressive.parameters_type())
