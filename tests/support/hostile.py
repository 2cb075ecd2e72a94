"""Hostile input for parsers: valid files with a part replaced, and the bounds that must hold."""

import copy
import json
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from specbench.errors import SpecbenchError

SECONDS = 5.0
BYTES = 768 * 2**20
SLOW_EXAMPLES = int(os.environ.get("SPECBENCH_FUZZ_EXAMPLES", "0"))


class Hang(BaseException):
    """An example that took longer than `SECONDS`."""


def examples(count: int) -> settings:
    """`count` examples, always the same; SPECBENCH_FUZZ_EXAMPLES others where it is set."""
    checks = (HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large)
    random = SLOW_EXAMPLES > 0
    return settings(
        max_examples=SLOW_EXAMPLES if random else count,
        derandomize=not random,
        deadline=None,
        database=None,
        suppress_health_check=checks,
    )


@contextmanager
def bounded(seconds: float = SECONDS, extra_bytes: int = BYTES) -> Iterator[None]:
    """Let the block take no more than `seconds`, nor map more than `extra_bytes` of new memory."""

    def expire(signum: int, frame: FrameType | None) -> None:
        raise Hang(f"no answer within {seconds} s")

    before = signal.signal(signal.SIGALRM, expire)
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as statm:
        mapped = int(statm.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (mapped + extra_bytes, hard))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def outcome(read: Callable[[], Any], *names: str) -> Any:
    """What `read` returns, or the SpecbenchError it raised; anything else fails the test.

    An error must be one short message that holds one of `names`, where there are any.
    """
    try:
        with bounded():
            return read()
    except SpecbenchError as error:
        message = str(error)
        assert message.strip()
        assert len(message) < 4000, f"{len(message)} characters: {message[:300]}"
        assert not names or any(name in message for name in names), message
        message.encode()  # a terminal must be able to show it
        return error


def odd_values() -> st.SearchStrategy[Any]:
    """Values of every JSON type, the ones among them that parsers stumble over."""
    return st.sampled_from(_ODD).map(copy.deepcopy) | st.recursive(
        st.none() | st.booleans() | st.integers(-3, 70000) | st.floats() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
        max_leaves=4,
    )


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


_ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2, 3, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**30, 10**400,
    0.0, -0.5, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"),
    "", " ", "0", "1", "-1", "nan", "1e400", "x" * 5000, "\0", "a\0b", "\ud800", "\ufeff", "\r\n",
    "../../etc/passwd", "/etc/passwd", "..", ".", "~", "*", "[a-", "{{ 1 }}", "%s%n", "<b>&", "é𝄞",
    [], {}, [None], [[]], [{}], [1, "a"], [0], [2**70], {"": None}, {"a": {"b": []}}, _nested(50),
]  # fmt: skip


def places(value: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value within `value`, its own first."""
    found = [before]
    if isinstance(value, dict):
        found += [path for key in value for path in places(value[key], (*before, key))]
    elif isinstance(value, list):
        found += [path for key in range(len(value)) for path in places(value[key], (*before, key))]
    return found


@st.composite
def mutated(draw: st.DrawFn, valid: Any, most: int = 2) -> Any:
    """`valid` (JSON) with one to `most` of its values replaced, taken out, or put in twice."""
    value = copy.deepcopy(valid)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(places(value)))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                value = draw(odd_values())
            elif isinstance(value, dict):
                value[draw(st.text(max_size=6))] = draw(odd_values())
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        action = draw(st.sampled_from(("replace", "replace", "replace", "drop", "more")))
        if action == "replace":
            holder[path[-1]] = draw(odd_values())
        elif action == "drop":
            del holder[path[-1]]
        elif isinstance(holder, list):
            holder.insert(path[-1], copy.deepcopy(holder[path[-1]]))
        else:
            holder[draw(st.text(max_size=6))] = copy.deepcopy(holder[path[-1]])
    return value


def to_json(value: Any, **options: Any) -> str:
    """JSON of `value` as Python writes it: with NaN, and integers of any length."""
    return json.dumps(value, **options)


@st.composite
def damaged(draw: st.DrawFn, valid: bytes, most: int = 3, within: int | None = None) -> bytes:
    """`valid` with bytes changed, numbers set, parts cut out, doubled, put in, or the end lost.

    The changes begin in the first `within` bytes.
    """
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, max(0, min(within or len(data), len(data)) - 1)))
        kind = draw(st.sampled_from(("byte", "u32", "u64", "cut", "double", "insert", "end")))
        if kind == "byte" and data:
            data[at] = draw(st.integers(0, 255))
        elif kind == "u32":
            data[at : at + 4] = struct.pack("<I", draw(st.sampled_from(_U32)))
        elif kind == "u64":
            data[at : at + 8] = struct.pack("<Q", draw(st.sampled_from(_U64)))
        elif kind == "cut":
            del data[at : at + draw(st.integers(1, 64))]
        elif kind == "double":
            part = data[at : at + draw(st.integers(1, 64))]
            data[at:at] = part
        elif kind == "insert":
            data[at:at] = draw(st.sampled_from(_BYTES) | st.binary(max_size=16))
        else:
            del data[at:]
    return bytes(data)


_U32 = (0, 1, 2, 4, 8, 9, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1)
_U64 = (0, 1, 2, 2**16, 2**31, 2**32, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 1)
_BYTES = (
    b"\0", b"\xff", b"\xef\xbb\xbf", b"\r\n", b"\n", b"[" * 3000, b'{"a":' * 3000, b"9" * 6000,
    b"\xed\xa0\x80", b'"\\ud800"', b"NaN", b'"', b"{", b"}", b",",
)  # fmt: skip
