"""The page: complete, self-contained, safe against its data, and working in a real browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from specbench.results.page.findings import findings
from specbench.results.report import Summary, summarise, write_reports
from tests.results.test_report import fill
from tests.results.test_summary_table import rows
from tests.support.chromium import find_chromium, load, screenshot
from tests.support.records import AR, make_arm, make_run

DARK, LIGHT = "--blink-settings=preferredColorScheme=0", "--blink-settings=preferredColorScheme=1"
# how many resources the page asked for, once all that it asked for has arrived or failed
REQUESTS = """<script>addEventListener("load", () => {
  document.title = performance.getEntriesByType("resource").length;
});</script>"""
TABLES = ("Speed, acceptance, losslessness", "Acceptance", "Time of one iteration", "Data")


class Tags(HTMLParser):
    """Every tag with its attributes, every id, and which tags were left open."""

    empty = ("meta", "link", "br", "img", "use", "path")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.ids = [a["id"] for _, a in self.tags if "id" in a]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.empty or tag in ("path", "use"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fill(tmp_path / "run", make_run(repeats=3))


@pytest.fixture
def page(folder: Path) -> Path:
    write_reports(folder)
    return folder / "report.html"


@pytest.fixture
def browser() -> str:
    found = find_chromium()
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    return found


def text_of(folder: Path) -> str:
    write_reports(folder)
    return (folder / "report.html").read_text(encoding="utf-8")


def test_the_page_is_well_formed_and_refers_to_nothing_outside(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parsed = Tags(text)
    assert parsed.open == []
    assert len(set(parsed.ids)) == len(parsed.ids)
    for tag, attributes in parsed.tags:
        assert tag not in ("iframe", "object", "embed", "base")
        assert tag != "script" or not attributes
        for name in ("src", "href", "xlink:href", "action", "data", "srcset"):
            target = attributes.get(name)
            assert target is None or target.startswith(("#", "data:"))
            if target and target.startswith("#"):
                assert target[1:] in parsed.ids
    assert not re.search(r"@import|url\((?!#)", text)


def test_the_page_holds_what_a_reader_needs(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for title in TABLES:
        assert f"<caption>{title}</caption>" in text
    for name in ("throughput", "speedup", "acceptance", "split"):
        assert f'id="plot-{name}"' in text
    assert text.index('id="summary"') < text.index('id="tables"') < text.index('id="plots"')
    assert "vegas decodes 1.50 [1.50–1.50] times as fast as autoregressive decoding" in text
    assert "specbench report run" in text
    assert "Test CPU" in text
    assert "versions torch" in text


def test_commands_and_configuration_can_be_pasted(tmp_path: Path) -> None:
    run = make_run()
    argv = ["specbench", "run", "--vllm-arg", 'speculative_config={"method":"ngram"}']
    run = run.model_copy(
        update={
            "environment": run.environment | {"argv": argv},
            "config": run.config | {"gamma": 5},
        }
    )
    text = text_of(fill(tmp_path / "run", run))
    assert "--vllm-arg &#39;speculative_config={&#34;method&#34;:&#34;ngram&#34;}&#39;" in text
    assert "gamma: 5" in text
    assert "\noutput: out" not in text


def test_every_warning_is_on_the_page(tmp_path: Path) -> None:
    run = make_run(warnings=["the <b>first</b> warning"])
    folder = fill(tmp_path / "run", run, passes=[make_arm(AR)])
    text = text_of(folder)
    warnings = summarise(folder).warnings
    assert len(warnings) >= 2
    assert f"Warnings ({len(warnings)})" in text
    assert "the &lt;b&gt;first&lt;/b&gt; warning" in text
    assert text.count("unfinished, 1 of 1 repeats ended") == 0
    assert "vegas (unfinished)" in text


def test_names_from_data_stay_text(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>&\"'"
    run = make_run(model={"spec": name, "dummy": False, "checkpoint_sha256": "ab"})
    text = text_of(fill(tmp_path / "run", run))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"low": 1.2, "high": 1.8}, "vegas decodes 1.50 [1.20–1.80] times as fast as"),
        ({"low": 0.9, "high": 1.8}, "no difference beyond the noise"),
        ({"value": 0.5, "low": 0.4, "high": 0.6}, "no arm pays here"),
        ({}, "without an interval"),
    ],
)
def test_the_summary_says_no_more_than_the_interval_allows(
    changes: dict[str, float], said: str
) -> None:
    key = "speedup_over_autoregressive"
    values = {key: changes.pop("value", 1.5)} | {f"{key}_{end}": v for end, v in changes.items()}
    (line,) = findings(rows(**values))
    assert said in line


def test_the_summary_names_what_failed() -> None:
    lines = findings(rows(status="OOM", speedup_over_autoregressive=None))
    assert lines == ["govreport: no figures of vegas (OOM)"]
    (lossy,) = findings(rows(status="LOSSY"))
    assert lossy == "govreport: not lossless: vegas"


def test_chromium_finds_no_error_and_asks_for_nothing(
    page: Path, tmp_path: Path, browser: str
) -> None:
    # without its policy the page must be as quiet: nothing is blocked, for nothing is asked for
    text = re.sub(r"<meta http-equiv[^>]*>", "", page.read_text(encoding="utf-8"))
    bare = tmp_path / "bare.html"
    bare.write_text(text.replace("</body>", f"{REQUESTS}</body>"), encoding="utf-8")
    assert load(browser, page, tmp_path / "profile").console == []
    loaded = load(browser, bare, tmp_path / "profile")
    assert loaded.console == []
    assert "<title>0</title>" in loaded.dom


def test_the_check_itself_sees_errors_and_requests(tmp_path: Path, browser: str) -> None:
    page = tmp_path / "bad.html"
    image = "<title></title><img src='http://example.invalid/x.png'>"
    page.write_text(f"{image}<script>nothing()</script>{REQUESTS}")
    loaded = load(browser, page, tmp_path / "profile")
    assert any("nothing is not defined" in line for line in loaded.console)
    assert "<title>1</title>" in loaded.dom


def test_a_heading_sorts_its_column_both_ways(page: Path, tmp_path: Path, browser: str) -> None:
    # the overhead column: unknown for the baseline, which stays last
    script = """
    const table = document.querySelector("table.sortable");
    const order = () => [...table.tBodies[0].rows].map((row) => row.cells[1].textContent);
    const seen = {before: order()};
    for (const [name, column] of [["speed", 3], ["faster", 3], ["overhead", 7], ["arm", 1]]) {
      table.tHead.rows[0].cells[column].querySelector("button").click();
      seen[name] = order();
      seen[name + "_state"] = [...table.tHead.rows[0].cells].map((c) => c.ariaSort);
    }
    document.title = JSON.stringify(seen);
    """
    text = page.read_text(encoding="utf-8")
    (tmp_path / "sorted.html").write_text(
        text.replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8"
    )
    loaded = load(browser, tmp_path / "sorted.html", tmp_path / "profile")
    assert loaded.console == []
    title = re.search(r"<title>(.*?)</title>", loaded.dom)
    assert title is not None
    seen = json.loads(title[1].replace("&quot;", '"'))
    assert seen["before"] == [AR, "vegas"]
    assert seen["speed"] == [AR, "vegas"]
    assert seen["faster"] == ["vegas", AR]
    assert seen["overhead"] == ["vegas", AR]
    assert seen["arm"] == [AR, "vegas"]
    assert seen["speed_state"][3] == "ascending"
    assert seen["faster_state"][3] == "descending"
    assert [state for state in seen["arm_state"] if state] == ["ascending"]


@pytest.mark.parametrize(("scheme", "bright"), [(LIGHT, True), (DARK, False)])
def test_light_and_dark(
    page: Path, tmp_path: Path, browser: str, scheme: str, bright: bool
) -> None:
    shot = screenshot(
        browser, page, tmp_path / "profile", tmp_path / "shot.png", (1000, 700), scheme
    )
    image = imread(shot)[..., :3]
    # the page's ground is most of what is seen, and text stands out from it
    ground = np.median(image)
    assert (ground > 0.9) if bright else (ground < 0.2)
    assert image.max() - image.min() > 0.7


def test_a_phone_scrolls_tables_and_not_the_page(page: Path, tmp_path: Path, browser: str) -> None:
    probe = "document.title = [document.documentElement.scrollWidth, innerWidth].join();"
    text = page.read_text(encoding="utf-8")
    (tmp_path / "phone.html").write_text(
        text.replace("</body>", f"<script>{probe}</script></body>"), encoding="utf-8"
    )
    loaded = load(browser, tmp_path / "phone.html", tmp_path / "profile", "--window-size=390,844")
    title = re.search(r"<title>(\d+),(\d+)</title>", loaded.dom)
    assert title is not None
    width, window = map(int, title.groups())
    assert window < 600
    assert width <= window


def test_two_runs_stand_on_one_page(tmp_path: Path) -> None:
    folders = [fill(tmp_path / name, make_run()) for name in ("a", "b")]
    summary: Summary = write_reports(folders, tmp_path / "out")
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "<h3>a</h3>" in text
    assert "<h3>b</h3>" in text
    assert "specbench report a b" in text
    assert len(summary.sources) == 2
