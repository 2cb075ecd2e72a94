"""A round of drafting over vLLM's layouts: against decoding itself, and kernels against torch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from specbench.engine.model import Transformer
from specbench.errors import UsageError
from specbench.integrations.vllm.choice import Choice, StreamChoice
from specbench.integrations.vllm.layout import split_cache
from specbench.integrations.vllm.replay import buckets_of
from specbench.integrations.vllm.rounds import RANKED
from specbench.integrations.vllm.vegas_choice import VegasChoice
from specbench.methods.magicdec.stream import StreamParameters
from specbench.methods.vegas import VegasParameters
from tests.support.tiny import prompts, tiny_model
from tests.support.vllm_batch import (
    BLOCK,
    Layout,
    Row,
    continued,
    cpu_layout,
    make_drafter,
    packed_layout,
    split_layout,
)

GAMMA = 3
TEXTS = prompts(5, (50, 37, 20, 9, 33), 32)


@pytest.fixture(scope="module")
def model() -> Transformer:
    return tiny_model(1, torch.float32, 128)


@pytest.fixture(scope="module")
def batch(model: Transformer) -> list[Row]:
    """Two drafts accepted, none, a prompt's last chunk, a middle one, one short, all accepted."""
    verified = TEXTS[0][:-GAMMA] + continued(model, TEXTS[0][:-GAMMA], 2) + [7]
    accepted = continued(model, TEXTS[0][:-GAMMA], 3)
    rejected = continued(model, TEXTS[1][:-GAMMA], 1)
    all_of_it = continued(model, TEXTS[4], GAMMA + 1)
    return [
        Row(verified, GAMMA + 1, accepted),
        Row(TEXTS[1], GAMMA + 1, rejected),
        Row(TEXTS[2], 8, continued(model, TEXTS[2], 1), prefilling=True),
        Row(TEXTS[3], 4, [], prefilling=True),
        Row(TEXTS[3], 2, continued(model, TEXTS[3], 1), prefilling=True),
        Row(TEXTS[4] + all_of_it[:-1], GAMMA + 1, all_of_it),
    ]


def vegas(model: Transformer, **settings: Any) -> Callable[[int, int, bool], Choice]:
    p = VegasParameters(gamma=GAMMA, **{"min_tokens": 2, **settings})
    dtype, device = model.dtype, torch.device("cpu")
    return lambda rows, length, kernels: VegasChoice(
        p, model.config, rows, length, dtype, device, kernels
    )


def stream(**settings: Any) -> Callable[[int, int, bool], Choice]:
    p = StreamParameters(gamma=GAMMA, **settings)
    return lambda rows, length, kernels: StreamChoice(p, rows, length, torch.device("cpu"))


@pytest.mark.parametrize("layout", [split_layout, packed_layout, cpu_layout])
def test_drafts_that_read_everything_are_the_targets_own(
    model: Transformer, batch: list[Row], layout: Layout
) -> None:
    for choice in (vegas(model, kept_ratio=1.0), stream(budget=128, sinks=1)):
        drafter = make_drafter(model, batch, choice, GAMMA, layout)
        drafts = drafter.run(len(batch)).tolist()
        for row, drafted in zip(batch, drafts, strict=True):
            if row.sampled:
                assert drafted == continued(model, row.committed, GAMMA)


def test_nothing_is_written_to_vllms_cache(model: Transformer, batch: list[Row]) -> None:
    drafter = make_drafter(model, batch, vegas(model, kept_ratio=0.3), GAMMA)
    before = [(keys.clone(), values.clone()) for keys, values in drafter.caches]
    drafter.run(len(batch) + 1)
    for (keys, values), (old_keys, old_values) in zip(drafter.caches, before, strict=True):
        assert torch.equal(keys.nan_to_num(9), old_keys.nan_to_num(9))
        assert torch.equal(values.nan_to_num(9), old_values.nan_to_num(9))


