"""When kernels start early and fetch ahead."""

import pytest
import torch

triton = pytest.importorskip("triton")

from specbench.kernels import launch


def test_interpreted_kernels_do_not_overlap() -> None:
    if not triton.knobs.runtime.interpret:
        pytest.skip("kernels are compiled here")
    # whatever the device: it is not asked
    assert not launch.overlaps("cuda:7")
    assert launch.dependent(True, "cuda:7") == {"PDL": False, "launch_pdl": False}


def test_only_whole_aligned_weights_are_fetched_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "overlaps", lambda _: True)
    whole = torch.empty(33, 80, dtype=torch.bfloat16)
    # 5,280 bytes: what is left of the last 1,024 comes with the loads
    assert launch.to_fetch(whole, "cuda") == (whole, 5)
    assert launch.to_fetch(whole[:1], "cuda")[1] == 0
    assert launch.to_fetch(whole[:, :64], "cuda") == (None, 0)
    assert launch.to_fetch(whole.view(-1)[1:], "cuda") == (None, 0)
    assert launch.to_fetch(whole[:, :63].contiguous(), "cuda") == (None, 0)
