# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, misc"
"""Triton kernels of paged attention: write the cache, attend to it for prompts' chunks, attend to it for decodes.

The query heads of one key-value head are rows of the same tile, so keys and values are read once for all of them. The
softmax is the running one of FlashAttention (Dao et al. 2022), in base 2; decodes split a long context over several
programs whose parts ``combine_kernel`` joins (Flash-Decoding, Dao et al. 2023). Every index into the cache is int64.

Annotations are left out but for ``tl.constexpr``: the compiler reads them.
"""

import triton
import triton.language as tl


@triton.jit
def write_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slots,
    key_row,
    key_head,
    value_row,
    value_head,
    cache_slot,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Row i of ``key`` and ``value`` [T, HEADS, HEAD_DIM] goes to cache row ``slots[i]``; nowhere if that is negative.

    One program a row. ``*_row`` and ``*_head`` are strides; WIDTH is a power of two of at least HEADS * HEAD_DIM.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    head = lane // HEAD_DIM
    inside = lane % HEAD_DIM
    mask = lane < tl.where(slot >= 0, HEADS * HEAD_DIM, 0)
    keys = tl.load(key + row * key_row + head * key_head + inside, mask=mask, other=0.0)
    values = tl.load(value + row * value_row + head * value_head + inside, mask=mask, other=0.0)
    tl.store(key_cache + slot * cache_slot + lane, keys, mask=mask)
    tl.store(value_cache + slot * cache_slot + lane, values, mask=mask)


