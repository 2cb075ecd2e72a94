"""A decode step of the fused launches, five a layer with attention, against the model's forward."""

import pytest
import torch
from torch import Tensor

from specbench.engine.kv_cache import PAGE_SIZE, KVCache
from specbench.engine.model import Transformer
from specbench.engine.sampling import argmax
from specbench.kernels.paged_attention.reference import paged_attention, write_kv
from tests.support.buffers import DEVICE, as_accurate, poison_empty
from tests.support.tiny import tiny_model

pytest.importorskip("triton")
from specbench.kernels.head.triton import head_argmax
from specbench.kernels.launch import Scratch
from specbench.kernels.linear.triton import linear_prenorm
from specbench.kernels.mlp.triton import gate_up_small
from specbench.kernels.norm.triton import prenorm
from specbench.kernels.qkv.project import project_rope_write_kv

ROWS, LENGTH = 3, 5
VARIANTS = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "biases": {"qkv_bias": True, "o_bias": True, "mlp_bias": True},
}


def history(model: Transformer, seed: int) -> KVCache:
    """A cache in which every request owns one page with LENGTH random entries."""
    cache = KVCache(model.config, ROWS, model.dtype, DEVICE)
    for entries in (cache.keys, cache.values):
        generator = torch.Generator().manual_seed(seed)
        entries[:, 1:, :LENGTH] = torch.randn(
            entries[:, 1:, :LENGTH].shape, generator=generator
        ).to(entries)
    return cache


def attend(cache: KVCache, layer: int, q: Tensor) -> Tensor:
    """Attention of one query a request, `[n, H, D]`, over its page."""
    table = torch.arange(1, ROWS + 1, device=DEVICE)[:, None]
    lens = torch.full((ROWS,), LENGTH + 1, device=DEVICE)
    keys, values = cache.layer(layer)
    out = paged_attention(q[:, None], keys, values, table, lens, torch.ones_like(lens), 0.3)
    return out[:, 0]


def fused(model: Transformer, tokens: Tensor, cache: KVCache) -> tuple[Tensor, Tensor]:
    """The residual stream and the best tokens, all launches sharing one scratch."""
    eps = model.config.rms_norm_eps
    scratch = Scratch.make(DEVICE, 2**16, 256)
    positions = torch.full((ROWS,), LENGTH, device=DEVICE)
    slots = (torch.arange(ROWS, device=DEVICE) + 1) * PAGE_SIZE + LENGTH
    x = torch.nn.functional.embedding(tokens, model.embed)
    onto = {"residual": x, "scratch": scratch}
    h = prenorm(x, model.layers[0].attn_norm)
    norms = [layer.attn_norm for layer in model.layers[1:]] + [model.final_norm]
    for index, (layer, norm) in enumerate(zip(model.layers, norms, strict=True)):
        weights = layer.qkv, layer.qkv_bias, layer.qk_norm
        place = model.cos, model.signed_sin, positions, slots, *cache.layer(index), eps
        q = project_rope_write_kv(h, *weights, *place, scratch=scratch)
        out = attend(cache, index, q).flatten(1)
        h = linear_prenorm(out, layer.o, layer.o_bias, norm=layer.mlp_norm, **onto)
        gated = gate_up_small(h, layer.gate_up, layer.gate_up_bias, eps=eps)
        h = linear_prenorm(gated, layer.down, layer.down_bias, norm=norm, **onto)
    token, bad = head_argmax(h, model.head, eps=eps, scratch=scratch)
    assert not bad.any()
    assert (scratch.counters == 0).all()
    return x, token


def plain(model: Transformer, tokens: Tensor, cache: KVCache) -> Tensor:
    """Hidden states after the final norm, `[n, hidden]`, by the model's own forward."""
    slots = ((torch.arange(ROWS, device=DEVICE) + 1) * PAGE_SIZE + LENGTH)[:, None]

    def attention(index: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = cache.layer(index)
        write_kv(keys, k, slots)
        write_kv(values, v, slots)
        return attend(cache, index, q[:, 0])[:, None]

    positions = torch.full((ROWS, 1), LENGTH, device=DEVICE)
    return model(tokens[:, None], positions, attention)[:, 0]


@pytest.mark.parametrize(
    ("variant", "dtype"),
    [*((variant, torch.float32) for variant in VARIANTS), ("qwen2", torch.bfloat16)],
)
def test_a_fused_step_is_the_models_forward(
    variant: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, exact = (
        tiny_model(4, d, **VARIANTS[variant]).to(DEVICE) for d in (dtype, torch.float64)
    )
    exact.load_state_dict(model.state_dict())
    tokens = torch.tensor([3, 17, 30], device=DEVICE)
    caches = [history(m, 6) for m in (model, model, exact)]
    with torch.inference_mode():
        truth = plain(exact, tokens, caches[2])
        expected = plain(model, tokens, caches[1])
        poison_empty(monkeypatch)
        x, token = fused(model, tokens, caches[0])
    found = torch.nn.functional.rms_norm(x, x.shape[1:], model.final_norm, 1e-5)
    as_accurate(found, expected, truth, model.config.intermediate_size)
    assert torch.equal(token, argmax(exact.logits(truth)))
    for mine, theirs, true in zip(*((c.keys[:, 1:], c.values[:, 1:]) for c in caches), strict=True):
        as_accurate(mine, theirs, true, model.config.intermediate_size)
