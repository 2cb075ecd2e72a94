"""Whatever stands in a record: the page, its SVG, Markdown, LaTeX, CSV and the terminal show it."""

import csv
import io
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from specbench.results.page import render_page
from specbench.results.plain import markdown, one_line, spreadsheet
from specbench.results.records import RefusedDataset, Status
from specbench.results.report import Summary, render_files, summarise
from specbench.results.store import RunStore
from specbench.results.summary_table import to_latex, to_markdown, value_frame
from specbench.results.tables import to_csv
from specbench.results.terminal import print_summary
from tests.support.hostile import examples
from tests.support.records import AR, make_arm, make_request, make_run, make_verdict

PAYLOADS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='alert(1)",
    "</style><svg onload=alert(1)>", "<!--", "-->", "]]>", "</title>", "{{ 7*7 }}", "{% raw %}",
    "&lt;b&gt;", "javascript:alert(1)", "[a](javascript:alert(1))", "a | b", "a\nb", "a\r\n\r\nb",
    "=HYPERLINK(\"http://x\")", "+1+cmd", "@SUM(A1)", "-1+2", "\\input{/etc/passwd}", "$x^2$", "$",
    "a_b^c~d#e%f&g", "\x1b]0;owned\x07", "\x1b[31m", "[red]x[/]", "[/x]", "\0", "\x7f", "\u202e",
    "\ufffe", "_hidden", "url(#a)", "<use href=\"#a\"/>", "`", "**", "é 漢 🙂", " ", "  ", "#", "%",
)  # fmt: skip
BENIGN = "harmless"


def texts() -> st.SearchStrategy[str]:
    """A payload, or any text, with a payload in it."""
    plain = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
    return st.sampled_from(PAYLOADS) | st.tuples(plain, st.sampled_from(PAYLOADS), plain).map(
        "".join
    )


def fill(folder: Path, text: str) -> Path:
    """A run in which `text` stands wherever data may put one."""
    arm, dataset = f"v{text}", f"d{text}"
    refused = RefusedDataset(name=f"r{text}", status=Status.OOM, message=text)
    run = make_run(
        arms=(AR, arm), datasets=(dataset,), refused=[refused], choices=[text], warnings=[text],
        created=text or "-",
    )  # fmt: skip
    for key in ("cpu", "driver", "specbench"):
        run.environment[key] = text
    run.environment.update(argv=[text], git={"commit": text}, versions={"torch": text})
    run.environment["other"] = {text: [text, {text: 1}]}
    run.model.update(spec=text, architecture=text, checkpoint_sha256=text)
    run.config.update(model=text, dtype=text, method=[text])
    run.arms[1].parameters["variant"] = text
    entry = run.datasets[0].model_copy(
        update={"source": text, "revision": text, "token_ids_sha256": text, "score": text,
                "skipped": {text: 3}}
    )  # fmt: skip
    run = run.model_copy(update={"datasets": [entry]})
    with RunStore.create(folder, run) as store:
        for name in (AR, arm):
            for index in range(2):
                committed = [1] * 6 if name == AR else [4, 2]
                drafted = [0] * 6 if name == AR else [4, 4]
                record = make_request(name, index, committed, drafted=drafted, dataset=dataset)
                store.append_request(record.model_copy(update={"item_id": text}))
            store.append_lossless(make_verdict(name, 0, None, dataset=dataset, reason=text))
            store.append_arm(
                make_arm(name, dataset=dataset, graph_mode=text, attention_backend=text,
                         message=text)
            )  # fmt: skip
    return folder


