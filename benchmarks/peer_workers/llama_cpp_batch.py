"""llama.cpp through its C interface (llama-cpp-python's bindings): continuous batching as in its own server, greedy."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
from worker import Generate, Stepped, serve


def start(options: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """``options``: gguf (a file), threads, seats, budget, max_len."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(options["gguf"].encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = options["seats"] * options["max_len"]
    params.n_batch, params.n_ubatch = options["budget"], 512
    params.n_seq_max = options["seats"]
    params.n_threads = params.n_threads_batch = options["threads"]
    context = llama_cpp.llama_init_from_model(model, params)
    vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    batch = llama_cpp.llama_batch_init(options["budget"], 0, 1)
    memory = llama_cpp.llama_get_memory(context)

    def put(token: int, position: int, slot: int, logits: bool) -> int:
        at = batch.n_tokens
        batch.token[at], batch.pos[at] = token, position
        batch.n_seq_id[at], batch.seq_id[at][0] = 1, slot
        batch.logits[at] = logits
        batch.n_tokens = at + 1
        return at

    def generate(prompts: list[list[int]], new_tokens: list[int], stepped: Stepped) -> list[list[int]]:
        llama_cpp.llama_memory_clear(memory, True)
        made: list[list[int]] = [[] for _ in prompts]
        waiting = list(range(len(prompts)))[::-1]
        free = list(range(options["seats"]))[::-1]
        running: dict[int, int] = {}  # request -> slot
        while waiting or running:
            batch.n_tokens = 0
            rows = {
                request: put(made[request][-1], len(prompts[request]) + len(made[request]) - 1, slot, True)
                for request, slot in running.items()
            }
            while waiting and free and batch.n_tokens + len(prompts[waiting[-1]]) <= options["budget"]:
                request, slot = waiting.pop(), free.pop()
                running[request] = slot
                last = len(prompts[request]) - 1
                for position, token in enumerate(prompts[request]):
                    rows[request] = put(token, position, slot, position == last)
            if llama_cpp.llama_decode(context, batch) != 0:
                raise SystemExit("llama_decode failed")
            for request, row in rows.items():
                logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, row), (vocabulary,))
                made[request].append(int(logits.argmax()))
                if len(made[request]) == new_tokens[request]:
                    slot = running.pop(request)
                    llama_cpp.llama_memory_seq_rm(memory, slot, -1, -1)
                    free.append(slot)
            stepped([len(each) for each in made])
        return made

    features = ctypes.string_at(llama_cpp.llama_print_system_info()).decode()
    return generate, {"llama-cpp-python": llama_cpp.__version__, "built for": features}


if __name__ == "__main__":
    serve(start)
