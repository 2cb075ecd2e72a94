"""What memory a vLLM gets for its KV cache."""

from types import SimpleNamespace as Stub

import pytest
import torch

from specbench.bench.residency import plan_residency
from specbench.methods.vllm.method import Vllm, VllmParameters

TOKEN_BYTES = 100


def _kv_tokens(*arguments: str, prompts: int, length: int) -> float:
    requests = [Stub(token_ids=range(length), max_new_tokens=128)] * prompts
    model = Stub(
        kv_bytes_per_token=lambda dtype: TOKEN_BYTES,
        weight_bytes=lambda dtype: 0,
        intermediate_size=8,
        hidden_size=4,
    )
    arm = Stub(name="vllm", method=Vllm(VllmParameters(vllm_arg=arguments)))
    plan = plan_residency(
        [arm],
        [Stub(requests=requests)],
        model,
        torch.bfloat16,
        rows=prompts,
        ours=None,
        free=None,
        device_bytes=10**12,
    )
    return plan.shares["vllm"].kv_bytes / TOKEN_BYTES


@pytest.mark.parametrize("prompts", [1, 4])
@pytest.mark.parametrize("given", ["max_model_len=100864", "max-model-len=100864"])
def test_a_given_context_length_fits(given: str, prompts: int) -> None:
    """One prompt of 100,000 tokens, max_model_len 100,864: vLLM refused to start with
    "13.85 GiB KV cache is needed, larger than the available 13.8 GiB".
    """
    plain = _kv_tokens(prompts=prompts, length=100_000)
    room = _kv_tokens(given, prompts=prompts, length=100_000)
    assert room >= max(plain, 100_864)
    if prompts > 1:
        assert room == plain


def test_what_is_no_number_is_left_to_vllm() -> None:
    assert _kv_tokens("max_model_len=auto", prompts=1, length=50) == _kv_tokens(
        prompts=1, length=50
    )
