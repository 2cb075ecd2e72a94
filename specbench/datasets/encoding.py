"""Chats to token ids: the model's chat template, its thinking mode, control tokens in data."""

from typing import Any

from specbench.datasets.base import Message
from specbench.datasets.template import TemplateProcess, template_of
from specbench.errors import DataError, UsageError


def takes_thinking(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template has a thinking mode to switch."""
    return "enable_thinking" in (template_of(tokenizer) or "")


class ChatEncoder:
    """Chat messages to token ids with one tokenizer and one set of template options.

    Parameters
    ----------
    tokenizer : transformers tokenizer
    chat_template : bool
        Wrap the messages in the tokenizer's chat template; otherwise their texts follow each other,
        an empty line between them.
    thinking : bool
        Switch the thinking mode of a template that has one.

    Attributes
    ----------
    template : str or None
        The chat template in use.
    thinking : bool
        Whether the model will think.

    Raises
    ------
    UsageError
        The tokenizer has no chat template, or thinking was asked of a template without it.
    """

    def __init__(self, tokenizer: Any, chat_template: bool, thinking: bool = False) -> None:
        self.tokenizer = tokenizer
        self.template: str | None = None
        self._options: dict[str, bool] = {}
        if chat_template:
            self.template = template_of(tokenizer)
            if self.template is None:
                raise UsageError(
                    "the model's tokenizer has no chat template; "
                    "pass --no-chat-template to send the bare prompts"
                )
            if takes_thinking(tokenizer):
                self._options = {"enable_thinking": thinking}
        if thinking and not self._options:
            raise UsageError("--thinking: the prompts use no chat template with a thinking mode")
        self.thinking = thinking
        self._process = TemplateProcess(tokenizer, self._options)
        self._control = [
            token.content for token in tokenizer.added_tokens_decoder.values() if token.special
        ]

    def __call__(self, messages: list[Message], item_id: str) -> list[int]:
        """Token ids of a chat, up to where the model's answer begins.

        Raises
        ------
        DataError
            See `TemplateProcess.render`; or the template drops a message where a text holds a
            control token.
        """
        contents = [message["content"] for message in messages]
        plain = not any(token in content for content in contents for token in self._control)
        if self.template is None:
            text = "\n\n".join(contents)
            return self._tokenise(text, add_special_tokens=True, split_special_tokens=not plain)
        if plain:
            return self._tokenise(self._process.render(messages, item_id))
        return self._tokenise_apart(messages, item_id)

    def close(self) -> None:
        """End the process that renders the template."""
        self._process.close()

    def _tokenise_apart(self, messages: list[Message], item_id: str) -> list[int]:
        """Tokens of the template around the texts, and of each text split down to plain text."""
        marks = [f"\ue000{number}\ue001" for number in range(len(messages))]
        marked = [
            {**message, "content": mark} for message, mark in zip(messages, marks, strict=True)
        ]
        rest = self._process.render(marked, item_id)
        ids: list[int] = []
        for message, mark in zip(messages, marks, strict=True):
            around, found, rest = rest.partition(mark)
            if not found:
                raise DataError(
                    f"item {item_id} holds a control token of the model in its text, and the chat "
                    "template drops one of its messages; take the token out, or use "
                    "--no-chat-template"
                )
            ids += self._tokenise(around)
            ids += self._tokenise(message["content"], split_special_tokens=True)
        return ids + self._tokenise(rest)

    def _tokenise(
        self, text: str, add_special_tokens: bool = False, split_special_tokens: bool = False
    ) -> list[int]:
        encoded = self.tokenizer(
            text,
            add_special_tokens=add_special_tokens,
            split_special_tokens=split_special_tokens,
            verbose=False,
        )
        return list(encoded["input_ids"])
