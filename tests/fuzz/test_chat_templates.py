"""Chat templates: a text in bounded time and memory, or one message; never code."""

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specbench.datasets import template as template_module
from specbench.datasets.base import Item
from specbench.datasets.prompt_file import PromptFile
from specbench.datasets.prompts import PromptList, build_prompts
from specbench.errors import DataError
from tests.datasets.conftest import CHAT_TEMPLATE, make_tokenizer
from tests.support.hostile import damaged, examples, odd_values, outcome


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return make_tokenizer(CHAT_TEMPLATE)


def prompt(tokenizer: Any, template: Any, text: str = "hello") -> PromptList:
    tokenizer.chat_template = template
    return build_prompts(PromptFile("p"), [Item("a", {"prompt": text})], tokenizer)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "1 s"),
        ("{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}", "within 1 s|Recursion"),
        ("{{ messages * 10**9 }}", "more than 256 MiB"),
        ("{{ 'a' * 10**11 }}", "more than 256 MiB"),
        ("{% set x = 10**6 %}{{ x ** x ** 3 }}", "no text within 1 s|Memory"),
        ("{{ 'a'.ljust(10**11) }}", "more than 256 MiB"),
        ("{{ '%099999999999d' % 1 }}", "fails: |more than 256 MiB"),
        ("{{ messages | tojson(indent=10**10) }}", "fails: |more than 256 MiB"),
        ("{{ range(10**9) | list }}", "fails: OverflowError"),
        ("{{ 'x' * 9000000 }}", "makes 9,000,000 characters of 5"),
        ("{{ raise_exception('no') }}", "refuses it: no"),
        ("{{ messages[9].content }}", "refuses it: "),
        ("{{ 1 / 0 }}", "fails: ZeroDivisionError"),
        ("{% if %}", "refuses it: "),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "fails: RecursionError"),
        ("{{ '\\ud800' }}", "fails: UnicodeEncodeError|refuses"),
        ("{% include '/etc/passwd' %}", "fails: TypeError"),
        ("x" * (2**20 + 1), "has 1,048,577 characters"),
    ],
)
def test_a_hostile_template_is_bounded(
    template: str, message: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_module, "SECONDS", 1.0)
    monkeypatch.setattr(template_module, "BYTES", 2**28)
    began = time.monotonic()
    with pytest.raises(DataError, match=message):
        prompt(tokenizer, template)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ messages[0].content) }}",
        "{{ lipsum.__globals__['os'].popen('touch ' ~ messages[0].content).read() }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ ('{0.__class__.__mro__}').format(messages) }}",
        "{{ messages | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{% set _ = messages.append(1) %}{{ messages }}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ dict.fromkeys.__func__.__globals__ }}",
    ],
)
def test_a_template_reaches_no_python(template: str, tokenizer: Any, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    result = outcome(lambda: prompt(tokenizer, template, str(marker)), "item a: the chat template")
    assert not marker.exists()
    if isinstance(result, PromptList):
        text = tokenizer.decode(result.prompts[0].token_ids)
        assert "class" not in text
        assert "module" not in text
        assert "function" not in text


@examples(15)
@given(data=st.data())
def test_a_damaged_template(data: st.DataObject, tokenizer: Any) -> None:
    content = data.draw(damaged(CHAT_TEMPLATE.encode()))
    text = content.decode(errors="replace")
    result = outcome(lambda: prompt(tokenizer, text), "chat template", "no prompt is left")
    if isinstance(result, PromptList):
        assert all(isinstance(token, int) for token in result.prompts[0].token_ids)


@examples(15)
@given(value=odd_values())
def test_a_template_that_is_something_else(value: Any, tokenizer: Any) -> None:
    outcome(lambda: prompt(tokenizer, value), "chat template")


def test_the_process_ends_with_the_prompts(tokenizer: Any) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    assert prompt(tokenizer, CHAT_TEMPLATE).prompts
    with pytest.raises(DataError):
        prompt(tokenizer, "{{ raise_exception('no') }}")
    assert children() == before
