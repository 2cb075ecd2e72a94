"""Long reports with checkable facts, for the samples of longbench-v2 and govreport."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from specbench.datasets.sample.words import PLACES, SURNAMES, THEMES, Writer

_NATURAL_TOKENS = 1500
_SECTIONS = (
    "Background", "What the accounts show", "Staff and training", "Visits to the sites",
    "What users told us", "Equipment", "Winters and storms", "Comparison of the districts",
    "Open questions", "Earlier audits", "Contracts", "Plans for the coming years",
)  # fmt: skip


@dataclass(frozen=True)
class _Finding:
    """What happened at one place: the summary states it and a question may ask for it."""

    place: str
    problem: str
    cause: str
    remedy: str


_PROBLEMS = (
    "lost {percent} percent of its income", "opened {small} months late",
    "could not account for {money}", "had to turn away {hundred} {user}",
    "ran its {thing} for {small} years without an inspection", "spent {money} more than planned",
)  # fmt: skip
_CAUSES = (
    "its supplier delivered the wrong parts twice", "the district office kept back the funds",
    "its {worker} had never been trained on the new {thing}", "the flood of {year} cut the road",
    "two managers each believed that the other kept the books",
    "the forecast of demand rested on a single good year",
)  # fmt: skip
_REMEDIES = (
    "buy from two suppliers", "release the funds at the start of the year",
    "train its {worker} before the next season", "raise the access road above flood level",
    "put one person in charge of the books", "renew the forecast every quarter",
)  # fmt: skip
_QUESTIONS = (
    "Which explanation of the trouble at {place} does the report support? Explain how it is linked "
    "to the other findings and why the remaining explanations fall short.",
    "Why did things go wrong at {place}, according to the report? Set out the chain of events and "
    "weigh it against what happened elsewhere.",
    "A reader claims that {place} suffered for the same reason as the other sites. Which reason "
    "does the report give for {place}, and how does it differ from the others?",
)


def summary_row(
    rng: random.Random, index: int, length: float, measure: Callable[[str], float]
) -> dict[str, Any]:
    """A row for govreport: a report and the summary that its findings give."""
    text, findings, _ = _write(rng, length, measure)
    stated = " ".join(_state(finding) for finding in findings)
    advice = " ".join(
        f"The report advises {finding.place} to {finding.remedy}." for finding in findings
    )
    return {"id": f"sample-{index}", "report": text, "summary": f"{stated} {advice}"}


def question_row(
    rng: random.Random, index: int, length: float, measure: Callable[[str], float]
) -> dict[str, Any]:
    """A row for longbench-v2: a report and a question on one of its findings."""
    text, findings, theme = _write(rng, length, measure)
    asked = rng.choice(findings)
    order = rng.sample(findings, len(findings))
    choices = {
        f"choice_{letter}": f"{finding.cause[0].upper()}{finding.cause[1:]}."
        for letter, finding in zip("ABCD", order, strict=True)
    }
    return {
        "_id": f"sample-{index}",
        "domain": "Single-Document QA",
        "sub_domain": theme["programme"],
        "difficulty": "easy",
        "length": "short",
        "question": rng.choice(_QUESTIONS).format(place=asked.place),
        **choices,
        "answer": "ABCD"[order.index(asked)],
        "context": text,
    }


def _write(
    rng: random.Random, length: float, measure: Callable[[str], float]
) -> tuple[str, list[_Finding], dict[str, str]]:
    """A report of at least `length`; the findings stand at its beginning, where no cut reaches."""
    theme = rng.choice(THEMES)
    places = rng.sample(PLACES, 9)
    writer = Writer(rng, theme, places)
    causes, remedies = list(_CAUSES), list(_REMEDIES)
    kinds = rng.sample(range(len(_CAUSES)), 4)
    problems = rng.sample(_PROBLEMS, 4)
    findings = [
        _Finding(
            place,
            writer.expand(problem),
            writer.expand(causes[kind]),
            writer.expand(remedies[kind]),
        )
        for place, problem, kind in zip(places, problems, kinds, strict=False)
    ]
    blocks = [
        f"{theme['programme']}: report of the audit board",
        f"Prepared by {rng.choice(SURNAMES)} and {rng.choice(SURNAMES)}, {rng.randint(2018, 2024)}",
        "Summary of findings\n" + " ".join(_state(finding) for finding in findings),
    ]
    wanted = length or _NATURAL_TOKENS
    written = sum(measure(block) for block in blocks)
    paragraphs = 0
    while written < wanted:
        if rng.random() < 0.12 and paragraphs:
            block = _table(rng, places, theme["unit"])
        else:
            block = " ".join(writer.sentence() for _ in range(rng.randint(3, 6)))
        if paragraphs % 3 == 0:
            number = paragraphs // 3
            block = f"{number + 1}. {_SECTIONS[number % len(_SECTIONS)]}\n\n{block}"
        paragraphs += 1
        blocks.append(block)
        written += measure(block)
    return "\n\n".join(blocks), findings, theme


def _state(finding: _Finding) -> str:
    return f"{finding.place} {finding.problem} because {finding.cause}."


def _table(rng: random.Random, places: list[str], unit: str) -> str:
    first = rng.randint(2004, 2020)
    years = range(first, first + 3)
    lines = [f"Table: {unit} by site", "Site | " + " | ".join(map(str, years))]
    for place in rng.sample(places, 4):
        lines.append(f"{place} | " + " | ".join(f"{rng.randint(900, 60000):,}" for _ in years))
    return "\n".join(lines)