class Structure(HTMLParser):
    """Tags with the names of their attributes, and the values of the attributes that act."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.acting: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(name for name, _ in attrs)))
        self.acting += [str(value) for name, value in attrs if name in ("href", "src", "style")]

    def handle_endtag(self, tag: str) -> None:
        self.tags.append((f"/{tag}", ()))


def check_table(text: str, lines: int, reference: str) -> None:
    """As many lines, and as many cells in each, as in the table of harmless names."""
    assert len(text.splitlines()) == lines
    cells = re.compile(r"(?<!\\)\|")
    for line, other in zip(text.splitlines(), reference.splitlines(), strict=True):
        assert len(cells.findall(line)) == len(cells.findall(other))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory: pytest.TempPathFactory) -> Summary:
    return summarise(fill(tmp_path_factory.mktemp("harmless") / "run", BENIGN))


@examples(12)
@given(text=texts())
def test_no_text_changes_what_a_report_is_made_of(
    text: str, harmless: Summary, tmp_path_factory: pytest.TempPathFactory
) -> None:
    summary = summarise(fill(tmp_path_factory.mktemp("hostile") / "run", text))
    page, plain = (Structure(render_page(found, {})) for found in (summary, harmless))
    assert page.tags == plain.tags
    assert page.acting == plain.acting

    shown = to_markdown(summary.rows, summary.header, summary.warnings)
    assert "<" not in shown
    reference = to_markdown(harmless.rows, harmless.header, harmless.warnings)
    if len(summary.warnings) == len(harmless.warnings):
        check_table(shown, len(reference.splitlines()), reference)

    latex = to_latex(summary.rows, summary.header)
    assert len(latex.splitlines()) == len(to_latex(harmless.rows, harmless.header).splitlines())
    assert not re.search(r"\\input\b|(?<!\\)[$#]|(?<!\\)%", latex)

    for frame in [*summary.frames.values(), value_frame(summary.rows)]:
        for row in csv.reader(io.StringIO(to_csv(frame).decode(), newline="")):
            for cell in row:
                number = re.fullmatch(r"[-+]?[0-9.]+(e[-+]?[0-9]+)?%?", cell, re.I)
                assert number or not cell.startswith(("=", "+", "-", "@")), cell

    terminal = io.StringIO()
    print_summary(summary, Console(file=terminal, width=120, color_system=None))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", terminal.getvalue())


@pytest.mark.parametrize("text", ["<script>alert(1)</script>&\"'$x$\x1b\0_é", "$\\frac{$ ]]> -->"])
def test_plots_show_any_name(text: str, harmless: Summary, tmp_path: Path) -> None:
    files = render_files(summarise(fill(tmp_path / "run", text)))
    for name, content in files.items():
        if name.endswith(".svg"):
            drawn = ElementTree.fromstring(content)
            tags = {element.tag.rpartition("}")[2] for element in drawn.iter()}
            assert not tags & {"script", "img", "foreignObject", "a"}
            words = " ".join(drawn.itertext())
            assert one_line(f"v{text}") in words or name.startswith(("split", "context"))
    page = Structure(files["report.html"].decode())
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not [name for _, names in page.tags for name in names if name.startswith("on")]


@examples(150)
@given(text=texts())
def test_what_each_form_makes_of_a_text(text: str) -> None:
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202e\ufffe]", one_line(text))
    assert one_line(one_line(text)) == one_line(text)
    shown = markdown(text)
    assert not re.search(r"[<>\n]|(?<!\\)(?:\\\\)*[`*\[\]|]", shown)
    kept = spreadsheet(text)
    assert kept.removeprefix("'") == text.removeprefix("'")
    assert not kept.startswith(("=", "@"))


@pytest.mark.parametrize("value", [-1.5, "-1.5", "+3", "-2e-05", "-5%", None, 3, "a=b", "–"])
def test_figures_stay_figures(value: Any) -> None:
    assert spreadsheet(value) == value


def test_the_page_of_a_record_with_markup_in_its_keys(tmp_path: Path) -> None:
    folder = fill(tmp_path / "run", BENIGN)
    content = json.loads((folder / "run.json").read_text())
    content["environment"]["<img src=x onerror=alert(1)>"] = {"<b>": "<i>"}
    (folder / "run.json").write_text(json.dumps(content))
    page = render_page(summarise(folder), {})
    assert "<img" not in page
    assert "&lt;img src=x onerror=alert(1)&gt; &lt;b&gt;" in page
