"""Keeps secrets and foreign paths out of what is written to disk."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HIDDEN = "***"

_NAMES = (
    r"(?:(?:hf|hub|api|auth|access|bearer|github|session)[-_]token"
    r"|(?:pg)?passw(?:or)?d|passphrase|secret|(?:api|access|secret|private)[-_]?key)"
)
# Counts of tokens and the tokens of a vocabulary (max_new_tokens, eos_token) are no secrets.
_SECRET_NAME = re.compile(rf"(?:^-*token|(?:^|[-_.]){_NAMES})$", re.I)
# The same within running text: name=value, name: value, and quoted as in JSON and Python.
_SECRET_SETTING = re.compile(
    rf"""(?<![A-Za-z0-9])({_NAMES}\\?["']?\s*[=:]\s*)(?!None\b|null\b|\*\*\*)"""
    r"""(?:(?P<quote>\\?["'])(?:(?!(?P=quote)).)*(?P=quote)|[^\s"',;&)}\]]+)""",
    re.I | re.DOTALL,
)
_SECRET_VALUE = re.compile(
    r"\b(?:(?:hf|sk|ghp|gho|ghs|ghu|github_pat|glpat|npm|pypi|xox[abp])[-_][A-Za-z0-9_-]{16,}"
    r"|AKIA[0-9A-Z]{16}\b)|(?<=\bBearer )[^\s\"',;]+",
)
# The password may hold slashes and, as sqlalchemy reads it, anything up to the last @.
_URL_LOGIN = re.compile(r"(?<=://)(?:[^/\s@:\"'<>]*:(?!\d+/)[^\s\"'<>]*@|[^/\s@\"'<>]+@)")
_SHORTEST_SECRET = 8
# The folders of an absolute path within running text; an address's slashes are no path.
_FOLDERS = re.compile(r"(?<![\w./:])[/~](?:[^\s/'\"()<>,;:]*/)+(?=[^\s/])")
# What may stand before a path: an option, then a scheme or a key ("file:", "dummy:", "x=", "s://").
_BEFORE_PATH = re.compile(r"(?:--?[\w-]+=)?(?:[\w.+-]+(?:=|:(?://)?))?")


def redact_argv(argv: Sequence[str], cwd: Path | None = None) -> list[str]:
    """A command line without secrets, foreign paths reduced to their last name.

    Parameters
    ----------
    argv : sequence of str
        The program and its arguments.
    cwd : Path, optional
        The working folder; the current one by default.
    """
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        name, equals, _ = argument.partition("=")
        secret = _SECRET_NAME.search(name) is not None
        if hide_next and not argument.startswith("-"):
            shown.append(HIDDEN)
        elif secret and equals:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(redact_text(argument, cwd))
        hide_next = secret and not equals and argument.startswith("-")
    return shown


def redact(value: Any, cwd: Path | None = None) -> Any:
    """`value` (mappings, sequences, strings, numbers) with every string redacted.

    The value of a key that names a secret is hidden. Tuples become lists, as in JSON.
    """
    if isinstance(value, dict):
        return {
            key: HIDDEN if item is not None and _SECRET_NAME.search(str(key)) else redact(item, cwd)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact(item, cwd) for item in value]
    if isinstance(value, Path):
        return redact_text(str(value), cwd)
    return redact_text(value, cwd) if isinstance(value, str) else value


def redact_text(text: str, cwd: Path | None = None) -> str:
    """One argument or setting, a path or a comma-separated list of them, redacted."""
    text = hide_secrets(text)
    return ",".join(_reduce(part, cwd or Path.cwd()) for part in text.split(","))


def redact_message(text: str) -> str:
    """Running text without secrets, absolute paths in it reduced to their last name."""
    return _FOLDERS.sub("", hide_secrets(text))


def hide_secrets(text: str) -> str:
    """Running text without tokens, keys and passwords; paths stay as they are.

    What is hidden: the values of secret environment variables, of settings with a secret's name,
    the login of an address, and what has the form of a token.
    """
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST_SECRET and _SECRET_NAME.search(name):
            text = text.replace(value, HIDDEN)
    text = _SECRET_VALUE.sub(HIDDEN, _URL_LOGIN.sub(f"{HIDDEN}@", text))
    return _SECRET_SETTING.sub(_without_value, text)


def _without_value(match: re.Match[str]) -> str:
    quote = match["quote"] or ""
    return f"{match[1]}{quote}{HIDDEN}{quote}"


def _reduce(text: str, cwd: Path) -> str:
    match = _BEFORE_PATH.match(text)
    start = match.end() if match else 0
    before, path = text[:start], text[start:]
    if not path.startswith(("/", "~")) and ".." not in Path(path).parts:
        return text
    target = (cwd / Path(path).expanduser()).resolve()
    if target.is_relative_to(cwd.resolve()):
        return before + str(target.relative_to(cwd.resolve()))
    return before + target.name
