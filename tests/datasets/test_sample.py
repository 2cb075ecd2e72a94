"""The built-in sample: schemas, lengths, determinism, answers that are right."""

import re
import zlib
from itertools import combinations, pairwise, product
from typing import Any

import pytest

from specbench.datasets import DATASETS, get_dataset
from specbench.datasets.loading import load_items
from specbench.datasets.prompts import build_prompts
from specbench.datasets.sample import sample_items
from specbench.errors import UsageError


@pytest.mark.parametrize("name", list(DATASETS))
def test_rows_fit_the_schema_and_depend_on_the_seed_alone(name: str) -> None:
    dataset = get_dataset(name)
    rows = sample_items(name, 6, seed=3)
    assert len({dataset.normalise(row, index).id for index, row in enumerate(rows)}) == 6
    assert sample_items(name, 6, seed=3) == rows
    assert sample_items(name, 2, seed=3) == rows[:2]
    assert sample_items(name, 6, seed=4) != rows
    assert len({str({**row, "id": 0, "_id": 0, "problem_id": 0}) for row in rows}) == 6


@pytest.mark.parametrize("name", list(DATASETS))
@pytest.mark.parametrize("target", [500, 3000])
def test_any_length(name: str, target: int, tokenizer: Any) -> None:
    dataset = get_dataset(name)
    rows = sample_items(name, 2, seed=0, target_tokens=target, tokenizer=tokenizer)
    for row in rows:
        parts = dataset.parts(dataset.normalise(row, 0), cot=True)
        text = parts.head + parts.body + parts.tail
        count = len(tokenizer(text)["input_ids"])
        assert target < count < 2 * target + 1500


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="has no built-in sample"):
        sample_items("file:x.jsonl", 1, 0)


def test_long_report_does_not_repeat_its_sentences() -> None:
    report = sample_items("govreport", 1, seed=0, target_tokens=20000)[0]["report"]
    assert len(report) > 90_000
    sentences = re.findall(r"[A-Z][^.]{30,}\.", report)
    assert len(set(sentences)) > 0.98 * len(sentences)
    words = report.encode()
    assert len(words) / len(zlib.compress(words, 9)) < 7


def test_longbench_answer_is_stated_in_the_document() -> None:
    for row in sample_items("longbench-v2", 20, seed=1):
        choices = [row[f"choice_{letter}"].rstrip(".") for letter in "ABCD"]
        assert len(set(choices)) == 4
        right = row[f"choice_{row['answer']}"].rstrip(".")
        cause = right[0].lower() + right[1:]
        summary = row["context"].split("\n\n")[2].removeprefix("Summary of findings\n")
        (stated,) = [s for s in re.split(r"(?<=\.) ", summary) if f"because {cause}." in s]
        place = re.match(r"[\w' ]+?(?= (?:lost|opened|could|had|ran|spent) )", stated)
        assert place is not None
        assert place.group() in row["question"]


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_default_cpu_run_fits_its_context(seed: int, smollm2_tokenizer: Any) -> None:
    dataset = get_dataset("longbench-v2")
    loaded = load_items(
        dataset, "sample", seed=seed, num=8, target_tokens=1024, tokenizer=smollm2_tokenizer
    )
    made = build_prompts(dataset, loaded.items, smollm2_tokenizer, context_len=1024)
    assert len(made.prompts) == 8
    for prompt, item in zip(made.prompts, made.items, strict=True):
        assert 1000 < len(prompt.token_ids) <= 1024
        text = smollm2_tokenizer.decode(prompt.token_ids)
        document = text.partition("<document>")[2].partition("</document>")[0]
        assert len(smollm2_tokenizer(document)["input_ids"]) > 690
        assert "Summary of findings" in document
        assert item.fields["question"] in text
        assert all(item.fields[f"choice_{letter}"] in text for letter in "ABCD")


def _count_subsets(n: int, gap: int) -> int:
    return sum(
        all(b - a >= gap for a, b in pairwise(chosen))
        for size in range(n + 1)
        for chosen in combinations(range(1, n + 1), size)
    )


def _count_walks(width: int, height: int, x: int, y: int) -> int:
    counts = {(0, 0): 1}
    for i, j in product(range(width + 1), range(height + 1)):
        if (i, j) != (0, 0):
            counts[i, j] = counts.get((i - 1, j), 0) + counts.get((i, j - 1), 0)
        if (i, j) == (x, y):
            counts[i, j] = 0
    return counts[width, height] % 1000


SOLVERS = {
    r"number of subsets of \$\\\{1,2,\\dots,(\d+)\\\}\$.*at least \$(\d+)\$": _count_subsets,
    r"from \$\(0,0\)\$ to \$\((\d+),(\d+)\)\$.*never visits \$\((\d+),(\d+)\)\$": _count_walks,
    r"positive divisors of \$(\d+)\$ are not multiples of \$(\d+)\$": lambda n, k: len(
        [d for d in range(1, n + 1) if not n % d and d % k]
    ),
    r"integer coordinates satisfy \$\|x\|/(\d+)\+\|y\|/(\d+)": lambda a, b: sum(
        2 * (b * (a - abs(x)) // a) + 1 for x in range(-a, a + 1)
    ),
}


@pytest.mark.parametrize("pattern", list(SOLVERS))
def test_aime_answers_against_another_solution(pattern: str) -> None:
    checked = 0
    for row in sample_items("aime25", 24, seed=5):
        match = re.search(pattern, row["question"])
        if match:
            assert SOLVERS[pattern](*map(int, match.groups())) == int(row["answer"])
            checked += 1
    assert checked == 3


def test_aime_problem_of_many_parts_sums_its_answers() -> None:
    row = sample_items("aime25", 1, seed=0, target_tokens=400)[0]
    assert row["question"].count("Part ") > 5
    assert 0 <= int(row["answer"]) < 1000


def _shelf(a: list[int], k: int) -> int:
    best = start = total = 0
    for end, weight in enumerate(a):
        total += weight
        while total > k:
            total -= a[start]
            start += 1
        best = max(best, end - start + 1)
    return best


def _cart(a: list[int], k: int) -> int:
    trips, free = 0, 0
    for weight in (min(x, k) for x in a):
        if weight > free:
            trips, free = trips + 1, k
        free -= weight
    return trips


PROGRAMS = {
    "The Longest Shelf": _shelf,
    "Matching Weights": lambda a, k: sum((x + y) % k == 0 for x, y in combinations(a, 2)),
    "One Cart": _cart,
    "The Heaviest Row": lambda a, k: max(
        sum(a[i : i + min(k, len(a))]) for i in range(len(a) - min(k, len(a)) + 1)
    ),
    "Marks on the Dial": lambda a, k: sum(any(x % k == r for x in a) for r in range(k)),
}


def test_codeelo_examples_against_another_solution() -> None:
    seen = set()
    for row in sample_items("codeelo", 30, seed=2):
        seen.add(row["title"])
        for given, expected in row["examples"]:
            (n, k), a = (list(map(int, line.split())) for line in given.splitlines())
            assert len(a) == n
            if row["title"] == "Uphill":
                moves, previous = 0, 0
                for x in a:
                    while x < previous:
                        x, moves = x + k, moves + 1
                    previous = x
                assert int(expected) == moves
            else:
                assert int(expected) == PROGRAMS[row["title"]](a, k)
    assert seen == {*PROGRAMS, "Uphill"}
