"""Arms that run as one CUDA graph and arms that cannot are not compared by accident."""

import pytest
import torch

pytest.importorskip("triton")

from specbench.bench.arms import Arm, check_graph_modes
from specbench.bench.memory import plan_memory
from specbench.config import RunConfig
from specbench.engine.compute import uses_triton
from specbench.errors import UsageError
from specbench.methods.autoregressive import Autoregressive
from tests.support.tiny import autoregressive, tiny_config, vegas

ARMS = [Arm("autoregressive", autoregressive()), Arm("vegas", vegas())]


class OnTheHost(Autoregressive):
    """A method that cannot be captured."""

    capturable = False


EAGER = Arm("eager", OnTheHost(Autoregressive.parameters_type()))


def config(**values: object) -> RunConfig:
    return RunConfig(**({"device": "cuda"} | values))  # type: ignore[arg-type]


def test_an_eager_arm_beside_captured_ones_is_refused() -> None:
    """vllm#27325, PR#50488."""
    with pytest.raises(UsageError, match=r"^eager cannot run as a CUDA graph.*--allow-"):
        check_graph_modes([*ARMS, EAGER], config(), torch.bfloat16)


@pytest.mark.parametrize(
    "values",
    [{"allow_eager": True}, {"graphs": False}, {"device": "cpu"}, {"attention_backend": "sdpa"}],
)
def test_where_all_run_alike_or_the_user_knows(values: dict[str, object]) -> None:
    check_graph_modes([*ARMS, EAGER], config(**values), torch.bfloat16)


def test_alone_an_eager_arm_may_run() -> None:
    check_graph_modes([EAGER], config(), torch.bfloat16)
    check_graph_modes(ARMS, config(), torch.bfloat16)
    # nothing is captured in float64, which the kernels do not have
    check_graph_modes([*ARMS, EAGER], config(), torch.float64)


def test_backends() -> None:
    assert uses_triton("auto", "cuda", torch.bfloat16)
    assert not uses_triton("auto", "cuda", torch.float64)
    assert not uses_triton("auto", "cpu", torch.float32)
    assert not uses_triton("sdpa", "cuda", torch.bfloat16)
    with pytest.raises(UsageError, match="float32 at most"):
        uses_triton("triton", "cuda", torch.float64)


def test_memory_of_the_triton_kernels_does_not_grow_with_the_square_of_the_context() -> None:
    def working(max_len: int, triton: bool) -> int:
        plan = plan_memory(
            tiny_config(num_heads=32, num_kv_heads=8),
            torch.bfloat16,
            [vegas()],
            rows=1,
            max_len=max_len,
            prefill_chunk=4096,
            sampled=False,
            triton=triton,
        )
        return plan.working

    assert working(100_000, triton=True) < 3 * 2**30
    assert working(100_000, triton=False) > 100 * 2**30
