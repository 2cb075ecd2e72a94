"""The frozen list of prompts of a run: chat template, length limit, hashes."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specbench.datasets.base import Dataset, Item, PromptParts
from specbench.datasets.encoding import ChatEncoder, takes_thinking
from specbench.errors import DataError, UsageError

CUT_MARK = "\n\n[...]\n\n"
TOO_LONG = "too long"
_SNAP = 32
_MAX_PROBES = 24


@dataclass(frozen=True)
class Prompt:
    """One prompt, ready for the engine.

    Attributes
    ----------
    index : int
        Position in the list.
    item_id : str
    token_ids : list of int
    original_tokens : int
        Length before the cut.
    truncated : bool
        Whether the middle of its long text was cut out.
    reference : str or None
        The expected answer.
    """

    index: int
    item_id: str
    token_ids: list[int]
    original_tokens: int
    truncated: bool
    reference: str | None


@dataclass(frozen=True)
class PromptList:
    """The prompts of one dataset and what identifies them.

    Attributes
    ----------
    prompts : list of Prompt
    items : list of Item
        The item of each prompt, for scoring.
    skipped : dict of str to int
        Items left out, by reason.
    template_sha256 : str or None
        Hash of the chat template, `None` where none was used.
    token_ids_sha256 : str
        Hash over the JSON text of all prompts' token ids, in order.
    thinking, cot : bool
        Whether the model thinks on its own, and whether the prompt asks it to reason.
    note : str or None
        What the user should know, such as fewer prompts than asked for.
    """

    prompts: list[Prompt]
    items: list[Item]
    skipped: dict[str, int]
    template_sha256: str | None
    token_ids_sha256: str
    thinking: bool
    cot: bool
    note: str | None


def build_prompts(
    dataset: Dataset,
    items: Sequence[Item],
    tokenizer: Any,
    *,
    context_len: int | None = None,
    num_prompts: int | None = None,
    chat_template: bool = True,
    thinking: bool | None = None,
    cot: bool | None = None,
    vocab_size: int | None = None,
) -> PromptList:
    """Turn items into token ids that never exceed the context.

    Parameters
    ----------
    dataset : Dataset
    items : sequence of Item
        Used in order; one that cannot be cut to the limit is skipped and the next takes its place.
    tokenizer : transformers tokenizer or None
        Without one only items that hold token ids can be used.
    context_len : int, optional
        Longest prompt in tokens, chat template included.
    num_prompts : int, optional
        How many prompts; all by default.
    chat_template : bool
        Wrap the prompt in the model's chat template.
    thinking : bool, optional
        Thinking mode of models that have one; by default the dataset's habit.
    cot : bool, optional
        Ask for reasoning in the answer; by default where the model doesn't think on its own.
    vocab_size : int, optional
        The model's; ids that a file gives must be below it (by default the tokenizer's length).

    Raises
    ------
    UsageError
        No chat template, or thinking asked of a model without such a mode.
    DataError
        No prompt is left, a chat that the template refuses, or a token id outside the vocabulary.

    Notes
    -----
    A control token written out in the data, such as ``<|im_end|>``, is tokenised as plain text.
    """
    encoder = _encoder(dataset, items, tokenizer, chat_template, thinking)
    thinks = encoder is not None and encoder.thinking
    template = None if encoder is None else encoder.template
    if vocab_size is None and tokenizer is not None:
        vocab_size = len(tokenizer)
    cot = not thinks if cot is None else cot
    wanted = len(items) if num_prompts is None else num_prompts
    prompts: list[Prompt] = []
    used: list[Item] = []
    too_long = 0
    try:
        for item in items:
            if len(prompts) == wanted:
                break
            fitted = _fit(dataset.parts(item, cot=cot), encoder, context_len, item.id, vocab_size)
            if fitted is None:
                too_long += 1
                continue
            ids, original = fitted
            cut = len(ids) != original
            reference = dataset.reference(item)
            prompts.append(Prompt(len(prompts), item.id, ids, original, cut, reference))
            used.append(item)
    finally:
        if encoder is not None:
            encoder.close()
    if not prompts:
        raise DataError(
            f"dataset {dataset.name}: no prompt is left of {len(items)} items ({TOO_LONG}: "
            f"{too_long} of them exceed {context_len} tokens even with their text cut); "
            "raise --context-len"
        )
    note = None
    if len(prompts) < wanted:
        note = f"{dataset.name}: {len(prompts)} prompts of the {wanted} asked for"
        note += f" ({too_long} items are {TOO_LONG})" if too_long else ": the source has no more"
    return PromptList(
        prompts=prompts,
        items=used,
        skipped={TOO_LONG: too_long} if too_long else {},
        template_sha256=_sha256(template) if template else None,
        token_ids_sha256=hash_token_ids([prompt.token_ids for prompt in prompts]),
        thinking=thinks,
        cot=cot,
        note=note,
    )


def _encoder(
    dataset: Dataset,
    items: Sequence[Item],
    tokenizer: Any,
    chat_template: bool,
    thinking: bool | None,
) -> ChatEncoder | None:
    """The encoder for items of text; `None` where every item holds token ids."""
    if all("token_ids" in item.fields for item in items):
        return None
    if tokenizer is None:
        raise UsageError(
            f"dataset {dataset.name} holds text, but the model has no tokenizer; "
            "give token_ids in a file: --dataset file:PATH"
        )
    if thinking is None:
        thinking = dataset.default_thinking and chat_template and takes_thinking(tokenizer)
    return ChatEncoder(tokenizer, chat_template, thinking)


def _fit(
    parts: PromptParts,
    encoder: ChatEncoder | None,
    limit: int | None,
    item_id: str,
    vocab: int | None,
) -> tuple[list[int], int] | None:
    """Token ids within the limit and the original count; `None` where no cut can do it."""
    if parts.token_ids is not None:
        ids = list(parts.token_ids)
        _check_vocabulary(ids, vocab, item_id)
        if limit is None or len(ids) <= limit:
            return ids, len(ids)
        right = limit // 2
        return ids[: limit - right] + ids[len(ids) - right :], len(ids)
    assert encoder is not None, "an item of text came without an encoder"
    full = encoder(parts.messages(parts.body), item_id)
    if limit is None or len(full) <= limit:
        return full, len(full)
    best = encoder(parts.messages(CUT_MARK), item_id) if parts.body else full
    if len(best) > limit:
        return None
    # Tokenisation isn't additive, so the characters to keep are searched for by trial.
    low, high, high_count = 0, len(parts.body), len(full)
    slack = 2 + limit // 1000
    for probe in range(_MAX_PROBES):
        if high - low <= 1 or limit - len(best) <= slack:
            break
        share = 0.5 if probe % 3 == 2 else (limit - len(best)) / (high_count - len(best))
        keep = min(max(low + int((high - low) * share), low + 1), high - 1)
        ids = encoder(parts.messages(cut_middle(parts.body, keep)), item_id)
        if len(ids) <= limit:
            low, best = keep, ids
        else:
            high, high_count = keep, len(ids)
    return best, len(full)


def cut_middle(text: str, keep: int) -> str:
    """`text` with at most `keep` characters of it, its middle replaced by `CUT_MARK`.

    The cuts move outwards to the nearest white space where there is some within 32 characters.
    """
    right = keep // 2
    head = text[: keep - right]
    tail = text[len(text) - right :]
    for start in range(len(head) - 1, max(len(head) - 1 - _SNAP, -1), -1):
        if head[start].isspace():
            head = head[:start]
            break
    for start in range(min(_SNAP, len(tail))):
        if tail[start].isspace():
            tail = tail[start + 1 :]
            break
    return head.rstrip() + CUT_MARK + tail.lstrip()


def _check_vocabulary(ids: list[int], vocab: int | None, item_id: str) -> None:
    if vocab is not None and max(ids) >= vocab:
        raise DataError(
            f"item {item_id}: token id {max(ids)} is outside the model's vocabulary of {vocab}"
        )


def hash_token_ids(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 over the JSON text of all prompts' token ids, in order."""
    return _sha256(json.dumps(list(map(list, prompts)), separators=(",", ":")))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
