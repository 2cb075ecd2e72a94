"""Records of older schema versions, brought up to the present one.

Version 2 added what outputs are scored by, datasets that were refused, and the part of the plan
that was run. A run of version 1 had none of these.
"""

from collections.abc import Callable
from typing import Any

from specbench.errors import DataError
from specbench.parsing import is_plain, shown
from specbench.results.records import SCHEMA_VERSION

Content = dict[str, Any]


def upgrade(content: Any, where: str) -> Content:
    """`content` as a record of the present version would hold it.

    Parameters
    ----------
    content : Any
        One record as read from JSON, of any kind.
    where : str
        The file, and line, for messages.

    Raises
    ------
    DataError
        No version, or one that this specbench does not know.
    """
    version = content.get("schema_version") if isinstance(content, dict) else None
    if not is_plain(version, int) or version not in (*_STEPS, SCHEMA_VERSION):
        newer = isinstance(version, int) and version > SCHEMA_VERSION
        advice = "update specbench" if newer else "read it with the version that wrote it"
        raise DataError(
            f"{where} has schema version {shown(version)}, this specbench reads "
            f"{min(_STEPS)} to {SCHEMA_VERSION}; {advice}"
        )
    while content["schema_version"] != SCHEMA_VERSION:
        content = _STEPS[content["schema_version"]](content)
    return content


def _from_1(content: Content) -> Content:
    content = content | {"schema_version": 2}
    if "datasets" not in content:
        return content
    datasets = content["datasets"]
    if isinstance(datasets, list):
        datasets = [
            entry | {"score": None} if isinstance(entry, dict) else entry for entry in datasets
        ]
    return content | {"datasets": datasets, "refused": [], "cells": None}


_STEPS: dict[int, Callable[[Content], Content]] = {1: _from_1}
