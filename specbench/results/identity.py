"""What makes two runs the same run, so that one may continue the other."""

import json
from typing import Any

from specbench.results.records import RunRecord

_MAY_DIFFER = ("output", "resume", "timeout")
_MACHINE = ("cpu", "gpus", "cuda", "threads", "specbench", "git")


def differences(
    old: Any, new: Any, path: str = "", where: tuple[str, str] = ("there", "now")
) -> list[str]:
    """Where two JSON values differ, as ``"config.gamma: 6 there, 8 now"``.

    `where` says which of the two has a value.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(key for key in new if key not in old)]
        parts = [
            differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key), where)
            for key in keys
        ]
        return [line for part in parts for line in part]
    if old == new:
        return []
    return [f"{path}: {_short(old)} {where[0]}, {_short(new)} {where[1]}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def identity(run: RunRecord) -> dict[str, Any]:
    """What must be equal for two processes to write one run, as plain JSON.

    The machine and its threads are part of it: arms timed on two machines cannot be compared. So
    are the code's version and torch, whose kernels decide near ties.
    """
    content = json.loads(run.model_dump_json())
    config = {key: value for key, value in content["config"].items() if key not in _MAY_DIFFER}
    environment = content["environment"]
    versions = environment.get("versions") or {}
    return {
        "config": config,
        "environment": {name: environment.get(name) for name in _MACHINE}
        | {"torch": versions.get("torch")},
        "model": content["model"],
        "datasets": {entry["name"]: entry for entry in content["datasets"]},
        "arms": {entry["name"]: entry for entry in content["arms"]},
        "cells": content["cells"],
    }
