"""A program written for nano-vllm runs on this engine with nothing but its import changed: its example and its benchmark,
in our own words but with every call, keyword and result they use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.weights.presets import model_folder
from tests.engine import tiny_models

ROOT = Path(__file__).parents[2]
EXAMPLE = """
import os
from nanovllm import LLM, SamplingParams
from transformers import AutoTokenizer

folder = os.path.expanduser("~/huggingface/Qwen3-0.6B/")
tokenizer = AutoTokenizer.from_pretrained(folder)
llm = LLM(folder, enforce_eager=True, tensor_parallel_size=1)
params = SamplingParams(temperature=0.6, max_tokens=8)
questions = ["introduce yourself", "list all prime numbers within 100"]
prompts = [
    tokenizer.apply_chat_template([{"role": "user", "content": each}], tokenize=False, add_generation_prompt=True)
    for each in questions
]
outputs = llm.generate(prompts, params)
for prompt, output in zip(prompts, outputs):
    print(f"Prompt: {prompt!r}")
    print(f"Completion: {output['text']!r} {len(output['token_ids'])}")
"""
BENCHMARK = """
import os
from random import randint, seed
from time import time
from nanovllm import LLM, SamplingParams

seed(0)
llm = LLM(os.path.expanduser("~/huggingface/Qwen3-0.6B/"), enforce_eager=False, max_model_len=200)
prompts = [[randint(0, 10000) for _ in range(randint(5, 20))] for _ in range(6)]
params = [SamplingParams(temperature=0.6, ignore_eos=True, max_tokens=randint(3, 8)) for _ in range(6)]
llm.generate(["Benchmark: "], SamplingParams())
started = time()
outputs = llm.generate(prompts, params, use_tqdm=False)
total = sum(each.max_tokens for each in params)
assert [len(each["token_ids"]) for each in outputs] == [each.max_tokens for each in params]
print(f"Total: {total}tok, Time: {time() - started:.2f}s")
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with a tiny Qwen3 of random weights and the default model's tokenizer in it."""
    home = tmp_path_factory.mktemp("home")
    folder = home / "huggingface" / "Qwen3-0.6B"
    tiny_models.build("qwen3", folder, vocab_size=49_152)
    for file in model_folder("smollm2-135m-instruct").iterdir():
        if file.name.startswith(("tokenizer", "special_tokens", "chat_template")):
            (folder / file.name).write_bytes(file.read_bytes())
    return home


def test_its_example_and_its_benchmark_run(home: Path) -> None:
    program = (EXAMPLE + BENCHMARK).replace("from nanovllm import", "from engine import")
    cache = os.environ.get("LATENCY_LAB_CACHE", str(Path.home() / ".cache" / "latency-lab"))
    environment = {**os.environ, "HOME": str(home), "LATENCY_LAB_CACHE": cache, "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("Completion: ") == 2
    assert "Total: " in done.stdout
