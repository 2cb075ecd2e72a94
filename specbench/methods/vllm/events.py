"""What vLLM's process may say: one JSON object a line, checked before it is believed."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from specbench.parsing import parse_json
from specbench.results.facts import first_error
from specbench.results.records import Real

LONGEST_LINE = 1 << 28
_Count = Annotated[int, Field(ge=0, le=2**53)]
_Counter = _Count | Real | list[_Count]


class _Event(BaseModel):
    model_config = ConfigDict(strict=True)


class _Done(_Event):
    model_config = ConfigDict(strict=True, extra="allow")
    event: Literal["done"]
    package: str = "vllm"
    version: str = "unknown"


class _Failed(_Event):
    event: Literal["error"]
    kind: str
    message: str


class _Filled(_Event):
    event: Literal["filled"]
    index: int
    seconds: Real
    tokens: _Count
    cached: _Count


class _Decoded(_Event):
    event: Literal["decoded"]
    tokens: _Count


class _Counted(_Event):
    event: Literal["counted"]
    fill_hits: _Count
    decode_hits: _Count
    before: dict[str, _Counter]
    after: dict[str, _Counter]


class _Finished(_Event):
    event: Literal["finished"]
    index: int
    output_ids: list[_Count]
    reason: str
    decode_s: Real
    committed: list[Annotated[int, Field(ge=1, le=2**20)]]
    step_s: list[Real]
    running: list[_Count]

    @model_validator(mode="after")
    def _one_entry_a_step(self) -> "_Finished":
        if not len(self.committed) == len(self.step_s) == len(self.running):
            raise ValueError("committed, step_s and running differ in length")
        return self


_KINDS: dict[str, type[_Event]] = {
    "done": _Done,
    "error": _Failed,
    "filled": _Filled,
    "decoded": _Decoded,
    "counted": _Counted,
    "finished": _Finished,
}


def parse_event(line: bytes) -> dict[str, Any]:
    """The event of a line, its fields of the types that it must have.

    Raises
    ------
    ValueError
        No JSON, an unknown event, or a field that is missing or of another type.
    """
    content = parse_json(line)
    name = content.get("event") if isinstance(content, dict) else None
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ValueError("it names no known event")
    try:
        return kind.model_validate(content).model_dump()
    except ValidationError as error:
        raise ValueError(f"{name}: {first_error(error)}") from error
