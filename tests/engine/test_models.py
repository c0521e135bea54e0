"""Our models against transformers', in float32: tiny ones in every variation, and the preset on real prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from engine.block_manager import BlockManager
from engine.layers.rotary_embedding import inverse_frequencies
from engine.model_runner import ModelRunner
from engine.models.config import ModelConfig
from engine.sequence import Sequence
from engine.tokenizer import Tokenizer
from engine.weights.checkpoint import Checkpoint, load_checkpoint, load_folder
from engine.weights.hf_config import config_to_hf
from tests.engine import tiny_models
from tests.engine.model_driver import Driver, check_against_oracle, oracle_logits
from tests.engine.trials import BATCHES, BLOCKS, CHUNKS, WHOLE, Setting, Tally, covering_array, make_runner, run_trial

PRESET = "smollm2-135m-instruct"
PROMPT_LENGTHS = (5, 23, 40)
STEPS = 6


Tiny = Callable[[str], tuple[Any, Checkpoint]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """From a kind to a transformers model and our checkpoint of the folder it was saved to, each built once."""

    @cache
    def build(kind: str) -> tuple[Any, Checkpoint]:
        folder: Path = tmp_path_factory.mktemp(kind)
        return tiny_models.build(kind, folder), load_folder(folder, None, kind)

    return build


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny operations on several threads mostly wait for each other, above all on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(0, 384, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


ATTENTIONS = ("sdpa", "reference")
KINDS = ("llama", "qwen2", "qwen3")
FACTORIAL = [
    (kind, attention, block_size, chunk)
    for kind in KINDS
    for attention in ATTENTIONS
    for block_size in (1, 3, 16)
    for chunk in (1, 7, 10_000)
]
SCHEDULED = covering_array(CHUNKS, BLOCKS, BATCHES, (True, False), (True, False), ATTENTIONS, KINDS)
VARIATIONS = [(kind, "sdpa", 3, 7) for kind in tiny_models.KINDS if "-" in kind]


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("kind", "attention", "block_size", "chunk"), FACTORIAL + VARIATIONS)
def test_tiny_models_equal_transformers_in_any_chunk_block_and_batch(
    tiny: Tiny, kind: str, attention: str, block_size: int, chunk: int
) -> None:
    model, checkpoint = tiny(kind)
    runner = ModelRunner(checkpoint, num_kv_blocks=200, block_size=block_size, attention=attention)
    for batch in ([0], [1, 0, 2]):
        driver = Driver(runner, chunk)
        seqs = [driver.start(prompts()[i]) for i in batch]
        found = driver.run(seqs, STEPS)
        for seq, logits in zip(seqs, found, strict=True):
            check_against_oracle(logits, oracle_logits(model, seq.token_ids, seq.num_prompt_tokens))


def test_every_pair_of_settings_is_in_the_covering_array() -> None:
    levels = (CHUNKS, BLOCKS, BATCHES, (True, False), (True, False), ATTENTIONS, KINDS)
    for (i, first), (j, second) in combinations(enumerate(levels), 2):
        assert {(row[i], row[j]) for row in SCHEDULED} == set(product(first, second))
    assert len(SCHEDULED) < 25


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("row", SCHEDULED, ids=lambda row: "-".join(map(str, row)))
def test_tiny_models_equal_transformers_whatever_the_scheduler_does(tiny: Tiny, row: tuple[Any, ...]) -> None:
    """Chunks, blocks, batches, prefix cache and preemption by the real scheduler; benchmarks/correctness.py has them all."""
    setting, (model, checkpoint) = Setting(*row[:-1]), tiny(row[-1])
    ids = torch.randint(0, 384, (80,), generator=torch.Generator().manual_seed(4)).tolist()
    starts = [ids[:1], ids[:16], ids[40:73], ids[40:73], ids[40:57] + ids[:9], ids[:7]]
    trial = run_trial(make_runner(checkpoint, setting, starts, STEPS), setting, starts, STEPS)
    tally = Tally()
    for token_ids, logits in zip(trial.token_ids, trial.logits, strict=True):
        tally.add(logits, oracle_logits(model, token_ids, len(token_ids) - STEPS))
    assert tally.passes, tally
    assert (trial.preemptions > 0) == setting.preempt
    assert (trial.hit_tokens > 0) == (setting.caching and setting.block_size <= 16)


@pytest.mark.usefixtures("one_thread")
def test_a_prefix_found_in_the_wrong_blocks_would_be_seen(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, checkpoint = tiny("llama")
    find = BlockManager._cached_prefix

    def find_wrongly(manager: BlockManager, seq: Sequence) -> tuple[list[int], list[int]]:
        blocks, numbers = find(manager, seq)
        return blocks[:1] * len(blocks), numbers  # reversed they would do: attention is a sum over the context

    monkeypatch.setattr(BlockManager, "_cached_prefix", find_wrongly)
    setting, starts = Setting(WHOLE, 4, 2, True, False), [prompts()[1]] * 2
    trial = run_trial(make_runner(checkpoint, setting, starts, STEPS), setting, starts, STEPS)
    for token_ids, logits, is_right in zip(trial.token_ids, trial.logits, (True, False), strict=True):
        tally = Tally()
        tally.add(logits, oracle_logits(model, token_ids, len(token_ids) - STEPS))
        assert tally.passes == is_right


@pytest.mark.parametrize("scaling", [tiny_models.LINEAR_ROPE, tiny_models.LLAMA3_ROPE, tiny_models.YARN_ROPE])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_rotary_frequencies_equal_transformers(scaling: dict[str, Any], head_dim: int) -> None:
    changes = {key: value for key, value in scaling.items() if key != "rope_theta"}
    tiny = ModelConfig("llama", 384, head_dim * 4, 64, 1, 4, 4, head_dim, max_position_embeddings=4096)
    ours, factor = inverse_frequencies(replace(tiny, rope_theta=500_000.0, rope_scaling=changes))
    theirs_config = LlamaConfig(**config_to_hf(replace(tiny, rope_theta=500_000.0, rope_scaling=changes)))
    theirs, their_factor = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs_config, "cpu")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=0)
    assert factor == pytest.approx(their_factor)


def test_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    tiny_models.build("llama", tmp_path)
    checkpoint = load_folder(tmp_path, None, "llama")
    rows = []
    for dtype in ("float32", "bfloat16"):
        driver = Driver(ModelRunner(checkpoint, num_kv_blocks=50, dtype=dtype), chunk=7)
        rows.append(driver.run([driver.start(prompts()[2])], 1)[0])
    assert rows[1].dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(rows[0], rows[1]).item() > 0.999


@pytest.fixture(scope="module")
def smollm2() -> tuple[Any, Checkpoint, Tokenizer]:
    checkpoint = load_checkpoint(PRESET)
    assert checkpoint.tokenizer_path is not None
    oracle = AutoModelForCausalLM.from_pretrained(checkpoint.tokenizer_path.parent, dtype=torch.float32).eval()
    return oracle, checkpoint, Tokenizer.from_model(PRESET)


CHATS = (
    "What is the capital of France?",
    "Write a haiku about queues.",
    "Count from 1 to 20 in words, then explain in two sentences why waiting lines form even when servers are idle "
    "half of the time, and what variability has to do with it.",
)
TEXTS = ("Hi", "def fibonacci(n):\n    if n < 2:\n        return n\n    return")


def test_preset_equals_transformers_on_real_prompts(smollm2: tuple[Any, Checkpoint, Tokenizer]) -> None:
    oracle, checkpoint, tokenizer = smollm2
    encoded = [tokenizer.encode_chat([{"role": "user", "content": text}]) for text in CHATS]
    encoded += [tokenizer.encode(text) for text in TEXTS]
    driver = Driver(ModelRunner(checkpoint, num_kv_blocks=64, block_size=16), chunk=24)
    seqs = [driver.start(ids) for ids in encoded]
    ties = 0
    for seq, logits in zip(seqs, driver.run(seqs, 8), strict=True):
        ties += check_against_oracle(logits, oracle_logits(oracle, seq.token_ids, seq.num_prompt_tokens))
    print(f"{len(seqs)} prompts of {[len(ids) for ids in encoded]} tokens, {ties} ties of the oracle left out")
    assert "Paris" in tokenizer.decode(seqs[0].token_ids[seqs[0].num_prompt_tokens :])