@triton.jit
def _product(a, b, PRECISION: tl.constexpr, WIDEN: tl.constexpr):
    """``a @ b`` summed in float32. WIDEN, for the interpreter, whose ``dot`` doesn't know bfloat16, changes no number."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _attend(
    query,
    limit,
    begin,
    end,
    key_cache,
    value_cache,
    table,
    cache_slot,
    scale,
    best,
    total,
    mixed,
    lanes,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_N: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Context positions ``begin`` to ``end`` into the running softmax of a tile of rows; row i sees those below ``limit[i]``.

    ``query`` [M, D] in the cache's type; ``best``, ``total`` float32 [M] and ``mixed`` float32 [M, D] are its state.
    ``begin`` is a multiple of TILE_N.
    """
    for start in range(begin, end, TILE_N):
        position = start + tl.arange(0, TILE_N)
        known = position < end
        if BLOCK_SIZE % TILE_N == 0:  # the tile lies in one block
            block = tl.load(table + start // BLOCK_SIZE).to(tl.int64)
        else:
            block = tl.load(table + position // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        offset = (block * BLOCK_SIZE + position % BLOCK_SIZE) * cache_slot
        keys = tl.load(
            key_cache + offset[None, :] + lanes[:, None], mask=known[None, :] & (lanes[:, None] < HEAD_DIM), other=0.0
        )
        scores = _product(query, keys, PRECISION, WIDEN) * scale
        scores = tl.where(position[None, :] < limit[:, None], scores, float("-inf"))
        larger = tl.maximum(best, tl.max(scores, 1))
        # A row that has seen nothing yet keeps -inf as its largest score; 0 stands in, so that no inf - inf arises.
        base = tl.where(larger == float("-inf"), 0.0, larger)
        weights = tl.exp2(scores - base[:, None])
        keep = tl.exp2(best - base)
        total = total * keep + tl.sum(weights, 1)
        values = tl.load(
            value_cache + offset[:, None] + lanes[None, :], mask=known[:, None] & (lanes[None, :] < HEAD_DIM), other=0.0
        )
        mixed = mixed * keep[:, None] + _product(weights.to(values.dtype), values, PRECISION, WIDEN)
        best = larger
    return best, total, mixed


@triton.jit(do_not_specialize=["table_width"])
def prefill_kernel(
    query,
    key_cache,
    value_cache,
    out,
    tile_seqs,
    tile_firsts,
    query_start,
    context_lens,
    block_tables,
    query_row,
    query_head,
    out_row,
    out_head,
    cache_slot,
    cache_head,
    table_width,
    scale,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """Causal attention of several new tokens a sequence over its paged context, computed part and new part alike.

    Program (tile, key-value head): TILE_M // GROUP tokens of sequence ``tile_seqs[tile]`` from its new token
    ``tile_firsts[tile]`` on, GROUP query heads each. ``scale`` includes log2(e).
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    seq = tl.load(tile_seqs + tile)
    first = tl.load(tile_firsts + tile)
    start = tl.load(query_start + seq)
    count = tl.load(query_start + seq + 1) - start
    context = tl.load(context_lens + seq)

    TOKENS: tl.constexpr = TILE_M // GROUP
    row = tl.arange(0, TILE_M)
    lanes = tl.arange(0, LANES)
    token = first + row // GROUP
    head = kv_head * GROUP + row % GROUP
    is_row = (row < TOKENS * GROUP) & (token < count)
    mask = is_row[:, None] & (lanes[None, :] < HEAD_DIM)
    rows = (start + token).to(tl.int64)
    queries = tl.load(
        query + rows[:, None] * query_row + head[:, None] * query_head + lanes[None, :], mask=mask, other=0.0
    )
    limit = tl.where(is_row, context - count + token + 1, 0)
    end = context - count + tl.minimum(first + TOKENS, count)

    best = tl.full([TILE_M], float("-inf"), tl.float32)
    total = tl.zeros([TILE_M], tl.float32)
    mixed = tl.zeros([TILE_M, LANES], tl.float32)
    best, total, mixed = _attend(
        queries,
        limit,
        0,
        end,
        key_cache + kv_head * cache_head,
        value_cache + kv_head * cache_head,
        block_tables + seq.to(tl.int64) * table_width,
        cache_slot,
        scale,
        best,
        total,
        mixed,
        lanes,
        HEAD_DIM,
        BLOCK_SIZE,
        TILE_N,
        PRECISION,
        WIDEN,
    )
    mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + rows[:, None] * out_row + head[:, None] * out_head + lanes[None, :],
        mixed.to(out.dtype.element_ty),
        mask=mask,
    )


@triton.jit(do_not_specialize=["table_width"])
def decode_kernel(
    query,
    key_cache,
    value_cache,
    out,
    part_mixed,
    part_best,
    part_total,
    decode_seqs,
    query_start,
    context_lens,
    block_tables,
    query_row,
    query_head,
    out_row,
    out_head,
    cache_slot,
    cache_head,
    table_width,
    scale,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE_N: tl.constexpr,
    SPLITS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDEN: tl.constexpr,
):
    """One new token a sequence. Program (i, key-value head, split): a share of the context of sequence ``decode_seqs[i]``.

    The share follows from the length that the program reads, so that one captured launch fits any context. With one
    split the result goes to ``out``, else the parts to ``part_mixed`` float32 [B, HEADS, SPLITS, HEAD_DIM] and
    ``part_best``, ``part_total`` float32 [B, HEADS, SPLITS]. A sequence of length 0 (a padding row) gives zeros.
    """
    index = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    seq = tl.load(decode_seqs + index)
    context = tl.load(context_lens + seq)
    share = tl.cdiv(tl.cdiv(context, TILE_N), SPLITS) * TILE_N
    begin = split * share
    end = tl.minimum(begin + share, context)

    row = tl.arange(0, ROWS)
    lanes = tl.arange(0, LANES)
    head = kv_head * GROUP + row
    is_row = row < GROUP
    mask = is_row[:, None] & (lanes[None, :] < HEAD_DIM)
    at = tl.load(query_start + seq).to(tl.int64)
    queries = tl.load(query + at * query_row + head[:, None] * query_head + lanes[None, :], mask=mask, other=0.0)
    limit = tl.where(is_row, context, 0)

    best = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    mixed = tl.zeros([ROWS, LANES], tl.float32)
    best, total, mixed = _attend(
        queries,
        limit,
        begin,
        end,
        key_cache + kv_head * cache_head,
        value_cache + kv_head * cache_head,
        block_tables + seq.to(tl.int64) * table_width,
        cache_slot,
        scale,
        best,
        total,
        mixed,
        lanes,
        HEAD_DIM,
        BLOCK_SIZE,
        TILE_N,
        PRECISION,
        WIDEN,
    )
    if SPLITS == 1:
        mixed = mixed / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(
            out + at * out_row + head[:, None] * out_head + lanes[None, :], mixed.to(out.dtype.element_ty), mask=mask
        )
    else:
        part = (index.to(tl.int64) * HEADS + head) * SPLITS + split
        tl.store(part_mixed + part[:, None] * HEAD_DIM + lanes[None, :], mixed, mask=mask)
        tl.store(part_best + part, best, mask=is_row)
        tl.store(part_total + part, total, mask=is_row)


@triton.jit
def combine_kernel(
    part_mixed,
    part_best,
    part_total,
    out,
    decode_seqs,
    query_start,
    out_row,
    out_head,
    HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    LANES: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """Joins the parts of one sequence and query head: program (i, head); SPLITS is a power of two."""
    index = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.arange(0, SPLITS)
    lanes = tl.arange(0, LANES)
    part = (index.to(tl.int64) * HEADS + head) * SPLITS + split
    best = tl.load(part_best + part)
    larger = tl.max(best, 0)
    weights = tl.exp2(best - tl.where(larger == float("-inf"), 0.0, larger))
    total = tl.sum(weights * tl.load(part_total + part), 0)
    mixed = tl.load(part_mixed + part[:, None] * HEAD_DIM + lanes[None, :], mask=(lanes < HEAD_DIM)[None, :], other=0.0)
    joined = tl.sum(weights[:, None] * mixed, 0) / tl.where(total == 0.0, 1.0, total)
    at = tl.load(query_start + tl.load(decode_seqs + index)).to(tl.int64)
    tl.store(out + at * out_row + head * out_head + lanes, joined.to(out.dtype.element_ty), mask=lanes < HEAD_DIM)
