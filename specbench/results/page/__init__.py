"""`report.html`: all of a report in one file that needs nothing but a browser."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from specbench.config import RunConfig
from specbench.results.page.findings import findings
from specbench.results.page.tables import page_tables
from specbench.results.plain import one_line
from specbench.results.protocol import model_name, versions
from specbench.results.records import RunRecord
from specbench.results.report import MARK, Summary
from specbench.results.terminal import CPU_NOTE

_REFERENCE = re.compile(r'(\bid="|href="#|url\(#)')
_TAG = re.compile(r"<[^>]*>")
_METADATA = re.compile(r"<metadata>.*?</metadata>", re.DOTALL)
_NOT_GIVEN = ("output", "resume")


def render_page(summary: Summary, plots: Mapping[str, bytes]) -> str:
    """The page.

    Parameters
    ----------
    summary : Summary
    plots : mapping of str to bytes
        Image files by name; the SVG files among them are shown.

    Returns
    -------
    str
        HTML without a reference to anything outside it.
    """
    several = len(summary.sources) > 1
    models = dict.fromkeys(map(model_name, summary.runs))
    return render_template(
        "report.html.j2",
        title=f"Speculative decoding of {' and '.join(models)}",
        header=summary.header,
        mark=MARK,
        cpu_note=CPU_NOTE if any(r.config.get("device") == "cpu" for r in summary.runs) else None,
        findings=findings(summary.rows),
        tables=page_tables(summary),
        plots=plots,
        warnings=summary.warnings,
        runs=[run_facts(s.run, s.label if several else None) for s in summary.sources],
        again=_again(summary),
    )


def render_template(name: str, *, plots: Mapping[str, bytes], **content: Any) -> str:
    """A page of one of the templates here, which escape what they are given.

    Parameters
    ----------
    name : str
    plots : mapping of str to bytes
        Image files by name; the SVG files among them are shown.
    **content
        What the template asks for.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("specbench.results", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    table = environment.get_template("table.html.j2")
    environment.filters["table"] = lambda entry: Markup(table.render(entry=entry))
    shown = [
        {"name": file.removesuffix(".svg"), "svg": Markup(_inline(file, svg))}
        for file, svg in plots.items()
        if file.endswith(".svg")
    ]
    return environment.get_template(name).render(plots=shown, **content)


def _inline(name: str, svg: bytes) -> str:
    """An SVG as an element of the page: ids of its own, and no header."""
    text = svg.decode()
    text = _METADATA.sub("", text[text.index("<svg") :])
    own = rf"\g<1>{name.removesuffix('.svg')}-"
    # within tags alone: what stands between them is text, in which < and > are written out
    return _TAG.sub(lambda tag: _REFERENCE.sub(own, tag[0]), text)


def run_facts(run: RunRecord, label: str | None) -> dict[str, Any]:
    """What a page says of a run: its command, configuration and environment."""
    return {
        "label": label,
        "created": run.created,
        "versions": versions(run),
        "command": shlex.join(map(str, run.environment.get("argv") or [])) or "unknown",
        "choices": run.choices,
        "config": _configuration(run),
        "environment": [*_flat(run.model, "model "), *_flat(run.environment)],
    }


def _configuration(run: RunRecord) -> str:
    """What a configuration file for this run holds: all that differs from the defaults."""
    defaults = RunConfig().model_dump(mode="json")
    chosen = {
        name: value
        for name, value in run.config.items()
        if name not in _NOT_GIVEN and value != defaults.get(name)
    }
    return yaml.safe_dump(chosen, sort_keys=False, allow_unicode=True).strip()


def _again(summary: Summary) -> str:
    folders = [source.folder.name for source in summary.sources]
    force = ["--force"] if summary.marks else []
    return shlex.join(["specbench", "report", *folders, *force])


def _flat(facts: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Names and values, mappings within mappings written out; unknown is a dash."""
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if name == "argv":
            continue
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{name} ")
        elif isinstance(value, Sequence) and not isinstance(value, str):
            rows.append((prefix + name, ", ".join(map(_text, value)) or "–"))
        else:
            rows.append((prefix + name, _text(value)))
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
