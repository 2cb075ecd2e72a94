"""References and scores of the datasets that can be scored offline."""

import pytest

from specbench.datasets import DATASETS, get_dataset
from specbench.datasets.aime25 import last_boxed
from specbench.datasets.base import Item


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"so \boxed{70}.", 1.0),
        (r"first \boxed{12}, no: $\boxed{70}$", 1.0),
        (r"first \boxed{70}, no: \boxed{12}", 0.0),
        (r"\boxed{\text{070}}", 1.0),
        (r"\boxed{ 70^\circ }", 1.0),
        (r"\boxed{70} and then \boxed{7", 1.0),
        (r"\boxed{\frac{70}{1}}", 0.0),
        ("the answer is 70", 0.0),
        ("", 0.0),
    ],
)
def test_aime_score(text: str, score: float) -> None:
    dataset = get_dataset("aime25")
    item = dataset.normalise({"problem": "x", "answer": 70}, 0)
    assert dataset.score(item, text) == score


def test_aime_reference_is_a_bare_integer() -> None:
    dataset = get_dataset("aime25")
    for answer in ("070", r"70^\circ", " $70$ ", 70):
        item = dataset.normalise({"question": "x", "answer": answer}, 0)
        assert dataset.reference(item) == "70"


def test_last_boxed_balances_braces() -> None:
    assert last_boxed(r"\boxed{a{b}{c{d}}} e}") == "a{b}{c{d}}"
    assert last_boxed("nothing") is None


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("The correct answer is (B)", 1.0),
        ("the correct answer is **B**.", 1.0),
        ("The answer is (A)? No. The correct answer is (B).", 1.0),
        ("The correct answer is (A), not (B)", 0.0),
        ("(B)", 1.0),
        ("B is wrong", 0.0),
        ("The correct answer is because", 0.0),
        ("", 0.0),
    ],
)
def test_longbench_score(text: str, score: float) -> None:
    item = Item("x", {"answer": "B"})
    assert get_dataset("longbench-v2").score(item, text) == score


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("The agency found two gaps.", 1.0),
        ("the agencies FOUND two gap", 1.0),  # the stem counts, not case or ending
        ("two gaps found the agency", 2 / 5),  # the longest common subsequence: found, two, gaps
        ("found two gaps", 2 * 1 * 0.6 / 1.6),
        ("nothing else", 0.0),
        ("", 0.0),
    ],
)
def test_govreport_score(text: str, score: float) -> None:
    dataset = get_dataset("govreport")
    item = dataset.normalise({"report": "long", "summary": "The agency found two gaps."}, 0)
    assert dataset.reference(item) == "The agency found two gaps."
    assert dataset.score(item, text) == pytest.approx(score)


def test_every_score_has_a_name_and_codeelo_needs_its_judge() -> None:
    names = {name: get_dataset(name).score_name for name in DATASETS}
    assert names == {
        "aime25": "boxed integer",
        "codeelo": None,
        "longbench-v2": "choice",
        "govreport": "ROUGE-L F1",
    }
    assert get_dataset("codeelo").score(Item("x", {}), "print(1)") is None


def test_every_dataset_states_its_defaults() -> None:
    expected = {"aime25": 4096, "codeelo": 4096, "longbench-v2": 512, "govreport": 512}
    assert {name: get_dataset(name).default_new_tokens for name in DATASETS} == expected
    assert {name for name in DATASETS if not get_dataset(name).default_thinking} == {"govreport"}
    for name in DATASETS:
        dataset = get_dataset(name)
        assert dataset.name == name
        assert dataset.summary
        assert dataset.hub_id
        assert dataset.hub_split
