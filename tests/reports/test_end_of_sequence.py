"""Reports on end tokens: inside an accepted block, proposed by a draft, in the prompt."""

from dataclasses import replace

import pytest
import torch

from specbench.engine.batch import Batch
from specbench.engine.model import Transformer
from specbench.methods.base import Draft, EngineMethod, TreeDraft
from specbench.methods.lookup import Lookup, LookupParameters
from tests.support.every_method import EVERY, Factory, certain, engine_for, tokens_of
from tests.support.tiny import autoregressive, decode, prompts, tiny_model

MODEL = tiny_model(1)
PROMPTS = prompts(1, [40, 23])


def ending(*eos: int) -> Transformer:
    """The model, with end tokens."""
    model = tiny_model(1)
    model.config = replace(model.config, eos_ids=eos)
    return model


def greedy(model: Transformer = MODEL, new: int = 14) -> dict[int, list[int]]:
    method = autoregressive()
    return tokens_of(decode(engine_for(method, model), method, PROMPTS, new))


@pytest.mark.parametrize("name", certain(MODEL, 5))
def test_eos_inside_an_accepted_block_counts_what_was_committed(name: str) -> None:
    """vllm#56101: EOS is draft 3 of 5 accepted ones; 6 tokens were counted, 3 are committed."""
    plain = greedy()[0]
    # the first token is the prefill's, so that draft 3 of the first step is the fourth
    eos = plain[3]
    assert eos not in plain[:3]
    model = ending(eos)
    method = certain(model, 5)[name]()
    found = decode(engine_for(method, model), method, PROMPTS[:1], 14)[0]
    assert found.output_ids == plain[:4]
    assert found.finish_reason == "eos"
    assert (found.drafted, found.accepted, found.committed) == ([5], [3], [3])


class KnownTree(Lookup):
    """Drafts a path of known tokens as a tree, beside it a wrong child of the root."""

    known: tuple[int, ...] = ()

    @property
    def nodes(self) -> int:
        """The path and one more."""
        return len(self.known) + 1

    def draft(self, batch: Batch) -> TreeDraft:  # type: ignore[override]
        """The same at every step."""
        wrong = (self.known[0] + 1) % 32
        tokens = torch.tensor([[wrong, *self.known]]).expand(batch.rows, -1)
        parents = torch.tensor([[-1, -1, *range(1, len(self.known))]]).expand(batch.rows, -1)
        return TreeDraft(tokens, parents)


def test_eos_inside_an_accepted_path_of_a_tree() -> None:
    """vllm#56101 again: the third of five nodes on the accepted path is EOS."""
    plain = greedy()[0]
    method = KnownTree(LookupParameters(gamma=5))
    method.known = tuple(plain[1:6])
    found = decode(engine_for(method, ending(plain[3])), method, PROMPTS[:1], 14)[0]
    assert found.output_ids == plain[:4]
    assert (found.drafted, found.accepted, found.committed) == ([5], [3], [3])


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_nothing_follows_an_eos_accepted_mid_block(make: Factory) -> None:
    """transformers#47912: a token that greedy decoding produces is declared EOS; outputs ran on."""
    plain = greedy()
    for place in (0, 2, 5):
        eos = plain[0][place]
        model, method = ending(eos), make()
        found = decode(engine_for(method, model), method, PROMPTS, 14)
        for index, whole in plain.items():
            expected = whole[: whole.index(eos) + 1] if eos in whole else whole
            assert found[index].output_ids == expected
            assert found[index].finish_reason == ("eos" if eos in whole else "length")
            assert sum(found[index].committed) == len(expected) - 1


class Proposing(Lookup):
    """Drafts one token, whatever the text is."""

    token = 0

    def draft(self, batch: Batch) -> Draft | None:
        """As many as gamma."""
        return Draft(torch.full((batch.rows, self.gamma), self.token))


def test_a_draft_that_proposes_eos_ends_nothing() -> None:
    """The end is the target's to say: a rejected EOS leaves the request running."""
    plain = greedy()
    eos = next(t for t in range(32) if all(t not in whole for whole in plain.values()))
    model = ending(eos)
    method = Proposing(LookupParameters(gamma=4))
    method.token = eos
    found = decode(engine_for(method, model), method, PROMPTS, 14)
    assert tokens_of(found) == plain
    assert {g.finish_reason for g in found.values()} == {"length"}
    assert all(set(g.accepted) == {0} for g in found.values())


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
def test_eos_in_the_prompt_ends_nothing(make: Factory) -> None:
    """Chat templates end every turn of the prompt with the token that ends an answer."""
    plain = greedy()
    eos = next(t for t in PROMPTS[0] if all(t not in whole for whole in plain.values()))
    model, method = ending(eos), make()
    assert tokens_of(decode(engine_for(method, model), method, PROMPTS, 14)) == plain


def test_ignoring_eos_decodes_to_the_limit() -> None:
    """dynamo#12918: what runs past its end is step times only; the records say so by its flag."""
    eos = greedy()[0][1]
    method: EngineMethod = certain(MODEL, 5)["vegas"]()
    engine = engine_for(method, ending(eos), ignore_eos=True)
    found = decode(engine, method, PROMPTS, 14)
    assert tokens_of(found) == greedy()
    assert {g.finish_reason for g in found.values()} == {"length"}
