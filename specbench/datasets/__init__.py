"""Datasets: what a run asks the model, loaded from the hub, a local file or the built-in sample."""

from specbench.datasets.base import Dataset
from specbench.errors import UsageError
from specbench.registry import Registry

DATASETS: Registry[type[Dataset]] = Registry("dataset", entry_point_group="specbench.datasets")
DATASETS.register_lazy("longbench-v2", "specbench.datasets.longbench_v2:LongBenchV2")
DATASETS.register_lazy("govreport", "specbench.datasets.govreport:GovReport")
DATASETS.register_lazy("aime25", "specbench.datasets.aime25:AIME25")
DATASETS.register_lazy("codeelo", "specbench.datasets.codeelo:CodeElo")

FILE_PREFIX = "file:"


def get_dataset(name: str) -> Dataset:
    """The dataset called `name`, or the prompt file that ``file:PATH`` names.

    Raises
    ------
    UsageError
        No such dataset (the nearest name is suggested), or ``file:`` without a path.
    """
    if name.startswith(FILE_PREFIX):
        path = name.removeprefix(FILE_PREFIX)
        if not path:
            raise UsageError("--dataset file: names no file; write --dataset file:PATH")
        from specbench.datasets.prompt_file import PromptFile

        return PromptFile(path)
    return DATASETS.get(name)()
