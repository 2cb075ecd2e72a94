"""Rows of a dataset on the Hugging Face hub, with the commit that they come from."""

import re
from collections.abc import Iterator
from typing import Any, cast

from specbench.datasets.base import Dataset
from specbench.errors import DataError, UsageError

_COMMIT = re.compile(r"@([0-9a-f]{40})(?:/|$)")


def hub_rows(
    dataset: Dataset, revision: str | None = None
) -> tuple[Iterator[tuple[str, Any]], str | None]:
    """Each row with its place for messages, and the commit, where it can be known.

    Raises
    ------
    UsageError
        The dataset has no place on the hub.
    DataError
        The hub cannot be reached, refuses, or does not have the data.
    """
    if dataset.hub_id is None:
        raise UsageError(f"dataset {dataset.name} is not on the hub; give --source PATH")
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    # The error base of the HTTP library, which differs between versions of huggingface_hub.
    transport_error = cast("type[Exception]", HfHubHTTPError.__bases__[0])
    try:
        tables = [
            datasets.load_dataset(
                dataset.hub_id, config, split=dataset.hub_split, revision=revision
            )
            for config in dataset.hub_configs or (None,)
        ]
    # beside the library's own errors, what it makes of a damaged cache
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        transport_error,
        datasets.exceptions.DatasetsError,
    ) as error:
        at = f" at revision {revision}" if revision else ""
        detail = (str(error).strip().splitlines() or ["no details"])[0][:300]
        raise DataError(
            f"dataset {dataset.name}: cannot load {dataset.hub_id}{at} from the hub "
            f"({type(error).__name__}: {detail}). Without a network, give --source PATH "
            "(a local copy) or --source sample (the built-in sample)"
        ) from error
    return _rows(dataset, tables), commit_of(tables)


def _rows(dataset: Dataset, tables: list[Any]) -> Iterator[tuple[str, Any]]:
    for config, table in zip(dataset.hub_configs or (None,), tables, strict=True):
        part = " ".join(filter(None, (dataset.hub_id, config, dataset.hub_split)))
        for number, row in enumerate(table):
            yield f"{part} row {number}", row


def commit_of(tables: list[Any]) -> str | None:
    """The commit in the addresses from which the tables' files were downloaded.

    The cache keeps these addresses, so the commit is known without a network as well.
    """
    for table in tables:
        for address in table.download_checksums or {}:
            match = _COMMIT.search(address)
            if match:
                return match.group(1)
    return None
