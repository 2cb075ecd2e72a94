"""A headless Chromium: what a page says on its console, and what is in it once its scripts ran."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome", "chrome")
_CONSOLE = re.compile(r"CONSOLE[:(]\d+\)?\] (.*)")


@dataclass(frozen=True)
class Loaded:
    """A page after its scripts ran: its DOM as HTML, and every line on its console."""

    dom: str
    console: list[str]


def find_chromium() -> str | None:
    """The browser's path; None where none is installed."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def load(browser: str, page: Path, profile: Path, *options: str) -> Loaded:
    """Open a page, let its scripts run, and read it."""
    done = subprocess.run(
        [*_command(browser, profile), *options, "--dump-dom", page.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return Loaded(done.stdout, _CONSOLE.findall(done.stderr))


def screenshot(
    browser: str, page: Path, profile: Path, target: Path, size: tuple[int, int], *options: str
) -> Path:
    """A picture of the page in a window of that many pixels."""
    width, height = size
    subprocess.run(
        [
            *_command(browser, profile),
            *options,
            f"--window-size={width},{height}",
            f"--screenshot={target}",
            page.as_uri(),
        ],
        capture_output=True,
        timeout=120,
        check=True,
    )
    return target


def _command(browser: str, profile: Path) -> list[str]:
    return [
        browser,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--hide-scrollbars",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
    ]
