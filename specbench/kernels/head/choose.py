"""The launches of sampling: a survey of groups, the choice of a row's tokens, and all of them."""

import triton
import triton.language as tl

from specbench.kernels.head.ends import draw_within, keep_few, keep_many, part_of_draw
from specbench.kernels.head.groups import (
    distance_of_count,
    distance_of_mass,
    gather_visited,
    survey,
    visit,
)
from specbench.kernels.head.search import distances, gather_near
from specbench.kernels.launch import release_next, wait_for_previous


@triton.jit
def survey_groups(
    logits,
    stride,
    probs,
    best,
    mass,
    sharpness,
    ALL: tl.constexpr,
    GROUPS: tl.constexpr,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Best logit and mass of each group; zeros for the tokens that will not be kept."""
    row = tl.program_id(0).to(tl.int64)
    release_next(PDL)
    wait_for_previous(PDL)
    group = row * GROUPS
    survey(logits + row * stride, sharpness, best + group, mass + group, V, GROUP, CHUNK)
    if not ALL:
        index = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
        tl.store(probs + row * V + index, tl.zeros((CHUNK,), tl.float32), mask=index < V)


@triton.jit(do_not_specialize=["top_k"])
def choose_tokens(
    logits,
    stride,
    u,
    probs,
    token,
    bad,
    best,
    mass,
    visited,
    near,
    ids,
    scales,
    sharpness,
    top_p,
    top_k,
    TOP_K: tl.constexpr,
    TOP_P: tl.constexpr,
    GROUPS: tl.constexpr,
    PADDED: tl.constexpr,
    FEW: tl.constexpr,
    LIST: tl.constexpr,
    CAPACITY: tl.constexpr,
    V: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """What top-k and top-p leave of a row, and the token that is drawn of it."""
    row = tl.program_id(0).to(tl.int64)
    source, target = logits + row * stride, probs + row * V
    DRAW: tl.constexpr = u is not None
    release_next(PDL)
    wait_for_previous(PDL)
    group = tl.arange(0, PADDED)
    there = group < GROUPS
    most = tl.load(best + row * GROUPS + group, mask=there, other=-float("inf"))
    peak = tl.max(most, 0)
    good = (peak > -float("inf")) & (peak < float("inf"))
    known = (most > -float("inf")) & (most < float("inf"))
    away = tl.where(known, (peak - most) * sharpness, float("inf"))
    weights = tl.load(mass + row * GROUPS + group, mask=there, other=0.0) * tl.exp(-away)
    total = tl.sum(weights.to(tl.float64), 0)
    number = total * 0
    if DRAW:
        number = tl.load(u + row)
    chosen, last = -1, 0
    if good == 0:
        for first in tl.range(0, V, CHUNK):
            index = first + tl.arange(0, CHUNK)
            tl.store(target + index, tl.full((CHUNK,), float("nan"), tl.float32), mask=index < V)
    elif TOP_K or TOP_P:
        if TOP_K:
            cut = distance_of_count(away, top_k)
        else:
            cut = distance_of_mass(away, weights, top_p, total, GROUP)
        visited += row * GROUPS
        visits = visit(away, cut, there, visited)
        near, ids = near + row * CAPACITY, ids + row * CAPACITY
        count = gather_visited(
            source,
            peak,
            sharpness,
            cut,
            visited,
            visits,
            near,
            ids,
            V,
            GROUP,
            CHUNK // GROUP,
            CAPACITY,
        )
        if count <= FEW:
            chosen, last = keep_few(
                near, ids, count, target, number, top_k, top_p, total, TOP_K, TOP_P, DRAW, V, FEW
            )
        else:
            listed = count <= CAPACITY
            if not listed:
                # the row of `probs` holds the candidates until it is written
                near = target
                count = gather_near(source, target, peak, sharpness, cut, V, CHUNK)
            chosen, last = keep_many(
                source,
                peak,
                sharpness,
                near,
                ids,
                count,
                listed,
                target,
                number,
                top_k,
                top_p,
                total,
                TOP_K,
                TOP_P,
                DRAW,
                V,
                LIST,
            )
    elif DRAW:
        rest = number * total
        part, passed = part_of_draw(weights.to(tl.float64), group, rest)
        index = part * GROUP + tl.arange(0, GROUP)
        d = distances(source, part * GROUP, peak, sharpness, V, GROUP)
        chosen, last, passed = draw_within(tl.exp(-d), index, passed, rest, chosen, last, V)
    if not (TOP_K or TOP_P):
        tl.store(scales + row * 2, tl.where(good, peak, float("nan")))
        tl.store(scales + row * 2 + 1, 1 / total.to(tl.float32))
    tl.store(bad + row, good == 0)
    if DRAW:
        chosen = tl.where(chosen < 0, last, chosen)
        tl.store(token + row, tl.where(good, chosen, 0).to(tl.int64))


@triton.jit
def spread_weights(
    logits,
    stride,
    probs,
    scales,
    sharpness,
    V: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Probabilities of all tokens, where none is left out."""
    row = tl.program_id(0).to(tl.int64)
    release_next(PDL)
    wait_for_previous(PDL)
    peak, scale = tl.load(scales + row * 2), tl.load(scales + row * 2 + 1)
    first = tl.program_id(1) * CHUNK
    index = first + tl.arange(0, CHUNK)
    d = distances(logits + row * stride, first, peak, sharpness, V, CHUNK)
    tl.store(probs + row * V + index, tl.exp(-d) * scale, mask=index < V)
