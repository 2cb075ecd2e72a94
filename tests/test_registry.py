"""The registry: lookups, lazy imports, plug-ins, and what a wrong name gets."""

import sys
from pathlib import Path

import pytest

from specbench.errors import UsageError
from specbench.registry import Registry, unknown


def test_decorator_returns_the_object_and_get_finds_it() -> None:
    registry: Registry[type] = Registry("thing")

    @registry.register("one")
    class One:
        pass

    assert registry.get("one") is One
    assert list(registry) == ["one"]


def test_lazy_entry_is_imported_on_first_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "registry_probe.py").write_text("VALUE = object()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "registry_probe", raising=False)
    registry: Registry[object] = Registry("thing")
    registry.register_lazy("late", "registry_probe:VALUE")

    assert registry.names() == ["late"]
    assert "registry_probe" not in sys.modules
    found = registry.get("late")
    assert found is sys.modules["registry_probe"].VALUE
    assert registry.get("late") is found


def test_unknown_name_suggests_the_nearest_and_lists_the_known() -> None:
    registry: Registry[int] = Registry("method")
    registry.register("vegas")(1)
    registry.register("autoregressive")(2)
    with pytest.raises(UsageError, match=r"unknown method 'Vega'.*mean 'vegas'.*autoregressive"):
        registry.get("Vega")


def test_a_name_near_to_none_gets_no_suggestion() -> None:
    message = str(unknown("method", "zzzzzz", ["vegas"]))
    assert "mean" not in message
    assert "vegas" in message


def test_second_object_under_a_name_is_refused() -> None:
    registry: Registry[int] = Registry("thing")
    registry.register("a")(1)
    registry.register("a")(1)
    with pytest.raises(ValueError, match="'a' is registered twice"):
        registry.register("a")(2)


def plugin_package(folder: Path, entry_points: str) -> None:
    """An installed distribution that declares entry points."""
    (folder / "probe_plugin.py").write_text("class Extra:\n    pass\n")
    info = folder / "probe_plugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: probe-plugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_entry_points_come_last_and_cannot_replace_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin_package(
        tmp_path,
        "[probe.things]\nextra = probe_plugin:Extra\nours = probe_plugin:Extra\n",
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry: Registry[object] = Registry("thing", "probe.things")
    registry.register("ours")("built in")

    assert registry.names() == ["ours", "extra"]
    assert getattr(registry.get("extra"), "__name__", None) == "Extra"
