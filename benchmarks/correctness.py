"""The engine against transformers, at length: what the test suite has no time for.

    python -m benchmarks.correctness [--parts tiny,array,preset,native] [--prompts 200] [--steps 8] [--quick]

Everything but *native* runs in float32 through the real scheduler and core, greedily; transformers then gets prompt and
output in one pass (teacher-forced), so that a tie doesn't end the comparison. A step counts as *tie* where the oracle's
two largest logits are closer than 2e-3. PASS: no other token but in a tie, max |difference of logits| <= 2e-3, mean <= 1e-4.

* tiny: random Llama, Qwen2 and Qwen3; full factorial of chunk x block x batch x cache x forced preemption.
* array: the preset; a pairwise covering array of these and the attention back end.
* preset: the preset on prompts of 1 to 2,000 tokens (log-spaced; pieces of text and random ids) at two settings.
* native: the bf16 native step and transformers' bf16 against the float32 torch path, teacher-forced.

The exit code is 1 where anything fails.
"""

from __future__ import annotations

import argparse
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from engine.executors.base import ScheduledBatch
from engine.model_input import build_model_input
from engine.model_runner import ModelRunner
from engine.native import NativeRunner
from engine.sequence import Request, Sequence
from engine.tokenizer import Tokenizer
from engine.weights.checkpoint import Checkpoint, load_checkpoint, load_folder
from tests.engine import tiny_models
from tests.engine.model_driver import oracle_logits
from tests.engine.trials import (
    BATCHES,
    BLOCKS,
    CHUNKS,
    WHOLE,
    Setting,
    Tally,
    Trial,
    covering_array,
    factorial,
    make_runner,
    run_trial,
)

PARTS = ("tiny", "array", "preset", "native")
TWO_SETTINGS = (Setting(64, 16, 8, True, False), Setting(WHOLE, 256, 1, False, False))
LONGEST = 2000
GROUP = 16  # prompts whose logits are held at a time
AGREEMENT = 0.995
LABEL = 41  # characters of a row before its numbers
TITLE = "attention chunk block batch cache preempt  prompts  steps  ties  other  max |d|   mean |d|  preempted  hits"


@dataclass(frozen=True)
class Preset:
    """The real model three times: ours, transformers', and its words."""

    checkpoint: Checkpoint
    oracle: Any
    text_ids: list[int]

    @classmethod
    def load(cls, name: str) -> Preset:
        checkpoint = load_checkpoint(name)
        return cls(checkpoint, cls._transformers(checkpoint, torch.float32), _text_ids(Tokenizer.from_model(name)))

    @staticmethod
    def _transformers(checkpoint: Checkpoint, dtype: torch.dtype) -> Any:
        if checkpoint.tokenizer_path is None:
            raise ValueError(
                f"{checkpoint.source} has no folder that transformers could read; give a preset or a folder"
            )
        return AutoModelForCausalLM.from_pretrained(checkpoint.tokenizer_path.parent, dtype=dtype).eval()

    def oracle_in_bfloat16(self) -> Any:
        return self._transformers(self.checkpoint, torch.bfloat16)

    def prompts(self, count: int, longest: int, seed: int = 1) -> list[list[int]]:
        """Log-spaced lengths from 1 on, shuffled; two of three are text, which begins at one of eight places."""
        rng = np.random.default_rng(seed)
        lengths = np.geomspace(1, longest, count).round().astype(int)
        starts = rng.integers(0, len(self.text_ids) - longest, 8)
        found = []
        for i, length in enumerate(rng.permutation(lengths)):
            if i % 3 == 2:
                found.append(rng.integers(3, self.checkpoint.config.vocab_size, length).tolist())
            else:
                start = starts[rng.integers(len(starts))]
                found.append(self.text_ids[start : start + length])
        return found


def _text_ids(tokenizer: Tokenizer) -> list[int]:
    """The repository's own documents and sources as tokens."""
    root = Path(__file__).parents[1]
    files = [root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "engine").glob("*.py"))]
    return [token for file in files for token in tokenizer.encode(file.read_text(encoding="utf-8"))]


