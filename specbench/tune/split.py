"""The prompts of a tuning in two parts: those it measures on, and those of the final figure."""

from specbench.bench.workload import Workload
from specbench.errors import UsageError


def split_workload(
    workload: Workload, tuning: int, held_out: int, exact: bool
) -> tuple[Workload, Workload, str | None]:
    """Tuning prompts, held-out prompts, and what should be known.

    No token sequence is in both parts: of equal prompts the first is used and the others are left
    out.

    Parameters
    ----------
    workload : Workload
    tuning, held_out : int
        Prompts wanted of each.
    exact : bool
        The user named these numbers; otherwise what there is is divided.

    Raises
    ------
    UsageError
        Too few different prompts.
    """
    unlike = list({tuple(r.token_ids): r for r in reversed(workload.requests)}.values())
    places = sorted(unlike, key=lambda request: request.index)
    note = None
    if len(places) < tuning + held_out:
        if exact or len(places) < 2:
            raise UsageError(
                f"{workload.info.name} yields {len(places)} different prompts, but tuning takes "
                f"{tuning} and the final figure {held_out} others: lower --num-prompts or "
                "--held-out"
            )
        tuning = min(tuning, (len(places) + 1) // 2)
        held_out = min(held_out, len(places) - tuning)
        note = f"{workload.info.name}: {tuning} prompts to tune on, {held_out} held out: all it has"
    first = [request.index for request in places[:tuning]]
    second = [request.index for request in places[tuning : tuning + held_out]]
    return _part(workload, first), _part(workload, second), note


def _part(workload: Workload, indices: list[int]) -> Workload:
    from specbench.datasets.prompts import hash_token_ids

    chosen = set(indices)
    requests = [r for r in workload.requests if r.index in chosen]
    info = workload.info.model_copy(
        update={
            "prompts": [p for p in workload.info.prompts if p.index in chosen],
            "token_ids_sha256": hash_token_ids([r.token_ids for r in requests]),
        }
    )
    return Workload(info, requests, workload.notes, workload.scorer)
