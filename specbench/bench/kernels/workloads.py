"""What is called for a case, on fresh random inputs: our kernels, their peers, and a check."""

from collections.abc import Callable
from dataclasses import dataclass

from specbench.bench.kernels.cases import Case
from specbench.bench.kernels.inputs import chains, pool, randn, sampled, selected
from specbench.bench.kernels.timing import Call
from specbench.bench.kernels.trees import tree_calls
from specbench.kernels.flash_attention import Peer

# with weights as Vegas collects them by default, and with those divided by their own sum
OURS, COLLECTING, EXACT, PEER = "ours", "collecting", "exact", "peer"
EAGER = "eager"
# whose peer is torch
_OF_TORCH = ("tree", "sample", "accept")
_CACHES = 4  # pools together are this many times the L2 cache, so that none is found in it


@dataclass(frozen=True)
class Workload:
    """A case's calls by kernel, each a list over the pools, and the bytes that one must move.

    `peer` is the name of what runs beside ours, if anything does.
    """

    calls: dict[str, list[Call]]
    nbytes: int
    peer: str | None = None


def build(case: Case, peer: Peer | None, device: str = "cuda") -> Workload:
    """The calls of `case`; ``peer`` is among them where there is one."""
    makers: dict[str, Callable[[Case, Peer | None, str, int], dict[str, Call]]] = {
        "verify": _verify,
        "tree": _tree,
        "sparse": _sparse,
        "select": _select,
        "sample": _sample,
        "accept": _accept,
    }
    of = {"select": case.score_bytes, "sample": case.token_bytes, "accept": case.token_bytes}
    nbytes = of.get(case.op, case.kv_bytes)
    calls: dict[str, list[Call]] = {}
    for seed in range(pool_count(nbytes, device)):
        for name, call in makers[case.op](case, peer, device, seed).items():
            calls.setdefault(name, []).append(call)
    beside = peer.name if peer else None
    return Workload(calls, nbytes, "torch" if case.op in _OF_TORCH else beside)


def pool_count(nbytes: int, device: str) -> int:
    """Inputs of `nbytes` that calls must rotate over to find none of them in a GPU's cache."""
    return -(-_CACHES * _cache_bytes(device) // nbytes) + 1


def _verify(case: Case, peer: Peer | None, device: str, seed: int) -> dict[str, Call]:
    import torch

    from specbench.kernels.paged_attention.reference import Collect
    from specbench.kernels.paged_attention.triton import PagedAttention
    from specbench.methods.vegas import VegasParameters

    keys, values, table = pool(case, device, seed)
    shape = case.batch, case.rows, case.heads, case.dim
    q = randn(shape, device, seed)
    kv_lens = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
    q_lens = torch.full_like(kv_lens, case.rows)
    ranked = kv_lens - case.rows + 1
    kind = getattr(torch, case.scores)
    scores = torch.empty(case.batch, case.kv_heads, case.context, dtype=kind, device=device)
    out = torch.empty_like(q)
    scale = case.dim**-0.5

    def attention(collect: Collect | None, one_pass: bool = False) -> PagedAttention:
        return PagedAttention(
            *(case.batch, case.rows, case.heads, case.kv_heads, case.dim),
            case.context,
            q.dtype,
            device,
            collect,
            one_pass,
        )

    collect = Collect(queries=VegasParameters().queries)
    plain, collecting, exact = attention(None), attention(collect, True), attention(collect)
    # of the rows that vote, as their draft steps left them
    norm = torch.zeros(case.batch, collecting.collecting.rows, case.heads, device=device)
    common = q, keys, values, table, kv_lens, q_lens, scale
    calls: dict[str, Call] = {
        OURS: lambda: plain(*common, out=out),
        COLLECTING: lambda: collecting(*common, out=out, ranked=ranked, scores=scores, norm=norm),
        EXACT: lambda: exact(*common, out=out, ranked=ranked, scores=scores),
    }
    if peer is not None:
        # laid out as its callers have them
        k, v = keys.contiguous(), values.contiguous()
        calls[PEER] = lambda: peer.attend(q, k, v, table, kv_lens, case.context, True)
    return calls


def _tree(case: Case, _: Peer | None, device: str, seed: int) -> dict[str, Call]:
    return dict(zip((OURS, PEER, EAGER), tree_calls(case, device, seed), strict=True))


def _sparse(case: Case, peer: Peer | None, device: str, seed: int) -> dict[str, Call]:
    import torch

    from specbench.kernels.sparse_attention.triton import sparse_attention
    from specbench.kernels.sparse_attention.workspace import SparseAttentionWorkspace

    keys, values, table = pool(case, device, seed)
    q = randn((case.batch, 1, case.heads, case.dim), device, seed)
    slots = selected(case, table, device, seed)
    tail = torch.full((case.batch, 1), -1, dtype=torch.int32, device=device)
    out = torch.empty_like(q)
    workspace = SparseAttentionWorkspace(
        case.batch, case.heads, case.kv_heads, case.dim, q.dtype, device
    )
    scale = case.dim**-0.5
    calls: dict[str, Call] = {
        OURS: lambda: sparse_attention(
            q, keys, values, slots, tail, scale, workspace=workspace, out=out, settled=True
        )
    }
    if peer is not None:
        # a page of one token, and one list for all heads: FlashAttention has no other
        k1, v1 = (x.reshape(-1, 1, case.kv_heads, case.dim) for x in (keys, values))
        shared = slots[:, 0].contiguous()
        lens = torch.full((case.batch,), case.entries, dtype=torch.int32, device=device)
        calls[PEER] = lambda: peer.attend(q, k1, v1, shared, lens, case.entries, False)
    return calls


def _select(case: Case, peer: Peer | None, device: str, seed: int) -> dict[str, Call]:
    import torch

    from specbench.kernels.selection.triton import select
    from specbench.kernels.selection.workspace import SelectionWorkspace

    generator = torch.Generator(device).manual_seed(seed)
    shape = case.layers, case.batch, case.kv_heads, case.context
    # weights of attention are skewed: most are next to nothing
    scores = torch.empty(shape, device=device).exponential_(generator=generator).pow_(4)
    scores = scores.to(getattr(torch, case.scores))
    ranked = torch.full((case.batch,), case.context, dtype=torch.int32, device=device)
    keep = torch.full_like(ranked, case.entries)
    out = torch.empty(*shape[:3], case.entries, dtype=torch.int32, device=device)
    rows = case.layers * case.batch * case.kv_heads
    workspace = SelectionWorkspace(rows, case.context, case.entries, device, dtype=scores.dtype)
    return {OURS: lambda: select(scores, ranked, keep, case.entries, workspace=workspace, out=out)}


def _sample(case: Case, _: Peer | None, device: str, seed: int) -> dict[str, Call]:
    from specbench.engine import sampling
    from specbench.kernels.head.sample import sample

    drawn, logits, u = sampled(case, device, seed)
    u = u[:, 0].contiguous()
    return {
        OURS: lambda: sample(logits, drawn, u),
        PEER: lambda: sampling.sample(logits.float(), drawn, u),
    }


def _accept(case: Case, _: Peer | None, device: str, seed: int) -> dict[str, Call]:
    from specbench.engine import acceptance
    from specbench.kernels.head.accept import accept_sampled

    given = chains(case, device, seed)
    return {
        OURS: lambda: accept_sampled(*given),
        PEER: lambda: acceptance.accept_sampled(*given),
    }


def _cache_bytes(device: str) -> int:
    import torch

    if device != "cuda":
        return 0
    size: int = torch.cuda.get_device_properties(0).L2_cache_size
    return size
