"""transformers' ``generate`` on a left-padded batch, bfloat16."""

from __future__ import annotations

from typing import Any

from worker import Generate, Stepped, serve


def start(options: dict[str, Any]) -> tuple[Generate, dict[str, str]]:
    """``options``: folder (a Hugging Face folder), threads."""
    import torch
    import transformers

    torch.set_num_threads(options["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(options["folder"], dtype=torch.bfloat16).eval()

    def generate(prompts: list[list[int]], new_tokens: list[int], stepped: Stepped) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        count = max(new_tokens)

        def watch(made: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
            """A stopping criterion that stops nothing."""
            stepped([min(made.shape[1] - longest, wanted) for wanted in new_tokens])
            return torch.zeros(len(made), dtype=torch.bool)

        with torch.inference_mode():
            tokens = model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                min_new_tokens=count,
                max_new_tokens=count,
                pad_token_id=0,
                stopping_criteria=transformers.StoppingCriteriaList([watch]),
            )
        return [row[longest : longest + wanted] for row, wanted in zip(tokens.tolist(), new_tokens, strict=True)]

    return generate, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(start)
