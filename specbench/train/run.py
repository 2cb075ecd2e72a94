"""`specbench train longspec`: configuration to exit status."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specbench.errors import OutOfMemoryError
from specbench.train.config import TrainConfig
from specbench.train.prepare import prepare

if TYPE_CHECKING:
    from rich.console import Console


def run_training(config: TrainConfig, console: "Console", argv: Sequence[str]) -> int:
    """Train a draft, or go on with it.

    Parameters
    ----------
    config : TrainConfig
    console : Console
        Takes the choices, the progress bar and the evaluations.
    argv : sequence of str
        For the record.

    Returns
    -------
    int
        0 when it is complete or its minutes are over, 130 when it was interrupted.

    Raises
    ------
    SpecbenchError
        Unusable options, data or target, too little memory, a full disk, a loss that is not
        finite. The last checkpoint stays as it is.
    """
    import torch

    from specbench.train.session import Session

    began = time.monotonic()
    try:
        job = prepare(config, console, argv)
        if job is None:
            return 0
        with Session(job, console, began) as session:
            return session.run()
    except torch.OutOfMemoryError as error:
        raise OutOfMemoryError(
            f"the device has too little memory for {config.micro_tokens:,} tokens a forward: lower "
            "--micro-tokens, and --long-len where one row is too long"
        ) from error
