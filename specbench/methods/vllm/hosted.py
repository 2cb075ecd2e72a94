"""Methods of specbench inside vLLM, and vLLM on the scheduling that they make it use."""

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, ClassVar

import specbench
from specbench.config import Normaliser, Queries, RunConfig
from specbench.engine.export import cache_root
from specbench.errors import DataError, UsageError
from specbench.methods.base import Capabilities, Method
from specbench.methods.magicdec.stream import StreamParameters
from specbench.methods.vegas import VegasParameters
from specbench.methods.vllm.method import (
    SPECULATIVE,
    Vllm,
    VllmParameters,
    check_argument,
    split_argument,
)

PROPOSER = "specbench.integrations.vllm.VegasProposer"
CONTROL = "vllm-v1-sync"
# vLLM's own largest graph: fewer rows than this keep all that it captures anyway
_LARGEST_GRAPH = 512
# its graphs of a verification come in steps of so many tokens, at most
_GRAPH_STEP = 16


class HostedVegasParameters(VegasParameters, VllmParameters):
    """Settings of Vegas, and of the vLLM that it runs in: it scores two saved queries exactly."""

    normaliser: Normaliser = "exact"
    queries: Queries = "first+last"


class HostedStreamParameters(StreamParameters, VllmParameters):
    """Settings of MagicDec's `stream`, and of the vLLM that it runs in."""


class Hosted(Vllm):
    """A method of specbench as vLLM's drafter (docs/vllm.md)."""

    # of vLLM's FlashAttention, which the drafter watches
    capabilities = Capabilities(dtypes=("bfloat16", "float16"))
    drafter: ClassVar[str]
    parameters: HostedVegasParameters | HostedStreamParameters

    @property
    def gamma(self) -> int:
        """Drafts of a step."""
        return self.parameters.gamma

    @property
    def speculation(self) -> dict[str, Any]:
        """The arm's `speculative_config`."""
        return {"model": PROPOSER, "num_speculative_tokens": self.gamma}

    @property
    def settings(self) -> dict[str, Any]:
        """What the plug-in is told, beside gamma."""
        own = {"gamma", "variant", *VllmParameters.model_fields}
        given = self.parameters.model_dump(exclude=own, exclude_unset=True)
        return {"method": self.drafter, **given}

    def engine_arguments(self, rows: int) -> list[str]:
        """See `Vllm`: the drafter, its backend, and a graph for a whole batch's verification.

        vLLM captures no more tokens than `max_num_seqs` requests can have, so that it takes some
        requests more for a size that is at least the whole batch's.
        """
        chunk = self.gamma + 1
        most = rows + -(-_GRAPH_STEP // chunk)
        tokens = -(-most * chunk // _GRAPH_STEP) * _GRAPH_STEP
        words = {
            "max_num_seqs": str(most),
            "attention_backend": "CUSTOM",
            "max_cudagraph_capture_size": str(max(tokens, _LARGEST_GRAPH)),
            SPECULATIVE: json.dumps(self.speculation),
            "additional_config": json.dumps({"specbench": self.settings}),
        }
        given = {split_argument(argument)[0] for argument in self.parameters.vllm_arg}
        return [
            word
            for key, value in words.items()
            if key not in given
            for word in (f"--{key.replace('_', '-')}", value)
        ]

    def environment(self) -> dict[str, str]:
        """See `Vllm`: specbench itself has to be found by vLLM's interpreter."""
        own, given = str(_alone()), os.environ.get("PYTHONPATH")
        return {"PYTHONPATH": os.pathsep.join([own, given] if given else [own])}

    def report(self) -> dict[str, Any]:
        """The settings for the records."""
        return super().report() | self.parameters.model_dump(
            exclude=set(VllmParameters.model_fields)
        )


def _alone() -> Path:
    """A folder with this package and nothing of what is installed beside it.

    Raises
    ------
    DataError
        The cache cannot be written to.
    """
    package = Path(specbench.__file__).resolve().parent
    name = hashlib.sha256(str(package).encode()).hexdigest()[:16]
    link = cache_root() / "hosted" / name / package.name
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(package, target_is_directory=True)
    except OSError as error:
        raise DataError(
            f"cannot write {link}: {error.strerror or error}; SPECBENCH_CACHE names another place"
        ) from error
    return link.parent


class HostedVegas(Hosted):
    """Vegas inside vLLM."""

    name = "vllm-vegas"
    drafter = "vegas"
    parameters_type = HostedVegasParameters


class HostedStream(Hosted):
    """MagicDec's `stream` inside vLLM."""

    name = "vllm-magicdec-stream"
    drafter = "magicdec"
    parameters_type = HostedStreamParameters

    def report(self) -> dict[str, Any]:
        """The settings for the records; of budget and kept_ratio, the one that holds."""
        unused = "budget" if self.parameters.kept_ratio is not None else "min_tokens"
        return {key: value for key, value in super().report().items() if key != unused}


class V1Sync(Vllm):
    """vLLM without speculation on its V1 runner with synchronous scheduling.

    Proposers of other people run nowhere else, so this is what their merit is measured against,
    beside vLLM as it comes.
    """

    name = CONTROL

    def engine_arguments(self, rows: int) -> list[str]:
        """See `Vllm`."""
        return ["--no-async-scheduling"]

    def environment(self) -> dict[str, str]:
        """See `Vllm`."""
        return {"VLLM_USE_V2_MODEL_RUNNER": "0"}


def hosted_arms(config: RunConfig, names: list[str]) -> dict[str, Method]:
    """The arms inside vLLM of the methods `names`, and their control.

    Raises
    ------
    UsageError
        None of the methods has a form inside vLLM, or a setting that it does not have there.
    """
    from specbench.integrations.vllm.settings import check_parameters

    kinds: dict[str, type[Hosted]] = {"vegas": HostedVegas, "magicdec": HostedStream}
    chosen = [kinds[name] for name in names if name in kinds]
    if not chosen:
        raise UsageError(
            f"--host vllm: inside vLLM there are {' and '.join(kinds)}, not {', '.join(names)}"
        )
    if HostedStream in chosen and config.variant not in (None, "stream"):
        raise UsageError(f"--host vllm: magicdec is its variant stream there, not {config.variant}")
    control = V1Sync.from_config(config)
    for argument in control.parameters.vllm_arg:
        if SPECULATIVE.startswith(check_argument(argument)[0]):
            raise UsageError(
                "--host vllm: a speculative_config is an arm of --method vllm; run it apart"
            )
    made: dict[str, Method] = {}
    for kind in chosen:
        method = kind.from_config(config)
        check_parameters(method.parameters)
        made[kind.name] = method
    return made | {CONTROL: control}
