"""A drafter's KV: what it holds, at which positions it is read."""

import pytest
import torch
from torch import Tensor

from specbench.engine.engine import Engine
from specbench.engine.model import Transformer
from specbench.engine.rope_scaling import RopeScaling
from specbench.methods.draft_model.drafter import Drafter
from specbench.methods.draft_model.loading import DraftModel, Reach
from tests.support.dense import dense_logits
from tests.support.tiny import GREEDY, autoregressive, prompts, tiny_model


def near(found: Tensor, expected: Tensor) -> None:
    """Equal but for the rounding of the rotary tables, which are float32."""
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-5)


def make(
    model: Transformer, reach: Reach, lengths: tuple[int, ...] = (50, 23)
) -> tuple[Engine, Drafter, list[list[int]]]:
    """An engine with prefilled rows, and their tokens with the first new one."""
    engine = Engine(tiny_model(1), rows=len(lengths) + 1, max_len=120, prefill_chunk=16, spare=20)
    engine.use(autoregressive(), GREEDY)
    drafter = Drafter(engine, model, reach)
    tokens = prompts(1, lengths)
    for row, ids in enumerate(tokens):
        ids.append(engine.admit(row, row, list(ids), 40))
        drafter.prefill(row, engine.batch, 16)
    return engine, drafter, tokens


def everything(drafter: Drafter) -> Tensor:
    return torch.arange(drafter.engine.max_len) < drafter.filled[:, None]


YARN = RopeScaling(type="yarn", factor=4.0, original_max_position=64)


@pytest.mark.parametrize("scaling", [None, YARN])
def test_with_everything_kept_it_is_the_model_itself(scaling: RopeScaling | None) -> None:
    model = tiny_model(2, rope_scaling=scaling, num_layers=3, num_kv_heads=1)
    engine, drafter, tokens = make(model, Reach(140, 140, 120, 16, 120))
    for step in range(3):
        drafter.gather(everything(drafter))
        logits = drafter.catch_up(4)
        for row, ids in enumerate(tokens):
            near(logits[row], dense_logits(model, ids)[-1])
        drafts = torch.tensor([[3, 5], [8, 1], [0, 0]])
        for place in range(2):
            logits = drafter.chain(drafts[:, place], place)
            for row, ids in enumerate(tokens):
                whole = ids + drafts[row, : place + 1].tolist()
                near(logits[row], dense_logits(model, whole)[-1])
        # one row commits more than the other
        for row, more in ((0, 1 + step), (1, 3)):
            new = torch.randint(32, (more,))
            n = int(engine.batch.lengths[row])
            engine.batch.history[row, n + 1 : n + 1 + more] = new
            engine.batch.lengths[row] += more
            tokens[row] += new.tolist()


def test_a_level_sees_its_ancestors() -> None:
    model = tiny_model(3)
    _, drafter, tokens = make(model, Reach(140, 140, 120, 16, 120))
    drafter.gather(everything(drafter))
    drafter.catch_up(4)
    first = torch.tensor([[3, 5], [8, 1], [0, 0]])
    second = torch.tensor([[7, 9], [2, 4], [0, 0]])
    itself = torch.eye(2, dtype=torch.bool).expand(3, 2, 2)
    drafter.level(first, 1, itself)
    # both nodes of the second level hang on the second of the first
    mask = torch.cat([itself[:, 1:].expand(3, 2, 2), itself], 2)
    logits = drafter.level(second, 2, mask)
    for row, ids in enumerate(tokens):
        for node in range(2):
            path = [int(first[row, 1]), int(second[row, node])]
            near(logits[row, node], dense_logits(model, ids + path)[-1])


def test_kept_entries_stand_without_gaps() -> None:
    """One layer, so that KV depends on tokens alone: the kept ones are a text of their own."""
    model = tiny_model(4, num_layers=1)
    _, drafter, tokens = make(model, Reach(60, 60, 120, 16, 120))
    kept = everything(drafter)
    kept[:, 4:20] = False
    kept[0, 30:40] = False
    drafter.gather(kept)
    assert drafter.length.tolist() == [24, 7, 0]
    logits = drafter.catch_up(4)
    for row, ids in enumerate(tokens):
        text = [t for t, keeps in zip(ids[:-1], kept[row].tolist(), strict=False) if keeps]
        near(logits[row], dense_logits(model, [*text, ids[-1]])[-1])


def test_a_context_shorter_than_the_prompt_looks_back_on_a_window() -> None:
    model = tiny_model(5, max_len=28)
    _, drafter, tokens = make(model, Reach(28, 28, 12, 16, 28))
    kept = everything(drafter)
    kept &= torch.arange(120) >= drafter.filled[:, None] - 20
    drafter.gather(kept)
    drafter.catch_up(4)
    # one layer down, keys are those of a windowed prefill: compare what the cache holds
    seen: list[Tensor] = []

    def look(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        seen.append(v)
        n = q.shape[1]
        row, column = torch.arange(n)[:, None], torch.arange(n)
        visible = (column <= row) & (column >= row // 16 * 16 - 12)
        return torch.nn.functional.scaled_dot_product_attention(
            *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=visible, enable_gqa=True
        ).transpose(1, 2)

    whole = tiny_model(5)
    for row, ids in enumerate(tokens):
        seen.clear()
        n = len(ids) - 1
        whole(torch.tensor([ids[:-1]]), torch.arange(n)[None], look)
        pages = drafter.engine.batch.block_table[row]
        for layer, values in enumerate(seen):
            held = drafter.cache.values[layer, pages].flatten(0, 1)[:n]
            near(held, values[0])


@pytest.mark.parametrize("vocab", [24, 40])
def test_a_padded_vocabulary_is_cut_or_filled(vocab: int) -> None:
    model = tiny_model(6, vocab_size=vocab)
    engine = Engine(tiny_model(1), rows=1, max_len=120)
    engine.use(autoregressive(), GREEDY)
    drafter = Drafter(engine, model, Reach(140, 140, 120, 16, 120))
    ids = prompts(1, [20], 24)[0]
    engine.admit(0, 0, ids, 20)
    engine.batch.history[0, 20] = 7
    drafter.prefill(0, engine.batch, 16)
    drafter.gather(everything(drafter))
    logits = drafter.catch_up(1)[0]
    both = min(vocab, 32)
    near(logits[:both], dense_logits(model, [*ids, 7])[-1][:both])
    assert (logits[both:] == -torch.inf).all()


def test_how_far_a_draft_model_reaches() -> None:
    source = DraftModel("given", tiny_model(1, max_position_embeddings=100))
    assert source.reach(90, 90, 100, 32, 16) == Reach(90, 90, 100, 16, 100)
    assert source.reach(90, 90, 400, 32, 16) == Reach(90, 90, 32, 16, 48)
    # drafts behind the last token of a request are never read
    assert source.reach(120, 110, 100, 32, 16) == Reach(120, 100, 100, 16, 100)
    with pytest.raises(Exception, match=r"holds 100 tokens, and its drafts would read 101"):
        source.reach(101, 101, 400, 32, 16)
    with pytest.raises(Exception, match=r"window of 90 and a prefill chunk of 16"):
        source.reach(90, 90, 400, 90, 16)