class Oracle:
    """transformers' logits for what the engine gave; equal tokens are computed once."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._known: dict[tuple[int, ...], torch.Tensor] = {}

    def compare(self, trial: Trial, steps: int, tally: Tally) -> None:
        for token_ids, logits in zip(trial.token_ids, trial.logits, strict=True):
            key = tuple(token_ids)
            if key not in self._known:
                self._known[key] = oracle_logits(self._model, token_ids, len(token_ids) - steps)
            tally.add(logits, self._known[key])
        tally.preemptions += trial.preemptions
        tally.hit_tokens += trial.hit_tokens

    def forget(self) -> None:
        self._known.clear()


def line(label: object, tally: Tally) -> str:
    """One row of the table."""
    return (
        f"{label!s:{LABEL}}{tally.prompts:8d}{tally.steps:7d}{tally.ties:6d}{tally.other_tokens:7d}{tally.largest:10.2e}"
        f"{tally.mean:11.2e}{tally.preemptions:10d}{tally.hit_tokens:7d}  {'PASS' if tally.passes else 'FAIL'}"
    )


def tiny_prompts(vocab: int, longest: int) -> list[list[int]]:
    """Lengths around every block and chunk boundary; equal ones, and ones that share a beginning."""
    ids = np.random.default_rng(3).integers(0, vocab, 400).tolist()
    prompts = [ids[:1], ids[:16], ids[40:73], ids[40:73], ids[40:57] + ids[:9], ids[100:107], ids[:2]]
    if longest > 256:
        prompts += [ids[:257], ids[:257], ids[:256] + ids[7:9]]
    return prompts


def check_tiny(quick: bool) -> Iterator[bool]:
    """Full factorial; reference attention without the prompts beyond 256 tokens, and bitwise the same in all settings."""
    steps = 6
    which = "a covering array" if quick else "the full factorial"
    print(f"\ntiny: {which}, {steps} steps a prompt, each row all its settings")
    print(f"{'model     attention  settings':{LABEL}}{TITLE[LABEL:]}")
    for kind in ("llama", "qwen2", "qwen3"):
        with tempfile.TemporaryDirectory() as folder:
            oracle = Oracle(tiny_models.build(kind, Path(folder), max_position_embeddings=1024))
            checkpoint = load_folder(Path(folder), None, kind)
            for attention in ("sdpa", "reference"):
                settings = factorial(attention)
                if quick:
                    levels = (CHUNKS, BLOCKS, BATCHES, (True, False), (True, False), (attention,))
                    settings = [Setting(*row) for row in covering_array(*levels)]
                prompts = tiny_prompts(checkpoint.config.vocab_size, 258 if attention == "sdpa" else 33)
                tally, first, same = Tally(), None, True
                for setting in settings:
                    trial = run_trial(make_runner(checkpoint, setting, prompts, steps), setting, prompts, steps)
                    assert bool(trial.preemptions) == setting.preempt
                    oracle.compare(trial, steps, tally)
                    first = first or trial
                    same &= all(torch.equal(a, b) for a, b in zip(first.logits, trial.logits, strict=True))
                print(line(f"{kind:9} {attention:10} {len(settings):8d}", tally), flush=True)
                if attention == "reference":
                    print(f"{'':21}logits bitwise the same in all settings: {'PASS' if same else 'FAIL'}", flush=True)
                yield tally.passes and (same or attention != "reference")


def check_array(preset: Preset, quick: bool) -> Iterator[bool]:
    """A pairwise covering array on the preset."""
    steps = 4
    levels = (CHUNKS, BLOCKS, BATCHES, (True, False), (True, False), ("sdpa", "reference"))
    settings = [Setting(*row) for row in covering_array(*levels)][: 3 if quick else None]
    text = preset.text_ids
    prompts = [text[:1], text[:16], text[:33], text[:33], text[:20] + text[90:96], text[200:265]]
    oracle = Oracle(preset.oracle)
    print(f"\narray: {len(settings)} settings, {len(prompts)} prompts of 1 to 65 tokens, {steps} steps each\n{TITLE}")
    for setting in settings:
        tally = Tally()
        trial = run_trial(make_runner(preset.checkpoint, setting, prompts, steps), setting, prompts, steps)
        assert bool(trial.preemptions) == setting.preempt
        oracle.compare(trial, steps, tally)
        print(line(setting, tally), flush=True)
        yield tally.passes


def check_preset(preset: Preset, count: int, steps: int, longest: int) -> Iterator[bool]:
    """``count`` prompts at two settings; the oracle computes once where both give the same tokens."""
    prompts = preset.prompts(count, longest)
    print(
        f"\npreset: {count} prompts of 1 to {longest} tokens ({sum(map(len, prompts))} in all), {steps} steps each\n{TITLE}"
    )
    worst = sorted(prompts, key=len)[-GROUP:]
    runners = {setting: make_runner(preset.checkpoint, setting, worst, steps) for setting in TWO_SETTINGS}
    tallies: dict[Setting, Tally] = defaultdict(Tally)
    oracle = Oracle(preset.oracle)
    began = time.perf_counter()
    for start in range(0, count, GROUP):
        group = prompts[start : start + GROUP]
        for setting, runner in runners.items():
            oracle.compare(run_trial(runner, setting, group, steps), steps, tallies[setting])
        oracle.forget()
        print(f"after {time.perf_counter() - began:.0f} s", flush=True)
        for setting, tally in tallies.items():
            print(line(setting, tally), flush=True)
    yield from (tally.passes for tally in tallies.values())


def forced_logits(runner: Any, token_ids: list[int], skipped: int) -> torch.Tensor:
    """Logits [len - skipped, vocab] for every token after the first ``skipped``, from one step of the runner."""
    seq = Sequence.from_request(Request("forced", token_ids[:-1]))
    seq.block_table = list(range(-(-len(token_ids) // runner.block_size)))
    step = build_model_input(ScheduledBatch([seq], [len(token_ids) - 1], [True]), runner.block_size)
    rows = np.arange(skipped - 1, len(token_ids) - 1, dtype=np.int32)
    return torch.as_tensor(runner.forward(replace(step, logit_rows=rows))).clone()


def check_native(preset: Preset, count: int, threads: int) -> Iterator[bool]:
    """The figure of bf16: agreement of the likeliest token and mean |difference| over ``count`` teacher-forced steps.

    *text*: the text itself is forced. *greedy*: the float32 path's own continuation of pieces of text is.
    """
    each = 125
    pieces = -(-count // each)
    sizes: dict[str, Any] = {"num_kv_blocks": 64, "max_model_len": 1024, "block_size": 16}
    exact = ModelRunner(preset.checkpoint, **sizes)
    native = NativeRunner(preset.checkpoint, num_threads=threads, **sizes)
    theirs = preset.oracle_in_bfloat16()
    starts = np.linspace(0, len(preset.text_ids) - 400, pieces).astype(int)
    setting = Setting(64, 16, 16, False, False)
    prompts = [preset.text_ids[start : start + 24] for start in starts]
    continued = run_trial(make_runner(preset.checkpoint, setting, prompts, each), setting, prompts, each).token_ids
    texts = [preset.text_ids[start : start + 24 + each] for start in starts]
    print(f"\nnative: {pieces} pieces, {each} teacher-forced steps each, against float32 torch")
    print("forced  path                 steps  same argmax  outside ties of fp32  mean |d|    max |d|")
    for name, forced in (("text", texts), ("greedy", continued)):
        native_tally, their_tally = Tally(), Tally()
        for token_ids in forced:
            expected = forced_logits(exact, token_ids, 24)
            native_tally.add(forced_logits(native, token_ids, 24), expected)
            their_tally.add(oracle_logits(theirs, token_ids, 24), expected)
        shares = {}
        for path, tally in (("native bf16", native_tally), ("transformers bf16", their_tally)):
            shares[path] = 1 - (tally.other_tokens + tally.tied_other_tokens) / tally.steps
            outside = 1 - tally.other_tokens / tally.steps
            print(
                f"{name:7} {path:18}{tally.steps:8d}{shares[path]:12.2%}{outside:20.2%}{tally.mean:14.4f}"
                f"{tally.largest:11.3f}",
                flush=True,
            )
        verdict = shares["native bf16"] >= AGREEMENT and native_tally.mean <= their_tally.mean
        print(
            f"{name:7} agreement >= {AGREEMENT:.1%} and mean no worse than transformers': {'PASS' if verdict else 'FAIL'}"
        )
        yield verdict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--longest", type=int, default=LONGEST)
    parser.add_argument("--steps", type=int, default=8, help="tokens generated for each prompt of the preset")
    parser.add_argument("--native-steps", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few of everything, in a minute or two")
    options = parser.parse_args()
    parts = options.parts.split(",")
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    if options.quick:
        options.prompts, options.longest, options.native_steps = min(options.prompts, 10), 200, 250
    torch.set_num_threads(options.threads)
    print(
        f"Python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{platform.machine()}, {options.threads} thread(s)"
    )
    preset = Preset.load(options.model) if parts != ["tiny"] else None
    verdicts: list[bool] = []
    if "tiny" in parts:
        verdicts += check_tiny(options.quick)
    if preset is not None:
        if "array" in parts:
            verdicts += check_array(preset, options.quick)
        if "preset" in parts:
            verdicts += check_preset(preset, options.prompts, options.steps, options.longest)
        if "native" in parts:
            verdicts += check_native(preset, options.native_steps, options.threads)
    print(f"\n{sum(verdicts)} of {len(verdicts)} checks pass")
    sys.exit(not all(verdicts))


if __name__ == "__main__":
    main()
