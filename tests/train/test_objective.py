"""What training shows the draft is what decoding shows it."""

import pytest
import torch

from specbench.engine import compute
from specbench.engine.engine import Engine
from specbench.methods.longspec.config import DraftConfig
from specbench.train.objective import draft_hidden, offset_positions, watch
from tests.methods.longspec.dense import draft_logits
from tests.support.tiny import GREEDY, longspec, prompts, random_block, tiny_model


@pytest.mark.parametrize("lag", [1, 2, 5])
@pytest.mark.parametrize("shape", [{}, {"qk_norm": True, "num_kv_heads": 1, "num_layers": 1}])
def test_a_query_of_training_is_a_draft_of_decoding(lag: int, shape: dict[str, object]) -> None:
    model = tiny_model(1, **shape)
    block = random_block(DraftConfig.of(model.config, window=7))
    engine = Engine(model, rows=1, max_len=60)
    method = longspec(window=7)
    engine.use(method, GREEDY)
    prompt, path = prompts(1, [30, lag - 1])
    first = engine.admit(0, 0, prompt, 10)
    expected = draft_logits(block, engine, 0, path)
    row = torch.tensor([[*prompt, first, *path, 3, 4]])
    seen = watch(model, row, torch.arange(row.shape[1])[None])
    hidden = draft_hidden(model, block, row, seen, lag)
    ours = model.logits(hidden)[0, len(prompt) + lag - 1]
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_anchors_keep_their_positions() -> None:
    positions = offset_positions(torch.tensor([0, 100]), 7)
    assert positions.tolist() == [[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 104, 105, 106]]


def test_positions_reach_target_and_draft() -> None:
    model = tiny_model(2)
    block = random_block(DraftConfig.of(model.config, window=7))
    tokens = torch.tensor(prompts(2, [12]))
    hidden = []
    for offset in (0, 50):
        positions = offset_positions(torch.tensor([offset]), 12)
        seen = watch(model, tokens, positions)
        hidden.append((seen.keys, draft_hidden(model, block, tokens, seen, 1)))
    (near, near_hidden), (far, far_hidden) = hidden
    torch.testing.assert_close(near[:, :4], far[:, :4])
    assert not torch.isclose(near[:, 4:], far[:, 4:]).all()
    torch.testing.assert_close(near_hidden[:, :4], far_hidden[:, :4])
    assert not torch.isclose(near_hidden[:, 4:], far_hidden[:, 4:]).all()


@pytest.mark.parametrize("length", [20, 40])
@pytest.mark.parametrize("shape", [{}, {"qk_norm": True, "num_kv_heads": 1}])
def test_the_engines_kernels_show_the_draft_the_same(
    length: int, shape: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    model = tiny_model(4, torch.float32, **shape)
    tokens = torch.tensor(prompts(4, [length, length]))
    positions = offset_positions(torch.tensor([0, 100]), length)
    plain = watch(model, tokens, positions)
    monkeypatch.setattr(compute, "uses_triton", lambda *_: True)
    ours = watch(model, tokens, positions)
    torch.testing.assert_close(ours.keys, plain.keys, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.values, plain.values, rtol=1e-4, atol=1e-5)


def test_half_precision_is_close_and_gives_the_masters_a_gradient() -> None:
    config = {"hidden_size": 64, "intermediate_size": 96}
    model = tiny_model(3, torch.float32, **config)
    half = tiny_model(3, torch.bfloat16, **config)
    block = random_block(DraftConfig.of(model.config, window=7), torch.float32)
    block.requires_grad_(True)
    tokens = torch.tensor(prompts(3, [20]))
    positions = torch.arange(20)[None]
    exact = draft_hidden(model, block, tokens, watch(model, tokens, positions), 2)
    close = draft_hidden(half, block, tokens, watch(half, tokens, positions), 2)
    assert close.dtype == torch.float32
    assert (close - exact).norm() < 0.1 * exact.norm()
    close.square().mean().backward()
    for name, weight in block.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.dtype == torch.float32
        assert weight.grad.any(), name
