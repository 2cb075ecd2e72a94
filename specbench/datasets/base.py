"""What a dataset is: rows brought to one shape, a prompt in parts, a reference and a score."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from specbench.errors import DataError
from specbench.parsing import is_plain, shown

Message = dict[str, str]

_TOO_LARGE = 10**300
_LONGEST_ID = 1000
_LONGEST_NAME, _MOST_NAMES = 60, 30


@dataclass(frozen=True)
class Item:
    """One row of a dataset, its fields under the dataset's own names."""

    id: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class PromptParts:
    """One message in three parts, of which only the middle of `body` may be cut out.

    Attributes
    ----------
    head, tail : str
        The instruction and the question: they stay whole, or the item is left out.
    body : str
        The long text between them; empty where nothing may be cut.
    role : str
        Who says the message.
    before, after : tuple of Message
        Turns around the message, for chats of several turns; they stay whole.
    token_ids : tuple of int, optional
        The prompt itself, already tokenised; the texts and the chat template are then unused.
    """

    head: str = ""
    body: str = ""
    tail: str = ""
    role: str = "user"
    before: tuple[Message, ...] = ()
    after: tuple[Message, ...] = ()
    token_ids: tuple[int, ...] | None = None

    def messages(self, body: str) -> list[Message]:
        """The whole chat with `body` in the place of the long text."""
        message = {"role": self.role, "content": self.head + body + self.tail}
        return [*self.before, message, *self.after]


class Dataset(ABC):
    """A benchmark's data and its usual instruction.

    Attributes
    ----------
    name, summary : str
        The name on the command line and one line about it.
    hub_id : str or None
        The repository on the Hugging Face hub.
    hub_configs : tuple of str
        Its configurations, read one after the other; empty for the only one.
    hub_split : str or None
        The split that is measured.
    fields : mapping of str to tuple of str
        Required field to the names under which a row may hold it, the hub's name first.
    id_fields : tuple of str
        Fields that may hold a row's id; without one an id is made from its number.
    default_new_tokens : int
        New tokens a request where the user doesn't say.
    default_context_len : int or None
        Longest prompt in tokens where the user doesn't say; `None`: as long as the data.
    default_thinking : bool
        Whether models with a thinking mode use it.
    score_name : str or None
        What `score` measures, for the tables; `None` where nothing can be scored here.
    sample_fills_context : bool
        Whether the built-in sample writes items as long as the context, or of natural length.
    """

    name: str
    summary: str
    hub_id: str | None = None
    hub_configs: tuple[str, ...] = ()
    hub_split: str | None = None
    fields: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    id_fields: tuple[str, ...] = ("id", "_id")
    default_new_tokens: int = 512
    default_context_len: int | None = None
    default_thinking: bool = True
    score_name: str | None = None
    sample_fills_context: bool = False

    def normalise(self, row: Mapping[str, Any], index: int) -> Item:
        """The row as an item, its fields under the dataset's own names.

        Raises
        ------
        DataError
            A required field is missing, empty or of a wrong type.
        """
        found = {name: text_field(row, names) for name, names in self.fields.items()}
        return Item(self.item_id(row, index), found)

    def item_id(self, row: Mapping[str, Any], index: int) -> str:
        """The row's own id, or the dataset's name and the row's number."""
        for field in self.id_fields:
            if row.get(field) not in (None, ""):
                return id_text(row, field)
        return f"{self.name}-{index}"

    @abstractmethod
    def parts(self, item: Item, *, cot: bool) -> PromptParts:
        """The prompt of an item.

        Parameters
        ----------
        item : Item
            What `normalise` returned.
        cot : bool
            Ask for reasoning in the answer; for models that don't think on their own.
        """

    def reference(self, item: Item) -> str | None:
        """The expected answer, or `None` where there is none."""
        return None

    def score(self, item: Item, text: str) -> float | None:
        """How right the model's text is, 0 to 1, or `None` where that can't be computed here."""
        return None


def text_field(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The text that `row` holds under the first of `names` that it has; numbers become text.

    Raises
    ------
    DataError
        None of the names is there, or the value is empty or no text.
    """
    for name in names:
        if name not in row:
            continue
        value = row[name]
        if is_plain(value, (int, float)):
            return number_text(row, name)
        if not isinstance(value, str):
            raise DataError(f"field {name!r} must be text, not {type(value).__name__}")
        if not value.strip():
            raise DataError(f"field {name!r} is empty")
        return value
    wanted = " or ".join(repr(name) for name in names)
    raise DataError(f"no field {wanted}; the fields present are: {field_names(row)}")


def number_text(row: Mapping[str, Any], name: str) -> str:
    """The text of the number that `row` holds under `name`.

    Raises
    ------
    DataError
        It is not finite, or an integer that nobody writes.
    """
    value = row[name]
    if (isinstance(value, float) and not math.isfinite(value)) or abs(value) >= _TOO_LARGE:
        raise DataError(f"field {name!r} is {shown(value)}, not a number to read")
    return str(value)


def id_text(row: Mapping[str, Any], name: str) -> str:
    """The id that `row` holds under `name`.

    Raises
    ------
    DataError
        It is neither a text nor a number.
    """
    value = row[name]
    if is_plain(value, (int, float)):
        return number_text(row, name)
    if not isinstance(value, str):
        raise DataError(f"field {name!r} must be a text or a number, not {type(value).__name__}")
    if len(value) > _LONGEST_ID:
        raise DataError(f"field {name!r} has {len(value):,} characters, more than any id")
    return value


def field_names(row: Mapping[str, Any]) -> str:
    """The names of a row's fields, for messages."""
    names = [str(name)[:_LONGEST_NAME] for name in list(row)[:_MOST_NAMES]]
    more = [f"and {len(row) - len(names)} more"] if len(row) > len(names) else []
    return ", ".join(names + more) or "none"
