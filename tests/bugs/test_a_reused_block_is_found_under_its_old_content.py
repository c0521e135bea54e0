"""Reported against nano-vllm (163) and openvino.genai (3722): a block that was given to somebody else is still found
under its old hash, or two contents share a hash: a request reads another one's keys and values."""

from __future__ import annotations

from tests.engine.shadow import make_request, make_shadow_core, run_to_end


class FourBitHash(int):
    """A token id with one of 16 hashes."""

    def __hash__(self) -> int:
        return int(self) & 15


def _serve(token_type: type[int], caching: bool) -> tuple[list[list[int]], int, int]:
    """Fill the cache, evict it by others, ask again; all reads are checked on the way."""
    core = make_shadow_core(8, 2, vocabulary=50, token_type=token_type, max_num_seqs=2, enable_prefix_caching=caching)
    outputs: list[list[int]] = []
    for round_ in range(4):
        for first in (1, 17, 33, 1):  # equal in their last four bits
            prompt = [token_type(token) for token in (first, 2, 18, 4, 5, first + 16 * round_)]
            seq = core.add(make_request(f"{round_}/{len(outputs)}", prompt, 4))
            run_to_end(core, 10)
            outputs.append([int(token) for token in seq.token_ids])
    manager = core.scheduler.block_manager
    return outputs, manager.hit_tokens, manager.evictions


def test_fill_evict_ask_again_gives_what_the_engine_gives_without_a_cache() -> None:
    outputs, hits, evictions = _serve(int, caching=True)
    assert min(hits, evictions) > 0
    assert outputs == _serve(int, caching=False)[0]


def test_a_four_bit_hash_changes_nothing() -> None:
    assert _serve(FourBitHash, caching=True) == _serve(int, caching=True)
