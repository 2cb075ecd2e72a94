"""What is chosen for the machine, and that it is said."""

from typing import Any

import pytest

from specbench.bench.defaults import resolve_machine
from specbench.config_build import build_config


@pytest.mark.parametrize(
    ("given", "shape"),
    [
        ({"method": "longspec"}, (4, 4, 4)),
        ({"method": "all"}, (4, 4, 4)),
        ({"method": "longspec", "tree_shape": (2, 3)}, (2, 3)),
        ({"method": "longspec", "drafts": "chain"}, None),
        ({"method": "vegas"}, None),
        ({"method": "all", "model": "of which no draft is known"}, None),
    ],
)
def test_trees_are_small_on_a_cpu(given: dict[str, Any], shape: tuple[int, ...] | None) -> None:
    config, choices = resolve_machine(build_config(given | {"device": "cpu"}))
    assert config.tree_shape == shape
    said = "tree-shape 4,4,4: the default on a CPU"
    assert (said in choices) == (shape == (4, 4, 4))
