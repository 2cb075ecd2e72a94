"""LongSpec's drafts are those of a draft that caches everything, in constant memory."""

import hashlib
from pathlib import Path

import pytest
import torch
from torch import Tensor

from specbench.config import RunConfig
from specbench.engine import reference_compute
from specbench.engine.engine import Engine
from specbench.engine.sampling import Sampling, probabilities
from specbench.errors import UsageError
from specbench.methods.longspec import drafts
from specbench.methods.longspec.chain_method import LongSpecChain, LongSpecChainParameters
from specbench.methods.longspec.config import DraftConfig
from specbench.methods.longspec.method import LongSpec
from specbench.methods.longspec.weights import save
from tests.methods.longspec.dense import draft_logits
from tests.support.capture import no_host_decisions
from tests.support.tiny import (
    GREEDY,
    decode,
    longspec,
    prompts,
    random_block,
    tiny_config,
    tiny_model,
)

SAMPLING = Sampling(temperature=0.8, top_p=0.9, seed=2)


@pytest.mark.parametrize("shape", [{}, {"qk_norm": True, "num_kv_heads": 1}, {"mlp_bias": True}])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLING])
def test_drafts_equal_those_of_a_full_length_cache(
    sampling: Sampling, shape: dict[str, object]
) -> None:
    engine = Engine(tiny_model(1, **shape), rows=3, max_len=80)
    method = longspec(window=9, gamma=5)
    engine.use(method, sampling)
    # shorter than the window, a multiple of it, longer
    for row, ids in enumerate(prompts(1, [3, 18, 41])):
        engine.admit(row, row, ids, 35)
    for _ in range(8):
        draft = method.draft(engine.batch)
        assert draft is not None
        for row in range(3):
            path = draft.tokens[row].tolist()
            for step in range(5):
                expected = draft_logits(method.block, engine, row, path[:step])
                if draft.probs is None:
                    assert path[step] == int(expected.argmax())
                else:
                    q = probabilities(expected, sampling)
                    torch.testing.assert_close(draft.probs[row, step], q, rtol=1e-9, atol=1e-12)
        engine.step()


def test_a_row_that_is_taken_again_forgets_the_request_before() -> None:
    engine = Engine(tiny_model(2), rows=2, max_len=80)
    token_ids = prompts(2, [40, 5, 33, 2])
    together = decode(engine, longspec(gamma=4), token_ids, [30, 9, 21, 30])
    for index, new in enumerate([30, 9, 21, 30]):
        alone = Engine(tiny_model(2), rows=1, max_len=80)
        one = decode(alone, longspec(gamma=4), [token_ids[index]], new, indices=[index])[index]
        assert one.output_ids == together[index].output_ids
        assert one.accepted == together[index].accepted


def held(method: LongSpec) -> int:
    tensors = [*method.block.parameters(), method.ring.keys, method.ring.values]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def test_memory_is_the_same_to_the_byte_at_any_context() -> None:
    sizes = set()
    for max_len in (2_000, 30_000):
        engine = Engine(tiny_model(4, torch.float32, max_len), rows=2, max_len=max_len)
        method = longspec(window=512, gamma=6)
        engine.use(method, GREEDY)
        tensors = [value for value in vars(method).values() if isinstance(value, Tensor)]
        small = sum(tensor.numel() for tensor in tensors)
        assert small <= 512 + 7, "only the indices of the window and of the chain beside it"
        sizes.add(held(method))
        plain = LongSpecChain(method.parameters)
        assert plain.memory_bytes(engine.config, 2, max_len, engine.dtype) == held(method)
    assert len(sizes) == 1


def test_nothing_is_decided_by_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(tiny_model(5), rows=2, max_len=60)
    method = longspec(gamma=4)
    for sampling in (GREEDY, SAMPLING):
        engine.use(method, sampling)
        for row, ids in enumerate(prompts(5, [4, 37])):
            engine.admit(row, row, ids, 20)
        # the reference reads lengths on the host; kernels on a device do not
        with monkeypatch.context() as patch, no_host_decisions():
            patch.setattr(
                reference_compute, "paged_attention", lambda q, *rest: torch.zeros_like(q)
            )
            method.draft(engine.batch)
        engine.release_all()


def test_gamma_0_drafts_nothing() -> None:
    engine = Engine(tiny_model(6), rows=1, max_len=40)
    assert decode(engine, longspec(gamma=0), prompts(6, [20]), 12)[0].drafted == [0] * 11


def test_without_weights_the_run_is_refused_before_the_model_is_loaded() -> None:
    method = LongSpecChain.from_config(RunConfig(method=("longspec",)))
    with pytest.raises(
        UsageError, match=r"longspec needs draft weights for tiny: .*specbench train"
    ):
        method.memory_bytes(tiny_config(), 1, 100, torch.float32)


def test_a_chain_must_fit_into_the_window(tmp_path: Path) -> None:
    save(random_block(DraftConfig.of(tiny_config(), window=6)), tmp_path)
    for gamma, fits in ((5, True), (6, False)):
        method = LongSpecChain(LongSpecChainParameters(draft_weights=str(tmp_path), gamma=gamma))
        if fits:
            assert method.memory_bytes(tiny_config(), 1, 100, torch.float32) > 0
            continue
        with pytest.raises(UsageError, match=r"6 deep, .*below the 6 tokens .*lower --gamma"):
            method.memory_bytes(tiny_config(), 1, 100, torch.float32)


def test_the_records_name_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "shipped" / "tiny"
    save(random_block(DraftConfig.of(tiny_config())), folder)
    sha = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setattr(drafts, "_SHIPPED", tmp_path / "shipped")
    by_folder = RunConfig(draft_weights=str(folder))
    by_target = RunConfig(model="org/Tiny")
    for config in (by_folder, by_target):
        assert LongSpec.in_all(config)
        for method in LongSpec.arms(config).values():
            assert method.report()["draft_sha256"] == sha
    assert not LongSpec.in_all(RunConfig(model="other"))
    assert "draft_sha256" not in longspec().report()


def test_the_real_block_is_small() -> None:
    from specbench.engine.loader import read_model_config

    config = DraftConfig.of(read_model_config("dummy:smollm2-135m"))
    # weights of a package stay below 9 MiB
    assert config.parameter_count() * 2 < 9 * 2**20
