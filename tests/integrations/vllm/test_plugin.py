"""The entry point: cheap, and harmless to every vLLM of the environment."""

import logging
import subprocess
import sys
import tomllib
from types import ModuleType, SimpleNamespace

import pytest

import specbench.integrations.vllm as package
from specbench.integrations.vllm.plugin import BACKEND, register
from specbench.methods.vllm.hosted import PROPOSER
from tests.support.vllm import ROOT

REGISTRY = "vllm.v1.attention.backends.registry"


def install(monkeypatch: pytest.MonkeyPatch, **members: object) -> None:
    """A registry of vLLM's with these members, where vLLM's is."""
    names = REGISTRY.split(".")
    for end in range(1, len(names)):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), ModuleType(names[end - 1]))
    registry = ModuleType(REGISTRY)
    vars(registry).update(members)
    monkeypatch.setitem(sys.modules, REGISTRY, registry)


def test_it_names_the_backend_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[object, ...]] = []
    custom = object()
    install(
        monkeypatch,
        AttentionBackendEnum=SimpleNamespace(CUSTOM=custom),
        register_backend=lambda *arguments: calls.append(arguments),
    )
    register()
    assert calls == [(custom, BACKEND)]
    assert "specbench.integrations.vllm.backend" not in sys.modules


@pytest.mark.parametrize("error", [ImportError("moved"), ValueError("taken"), RuntimeError("CUDA")])
def test_no_error_leaves_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise error

    install(monkeypatch, AttentionBackendEnum=SimpleNamespace(CUSTOM=1), register_backend=refuse)
    with caplog.at_level(logging.WARNING, logger="vllm.specbench"):
        register()
    assert repr(error) in caplog.text


def test_a_registry_of_another_shape_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, AttentionBackendEnum=SimpleNamespace())
    register()


def test_importing_it_imports_neither_torch_nor_vllm() -> None:
    code = (
        "import sys, specbench.integrations.vllm.plugin;"
        "heavy = {'torch', 'triton', 'vllm', 'pydantic', 'yaml', 'numpy'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_declares_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["vllm.general_plugins"]["specbench"].partition(":")
    assert (module, name) == (register.__module__, register.__name__)


def test_the_proposer_is_found_by_its_path() -> None:
    module, _, name = PROPOSER.rpartition(".")
    assert module == package.__name__
    assert getattr(package, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        _ = package.Other
