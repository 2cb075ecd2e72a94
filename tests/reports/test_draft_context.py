"""Reports on prompts that are longer than the context of the model that drafts."""

import pytest

from specbench.errors import ContextTooLongError
from specbench.methods.base import EngineMethod
from tests.support.every_method import engine_for, tokens_of
from tests.support.tiny import (
    autoregressive,
    decode,
    prompts,
    stream_draft,
    tiny_model,
    with_draft,
)

CONTEXT = 64
TARGET = tiny_model(7)


def reaching(context: int, kind: str) -> EngineMethod:
    """A method whose drafter has the target's weights and a context of its own."""
    drafter = tiny_model(7, max_len=300, max_position_embeddings=context)
    if kind == "trees":
        return with_draft(drafter, top_chunks=9, nodes=8, draft_window=32)
    return stream_draft(drafter, budget=48, draft_window=32)


@pytest.mark.parametrize("kind", ["trees", "chains"])
def test_a_prompt_beyond_the_drafters_context_is_drafted_for(kind: str) -> None:
    """vllm#57941, #21986, PR#22935: a prompt beyond the drafter's context was an illegal access.

    The drafter reads what it keeps at positions of its own, so that a context of 64 serves a prompt
    of 190: outputs are the target's, and both prompts are drafted for in every step.
    """
    token_ids = prompts(3, [190, 20])
    base, method = autoregressive(), reaching(CONTEXT, kind)
    expected = tokens_of(decode(engine_for(base, TARGET), base, token_ids, 16))
    found = decode(engine_for(method, TARGET), method, token_ids, 16)
    assert tokens_of(found) == expected
    # of the short one nothing is left out, and its drafter has the target's own weights
    assert sum(found[1].accepted) >= 9
    for generated in found.values():
        assert generated.drafted is not None
        assert all(generated.drafted[:-1])


@pytest.mark.parametrize("kind", ["trees", "chains"])
def test_what_the_drafter_can_never_hold_is_refused_in_words(kind: str) -> None:
    """vllm#5342, sglang#3574: a None error, or a fault on the device, in place of words."""
    method = reaching(32, kind)
    message = r"--draft-model tiny holds 32 tokens, and its drafts would read \d\d: lower"
    with pytest.raises(ContextTooLongError, match=message) as refused:
        decode(engine_for(method, TARGET), method, prompts(3, [190]), 4)
    assert refused.value.exit_status == 2
