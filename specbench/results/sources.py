"""The runs of a report: read, and refused where comparing them would mislead."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specbench.errors import UsageError
from specbench.results.cells import Group, build_groups
from specbench.results.identity import differences
from specbench.results.protocol import device_name, sampling
from specbench.results.reading import RUN, RunData, read_folder
from specbench.results.records import RunRecord

_MODEL = ("architecture", "parameters", "rope_scaling", "dummy")


@dataclass(frozen=True)
class Source:
    """A run that a report is made of.

    Attributes
    ----------
    label : str
        Tells it from the report's other runs.
    folder : Path
    data : RunData
    groups : list of Group
    """

    label: str
    folder: Path
    data: RunData
    groups: list[Group]

    @property
    def run(self) -> RunRecord:
        """Its `run.json`."""
        return self.data.run


def read_sources(folders: Sequence[Path]) -> list[Source]:
    """Every run in `folders`; a folder without a run stands for the runs one level below it.

    Raises
    ------
    UsageError
        A folder that holds no run, or the same one twice.
    DataError, InvariantError
        A record that cannot be read or contradicts itself.
    """
    found = [run for folder in folders for run in _runs_in(folder)]
    taken = Counter(folder.resolve() for folder in found)
    double = next((folder for folder, count in taken.items() if count > 1), None)
    if double:
        raise UsageError(f"the run in {double} was given twice")
    sources = []
    for folder, label in zip(found, _labels(found), strict=True):
        data = read_folder(folder)
        sources.append(Source(label, folder, data, build_groups(data)))
    return sources


def check_comparable(sources: Sequence[Source], force: bool = False) -> list[str]:
    """Refuse runs whose figures may not stand in one table.

    Model, type, device, sampling and, for each dataset and context, prompts and new tokens must be
    equal. Batch and context may differ: each run is compared with its own baseline.

    Returns
    -------
    list of str
        The differences that `force` let pass, to be shown with every figure.

    Raises
    ------
    UsageError
        They differ; the message names each difference.
    """
    found: dict[str, None] = {}
    for place, source in enumerate(sources):
        for earlier in sources[:place]:
            where = (f"in {earlier.label}", f"in {source.label}")
            for line in differences(*_shared(earlier.run, source.run), where=where):
                found.setdefault(line)
    if found and not force:
        raise UsageError(
            f"these runs cannot be compared: {'; '.join(found)}; report them apart, or mark the "
            "table with --force"
        )
    return list(found)


def _shared(first: RunRecord, second: RunRecord) -> tuple[dict[str, Any], dict[str, Any]]:
    """What must be equal of two runs; of the prompts, those of loads that both have."""
    prompts = [_prompts(run) for run in (first, second)]
    common = prompts[0].keys() & prompts[1].keys()
    facts = [
        {
            "model": _model(run),
            "dtype": run.config.get("dtype"),
            "device": device_name(run),
            "sampling": sampling(run),
            "EOS": "ignored" if run.config.get("ignore_eos") else "ends",
            **{name: of[name] for name in of if name in common},
        }
        for run, of in zip((first, second), prompts, strict=True)
    ]
    return facts[0], facts[1]


def _model(run: RunRecord) -> dict[str, Any]:
    checkpoint = run.model.get("checkpoint_sha256")
    named = {"checkpoint": checkpoint} if checkpoint else {"name": run.model.get("spec")}
    return {name: run.model.get(name) for name in _MODEL} | named


def _prompts(run: RunRecord) -> dict[str, Any]:
    return {
        f"{entry.name} at context {entry.context_len}, batch {run.config.get('batch_size')}": {
            "prompts": f"{len(entry.prompts)}, sha256 {entry.token_ids_sha256[:12]}",
            "new tokens": entry.max_new_tokens,
        }
        for entry in run.datasets
    }


def _runs_in(folder: Path) -> list[Path]:
    if (folder / RUN).is_file() or not folder.is_dir():
        return [folder]
    below = sorted(path.parent for path in folder.glob(f"*/{RUN}"))
    return below or [folder]


def _labels(folders: Sequence[Path]) -> list[str]:
    """The shortest ends of the paths that differ."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=1) + 1):
        labels = ["/".join(path[-length:]) for path in parts]
        if len(set(labels)) == len(labels):
            return labels
    return [str(folder) for folder in folders]
