"""All layers of a draft step in one launch of resident programs, in Triton."""

import math
from typing import Any

import triton
from torch import Tensor

from specbench.kernels.launch import dependent, fetchable
from specbench.kernels.norm.reference import Prenormed
from specbench.kernels.step.layers import ALL, EMBED, PHASES, all_layers
from specbench.kernels.step.plan import StepLaunch, choose, plan
from specbench.kernels.step.weights import StepWeights
from specbench.kernels.step.workspace import StepWorkspace

# with more, addresses of all phases are computed once, and registers that a phase needs hold them
_ASSEMBLER = "--register-usage-level=0"


def draft_layers(
    tokens: Tensor,
    weights: StepWeights,
    cos: Tensor,
    signed_sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    selected: Tensor,
    tail: Tensor,
    scale: float,
    workspace: StepWorkspace,
    *,
    lse: Tensor | None = None,
    launch: StepLaunch | None = None,
    apart: bool = False,
) -> tuple[Tensor, Prenormed]:
    """From tokens to the residual stream behind the last layer, as the kernels of a layer in turn.

    Parameters
    ----------
    tokens : Tensor
        int64 `[n]`, n at most 64, one token a request.
    weights : StepWeights
    cos, signed_sin : Tensor
        Tables of the rotation.
    positions, slots : Tensor
        `[n]`, as for `qkv.project_rope_write_kv`.
    keys, values : Tensor
        `[layers, pages, page_size, Hkv, D]`, of any but equal strides, dense in D.
    selected : Tensor
        Integers `[layers, n, S, K]`, S being Hkv or 1: slots, -1 for none; they and their entries
        are written before the launch.
    tail : Tensor
        Integers `[n, T]`, the slots behind them, the token's own among them, -1 for none.
    scale : float
        Of the logits.
    workspace : StepWorkspace
        For launches that follow one another on a stream; returned tensors are part of it.
    lse : Tensor, optional
        `[layers, n, H]`, where the log-sum-exps of the logits are left.
    launch : StepLaunch, optional
        Instead of the table's.
    apart : bool
        A launch for each phase, in place of barriers. The interpreter has no other way.

    Returns
    -------
    stream : Tensor
        `[n, hidden]`.
    begun : Prenormed
        The final norm begun on it.
    """
    shape, rows = weights.shape, len(tokens)
    width, tails = selected.shape[-1], tail.shape[-1]
    launch = launch or choose(rows, shape.dim)
    item = weights.embed.element_size()
    cut = plan(shape, rows, width, tails, launch, tokens.device, item)
    _check(keys, values, selected, tail)
    workspace.fit(cut, shape, rows)
    page, sets = keys.shape[2], selected.shape[2]
    head_stride = selected.stride(2) if sets > 1 else 0

    def run(only: int, begin: int, end: int) -> None:
        options: dict[str, Any] = {
            "num_warps": launch.num_warps,
            "launch_cooperative_grid": launch.cooperative and only == ALL,
            "ptx_options": _ASSEMBLER,
        }
        all_layers[(cut.programs,)](
            tokens,
            weights.embed,
            weights.embed.stride(0),
            weights.first_norm,
            weights.addresses,
            workspace.stream,
            workspace.rows,
            workspace.squares,
            workspace.mlp_rows,
            workspace.mlp_squares,
            workspace.q,
            workspace.attended,
            workspace.gated,
            positions,
            slots,
            cos,
            signed_sin,
            keys,
            values,
            keys.stride(0),
            keys.stride()[1:],
            selected,
            selected.stride(0),
            (selected.stride(1), head_stride),
            tail,
            tail.stride(0),
            lse,
            0 if lse is None else lse.stride(0),
            (0, 0) if lse is None else lse.stride()[1:],
            workspace.partial,
            workspace.parts,
            workspace.sums,
            workspace.arrivals,
            workspace.counters,
            workspace.barrier,
            rows,
            begin,
            end,
            width,
            tails,
            cut.splits,
            scale * math.log2(math.e),
            weights.eps,
            M=shape,
            PAGE=page,
            FLAT=keys.stride(1) == page * keys.stride(2),
            BESIDE=values.data_ptr() - keys.data_ptr() == shape.dim * item,
            FETCHABLE=shape.dim * item % 16 == 0 and fetchable(keys) and fetchable(values),
            QKV_CUT=cut.qkv,
            O_CUT=cut.o,
            GATE_UP_CUT=cut.gate_up,
            DOWN_CUT=cut.down,
            LISTS=cut.lists,
            AHEAD=launch.ahead and dependent(True, tokens.device)["PDL"],
            BIASED=weights.biased,
            ROWS=cut.rows,
            PROGRAMS=cut.programs,
            ONLY=only,
            **options,
        )

    layers = len(weights.addresses)
    if apart or triton.knobs.runtime.interpret:
        # in the interpreter programs run in turn, so that none may wait for another
        run(EMBED, 0, 0)
        for layer in range(layers):
            for phase in PHASES[1:]:
                run(phase, layer, layer + 1)
    else:
        run(ALL, 0, layers)
    return workspace.stream[:rows], Prenormed(
        workspace.rows[:rows], workspace.squares[: cut.down.tiles]
    )


def _check(keys: Tensor, values: Tensor, selected: Tensor, tail: Tensor) -> None:
    if keys.shape != values.shape or keys.stride() != values.stride() or keys.stride(4) != 1:
        raise ValueError(
            f"keys of shape {tuple(keys.shape)} and strides {keys.stride()}, values of "
            f"{tuple(values.shape)} and {values.stride()}: expected the same, dense in their last "
            "axis"
        )
    if selected.shape[2] not in (1, keys.shape[3]):
        raise ValueError(f"{selected.shape[2]} lists a request; expected 1 or {keys.shape[3]}")
    if any(x.shape[-1] > 1 and x.stride(-1) != 1 for x in (selected, tail)):
        raise ValueError("lists of slots must be dense in their last axis")
