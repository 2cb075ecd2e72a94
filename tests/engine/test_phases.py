"""Timers against a clock that the test moves."""

import time

import pytest

from specbench.engine.phases import PHASES, Phases


class Clock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


def spent(phases: Phases) -> dict[str, float]:
    """The phases that took time."""
    return {name: seconds for name, seconds in phases.seconds.items() if seconds}


def test_every_phase_starts_at_zero() -> None:
    phases = Phases(enabled=True)
    assert phases.seconds == dict.fromkeys(("draft", "verify", "selection", "sampling"), 0.0)
    assert tuple(phases.seconds) == PHASES


def test_a_phase_adds_up_over_its_visits(clock: Clock) -> None:
    phases = Phases(enabled=True)
    for seconds in (1, 4):
        with phases("draft"):
            clock.now += seconds
        clock.now += 32
    assert spent(phases) == {"draft": 5}


def test_an_inner_phase_is_counted_once_as_its_own(clock: Clock) -> None:
    phases = Phases(enabled=True)
    with phases("verify"):
        clock.now += 1
        for _ in range(2):
            with phases("selection"):
                clock.now += 4
        clock.now += 2
    assert spent(phases) == {"verify": 3, "selection": 8}


def test_three_levels_and_what_follows_them(clock: Clock) -> None:
    phases = Phases(enabled=True)
    with phases("draft"):
        clock.now += 1
        with phases("verify"):
            clock.now += 2
            with phases("selection"):
                clock.now += 4
            clock.now += 8
        clock.now += 16
        with phases("sampling"):
            clock.now += 32
    with phases("sampling"):
        clock.now += 64
    assert spent(phases) == {"draft": 17, "verify": 10, "selection": 4, "sampling": 96}


def test_a_phase_inside_itself_is_counted_once(clock: Clock) -> None:
    phases = Phases(enabled=True)
    with phases("draft"):
        clock.now += 1
        with phases("draft"):
            clock.now += 2
    assert spent(phases) == {"draft": 3}


def test_an_error_inside_leaves_the_timers_whole(clock: Clock) -> None:
    phases = Phases(enabled=True)

    def fail() -> None:
        with phases("selection"):
            clock.now += 2
            raise RuntimeError("broken")

    with phases("verify"):
        clock.now += 1
        with pytest.raises(RuntimeError, match="broken"):
            fail()
        clock.now += 4
    assert spent(phases) == {"verify": 5, "selection": 2}


def test_reset_starts_again_and_keeps_what_was_handed_out(clock: Clock) -> None:
    phases = Phases(enabled=True)
    with phases("draft"):
        clock.now += 1
    handed_out = phases.seconds
    phases.reset()
    assert spent(phases) == {}
    assert handed_out["draft"] == 1
    with phases("verify"):
        clock.now += 2
    assert spent(phases) == {"verify": 2}


def test_disabled_timers_stay_at_zero(clock: Clock) -> None:
    phases = Phases(enabled=False)
    with phases("verify"):
        clock.now += 1
        with phases("selection"):
            clock.now += 1
    assert spent(phases) == {}


def test_the_real_clock_is_in_seconds() -> None:
    phases = Phases(enabled=True)
    with phases("draft"):
        time.sleep(0.02)
    assert 0.015 < phases.seconds["draft"] < 5
