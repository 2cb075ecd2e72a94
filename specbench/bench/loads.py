"""The loads of a command: batches and contexts, each by itself."""

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

from specbench.config import SweepConfig
from specbench.errors import UsageError

if TYPE_CHECKING:
    from specbench.bench.plan import Plan

C = TypeVar("C", bound=SweepConfig)
T = TypeVar("T")


def split_loads(config: C) -> dict[str, C]:
    """The configuration of each load by its name, contexts ascending, then batches.

    A name says what loads differ in (``b16-c2048``); that of an only load is empty.
    """
    batches, contexts = config.batch_size or (None,), config.context_len or (None,)
    found = {}
    for context, batch in product(contexts, batches):
        parts = [f"b{batch}"] if len(batches) > 1 else []
        parts += [f"c{context}"] if len(contexts) > 1 else []
        one = {
            "batch_size": None if batch is None else (batch,),
            "context_len": None if context is None else (context,),
        }
        given = {name: value for name, value in one.items() if value is not None}
        found["-".join(parts)] = config.model_copy(update=given)
    return found


def plan_loads(
    parts: dict[str, C], prepare: Callable[[str, C], T], plan_of: Callable[[T], "Plan"]
) -> dict[str, T]:
    """What `prepare` makes of each load, all of them on one model, in the order of `parts`.

    The longest context decides how the model's is extended, for all loads.

    Raises
    ------
    UsageError
        Two loads have the same batch and prompts.
    """
    made: dict[str, T] = {}
    scaling = None
    for name, part in reversed(parts.items()):
        if scaling is not None:
            part = part.model_copy(update={"rope_scaling": scaling})
        made[name] = prepare(name, part)
        scaling = plan_of(made[name]).config.rope_scaling
    seen: dict[Any, str] = {}
    for name in parts:
        plan = plan_of(made[name])
        key = plan.rows, tuple(workload.info.token_ids_sha256 for workload in plan.workloads)
        if key in seen:
            raise UsageError(
                f"the loads {name} and {seen[key]} are one: their prompts are the same, since none "
                "is longer, or fewer than the batch; leave out the larger"
            )
        seen[key] = name
    return {name: made[name] for name in parts}