def test_sets_hold_the_entries_that_the_first_and_the_last_row_weigh_most(
    model: Transformer, batch: list[Row]
) -> None:
    drafter = make_drafter(model, batch, vegas(model, kept_ratio=0.2), GAMMA)
    drafter.run(len(batch))
    choice = drafter.choice
    assert isinstance(choice, VegasChoice)
    for r, row in enumerate(batch):
        if not row.sampled:
            continue
        length = len(row.text)
        # of a prompt only the last row votes, and ranks all of it
        ranked = length if row.prefilling else length - GAMMA
        place = torch.arange(length)
        slots = drafter.table[r].long()[place // BLOCK] * BLOCK + place % BLOCK
        keys = drafter.caches[1][0].flatten(0, 1)[slots].repeat_interleave(2, 1)
        logits = torch.einsum("mhd,nhd->hmn", drafter.hub.votes[1, r], keys) * 8**-0.5
        logits[:, 0, ranked:] = -torch.inf
        voters = slice(1, 2) if row.prefilling else slice(0, 2)
        weights = logits.softmax(-1)[:, voters].unflatten(0, (2, 2)).sum((1, 2))[:, :ranked]
        torch.testing.assert_close(choice.scores[1, r, :, :ranked], weights)
        kept = max(2, -(-ranked // 5))
        for head in range(2):
            expected = slots[weights[head].topk(kept).indices]
            chosen = choice.layer(1, r + 1)[r, head]
            assert set(chosen[chosen >= 0].tolist()) == set(expected.tolist())


def test_stream_reads_sinks_and_window_and_no_entry_twice(
    model: Transformer, batch: list[Row]
) -> None:
    drafter = make_drafter(model, batch, stream(budget=12, sinks=2), GAMMA)
    drafter.run(len(batch))
    begin = drafter.choice.tail_begin(drafter.planned)
    for r, row in enumerate(batch):
        chosen = drafter.choice.layer(1, r + 1)[r, 0]
        if not row.sampled:
            assert (chosen < 0).all()
            continue
        committed = len(row.committed) - 1
        kept = min(12, committed)
        place = torch.arange(committed)
        slots = (drafter.table[r].long()[place // BLOCK] * BLOCK + place % BLOCK).tolist()
        expected = slots[: min(2, kept)] + slots[committed - max(kept - 2, 0) :]
        assert chosen[chosen >= 0].tolist() == expected
        # the tail begins with the last token, behind what the sets may hold
        assert drafter.planned[r, RANKED] + begin[r] == committed


@pytest.mark.parametrize(
    ("layout", "rows", "settings"),
    [
        (split_layout, 3, {}),
        (packed_layout, 3, {"score": "logit", "share": "layer", "queries": "last"}),
        # what is planned of a single request is one number a column
        (packed_layout, 1, {}),
    ],
)
def test_kernels_choose_and_draft_as_plain_torch_does(
    model: Transformer, batch: list[Row], layout: Layout, rows: int, settings: dict[str, str]
) -> None:
    pytest.importorskip("triton")
    choice = vegas(model, kept_ratio=0.3, sinks=1, window=1, **settings)
    found = []
    for kernels in (False, True):
        drafter = make_drafter(model, batch[:rows], choice, GAMMA, layout, kernels)
        drafts = drafter.run(rows).tolist()
        sets = [sorted(s.tolist()) for s in drafter.choice.selected[:, :rows].flatten(0, 2)]
        found.append((drafts, sets))
    assert found[0] == found[1]


def test_an_unknown_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="no layout of the tested versions"):
        split_cache(torch.zeros(2, 9, 16, 2, 8), 2, 8)
    with pytest.raises(UsageError, match="no layout of the tested versions"):
        split_cache(torch.zeros(9, 2, 16, 8), 2, 8)


def test_buckets_hold_every_batch_and_waste_little() -> None:
    for most in (1, 7, 16, 64, 100, 1024):
        sizes = buckets_of(most)
        assert sizes == sorted(set(sizes))
        assert sizes[-1] == most
        for rows in range(1, most + 1):
            bucket = next(size for size in sizes if size >= rows)
            assert bucket <= max(2 * rows - 1, 1) or bucket == most
