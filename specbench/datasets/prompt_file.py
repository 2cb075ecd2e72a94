"""``--dataset file:PATH``: prompts from a file of the user's own."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specbench.datasets.base import (
    Dataset,
    Item,
    Message,
    PromptParts,
    field_names,
    id_text,
    text_field,
)
from specbench.errors import DataError
from specbench.parsing import shown

FORMS = ("prompt", "messages", "token_ids")


class PromptFile(Dataset):
    """Rows with a ``prompt`` (text), ``messages`` (a chat) or ``token_ids``, and an optional id.

    A prompt that is too long loses its middle; a chat, the middle of its longest message.
    """

    summary = "a JSONL file of prompts, chats or token ids"

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.name = f"file:{self.path.name}"

    def normalise(self, row: Mapping[str, Any], index: int) -> Item:
        """See `Dataset.normalise`; a row must hold exactly one of the three forms."""
        forms = [form for form in FORMS if form in row]
        if len(forms) != 1:
            found = " and ".join(forms) or f"none (fields: {field_names(row)})"
            raise DataError(f"a row needs exactly one of {', '.join(FORMS)}; found {found}")
        form = forms[0]
        check = {"prompt": _prompt, "messages": _messages, "token_ids": _token_ids}[form]
        return Item(self.item_id(row, index), {form: check(row)})

    def item_id(self, row: Mapping[str, Any], index: int) -> str:
        """The row's own id, or its number."""
        return str(index) if row.get("id") in (None, "") else id_text(row, "id")

    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The prompt as it stands, without an instruction of ours."""
        fields = item.fields
        if "token_ids" in fields:
            return PromptParts(token_ids=fields["token_ids"])
        if "prompt" in fields:
            return PromptParts(body=fields["prompt"])
        messages: tuple[Message, ...] = fields["messages"]
        longest = max(range(len(messages)), key=lambda i: len(messages[i]["content"]))
        return PromptParts(
            body=messages[longest]["content"],
            role=messages[longest]["role"],
            before=messages[:longest],
            after=messages[longest + 1 :],
        )


def _prompt(row: Mapping[str, Any]) -> str:
    if not isinstance(row["prompt"], str):
        raise DataError(f"field 'prompt' must be text, not {type(row['prompt']).__name__}")
    return text_field(row, ("prompt",))


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    messages = row["messages"]
    if not isinstance(messages, list) or not messages:
        raise DataError("field 'messages' must be a list of messages that is not empty")
    for number, message in enumerate(messages):
        well_formed = isinstance(message, dict) and all(
            isinstance(message.get(key), str) for key in ("role", "content")
        )
        if not well_formed:
            raise DataError(f"message {number} must be an object with the texts role and content")
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)


def _token_ids(row: Mapping[str, Any]) -> tuple[int, ...]:
    ids = row["token_ids"]
    if not isinstance(ids, list) or not ids:
        raise DataError("field 'token_ids' must be a list of integers that is not empty")
    for value in ids:
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise DataError(f"field 'token_ids' holds {shown(value)}, which is no token id")
    return tuple(ids)
