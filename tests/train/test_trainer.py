"""A draft that learns, and steps that depend on nothing but their number."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

from specbench.engine.engine import Engine
from specbench.errors import DataError, NumericalError
from specbench.methods.longspec.chain_method import LongSpecChain, LongSpecChainParameters
from specbench.methods.longspec.method import LongSpec
from specbench.methods.longspec.tree_method import LongSpecTree, LongSpecTreeParameters
from specbench.methods.longspec.weights import save
from specbench.train.checkpoint import load_checkpoint, save_checkpoint
from specbench.train.evaluate import evaluate, places_of
from tests.support.tiny import autoregressive, decode
from tests.train.toy import CONTEXT, Toy, toy, trainer


@pytest.fixture(scope="module")
def found() -> Toy:
    return toy()


@pytest.fixture(scope="module")
def draft(found: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained draft's folder."""
    ours = trainer(found)
    losses = [ours.step(number).loss for number in range(ours.steps)]
    assert losses[-1] < losses[0] / 2
    folder = tmp_path_factory.mktemp("trained") / "draft"
    save(ours.block, folder, torch.float32)
    return folder


def acceptance(found: Toy, method: LongSpec) -> float:
    """The acceptance length over the toy prompts; the outputs are checked beside it."""
    engine = Engine(found.target, rows=3, max_len=64, spare=method.nodes)
    base = decode(engine, autoregressive(), found.token_ids, 40)
    ours = decode(engine, method, found.token_ids, 40)
    assert all(ours[i].output_ids == base[i].output_ids for i in base)
    steps = [count for outcome in ours.values() for count in outcome.committed]
    return sum(steps) / len(steps)


def chain(draft: str) -> LongSpec:
    return LongSpecChain(LongSpecChainParameters(draft_weights=draft, gamma=3))


def tree(draft: str, *shape: int) -> LongSpec:
    return LongSpecTree(LongSpecTreeParameters(draft_weights=draft, tree_shape=shape))


def test_training_raises_the_acceptance_length(found: Toy, draft: Path) -> None:
    assert acceptance(found, chain("dummy")) < 1.3
    assert acceptance(found, chain(str(draft))) > 2.5


def test_a_tree_is_accepted_further_than_a_chain_as_deep(found: Toy, draft: Path) -> None:
    in_chains = acceptance(found, chain(str(draft)))
    assert acceptance(found, tree(str(draft), 1, 1, 1)) == in_chains
    assert acceptance(found, tree(str(draft), 2, 4, 4)) > in_chains
    assert acceptance(found, tree("dummy", 2, 4, 4)) >= acceptance(found, chain("dummy"))


def test_steps_from_a_checkpoint_are_the_same_steps(found: Toy, tmp_path: Path) -> None:
    whole = trainer(found, short_steps=6, long_steps=4)
    expected = [whole.step(number) for number in range(10)]
    first = trainer(found, short_steps=6, long_steps=4)
    for number in range(5):
        assert first.step(number) == expected[number]
    state = {"step": 5, "tokens": 100, "seconds": 1.5}
    save_checkpoint(tmp_path, first.block, first.optimizer, state)
    second = trainer(found, short_steps=6, long_steps=4)
    assert load_checkpoint(tmp_path, second.block, second.optimizer) == state
    for number in range(5, 10):
        assert second.step(number) == expected[number]
    for one, two in zip(whole.block.parameters(), second.block.parameters(), strict=True):
        assert torch.equal(one, two)
    assert {log.stage for log in expected} == {"short", "long"}


def test_smaller_forwards_give_the_same_gradient_but_for_their_lags(found: Toy) -> None:
    settings = {"flash_noise": False, "anchor_offset": False, "short_steps": 2}
    whole, parts = trainer(found, **settings), trainer(found, micro_tokens=100, **settings)
    one, two = whole.step(0), parts.step(0)
    assert one.loss == pytest.approx(two.loss, rel=1e-2)
    assert one.grad_norm == pytest.approx(two.grad_norm, rel=5e-2)


def test_the_target_stays_as_it_is(found: Toy) -> None:
    before = [weight.clone() for weight in found.target.parameters()]
    ours = trainer(found)
    ours.step(0)
    for one, two in zip(before, found.target.parameters(), strict=True):
        assert torch.equal(one, two)
    assert all(weight.grad is None for weight in found.target.parameters())


def test_half_precision_trains_float32_masters(found: Toy) -> None:
    target = deepcopy(found.target)
    for weight in target.parameters():
        weight.data = weight.data.bfloat16()
    target.dtype = torch.bfloat16
    ours = trainer(Toy(target, found.token_ids, found.corpus), short_steps=30)
    losses = [ours.step(number).loss for number in range(30)]
    assert losses[-1] < losses[0] - 0.5
    assert all(weight.dtype == torch.float32 for weight in ours.block.parameters())


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(found: Toy) -> None:
    ours = trainer(found)
    with torch.no_grad():
        ours.block.down[0, 0] = torch.inf
    before = ours.block.o.clone()
    with pytest.raises(NumericalError, match=r"step 0: the loss is .* lower --short-lr \(0\.01\)"):
        ours.step(0)
    assert torch.equal(ours.block.o, before)


def test_too_little_text_for_a_stage_is_refused_before_the_first_step(found: Toy) -> None:
    with pytest.raises(DataError, match="which is no row of 5,000"):
        trainer(found, long_len=5000, long_steps=1)


def test_a_damaged_or_foreign_checkpoint_is_explained(found: Toy, tmp_path: Path) -> None:
    ours = trainer(found)
    state = {"step": 0, "tokens": 0, "seconds": 0.0}
    save_checkpoint(tmp_path, ours.block, ours.optimizer, state)
    other = trainer(Toy(toy(1).target, [], found.corpus))
    other.block.o = torch.nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(DataError, match="a checkpoint of another draft: o does not fit"):
        load_checkpoint(tmp_path, other.block, other.optimizer)
    file = tmp_path / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match="is no readable checkpoint"):
        load_checkpoint(tmp_path, ours.block, ours.optimizer)


def test_evaluation_covers_every_place_and_lag(found: Toy) -> None:
    ours = trainer(found)
    places = places_of(found.corpus, 40, 80, CONTEXT, 100)
    assert [(p.name, tuple(p.tokens.shape), p.offset) for p in places] == [
        ("near", (2, 40), 0),
        ("far", (2, 40), CONTEXT - 40),
        ("long", (1, 80), 0),
    ]
    scores = list(evaluate(found.target, ours.block, places, 3, 40))
    assert [(s.place, s.lag) for s in scores] == [
        (place, lag) for place in ("near", "far", "long") for lag in (1, 2, 3)
    ]
    whole = list(evaluate(found.target, ours.block, places, 3, 10_000))
    for one, two in zip(scores, whole, strict=True):
        assert one.loss == pytest.approx(two.loss, rel=1e-5)
    assert all(0 < score.loss < 10 for score in scores)


def test_without_held_out_text_there_is_nothing_to_evaluate(found: Toy) -> None:
    assert places_of(found.corpus, 500, 500, CONTEXT, 100) == []
