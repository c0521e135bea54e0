"""LLM: the engine for a caller in the same process, with nano-vllm's interface and vLLM's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from operator import index
from typing import Any, cast

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engine.build import build_core
from engine.config import DEFAULT_MODEL, EngineConfig
from engine.core import TokenEvent
from engine.layers.sampler import stream_seed
from engine.outputs import RequestOutput, RequestStats
from engine.sampling_params import SamplingParams
from engine.sequence import Request
from engine.sequence import Sequence as LiveSequence
from engine.text_stream import TextStream
from engine.tokenizer import Tokenizer
from engine.weights.shapes import is_random

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]


class LLM:
    """Text, token-id and chat prompts in, ``RequestOutput`` out.

    Args:
        model: preset, folder, GGUF file, hub id or ``random:<shape>``.
        options: any option of ``EngineConfig``; nano-vllm's names work too.

    Raises:
        ValueError: an unknown option or model, or a value out of range; the message names it and what is allowed.

    Example::

        llm = LLM("smollm2-135m-instruct")
        outputs = llm.generate(["The capital of France is"], SamplingParams(temperature=0.0, max_tokens=8))
        print(outputs[0]["text"])
    """

    def __init__(self, model: str = DEFAULT_MODEL, **options: Any) -> None:
        self.config = EngineConfig.from_options(model=model, **options)
        self.core, self.info = build_core(self.config)
        has_tokenizer = self.config.executor == "model" and not is_random(model)
        self.tokenizer = Tokenizer.from_model(model) if has_tokenizer else None
        self._ids = count()
        self._streams: dict[str, TextStream] = {}
        self._samples: dict[str, set[str]] = {}  # request with n > 1 -> ids of its samples that are live

    def generate(
        self,
        prompts: Sequence[Prompt] | str,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Complete every prompt; the outputs come in the order of the prompts, one each.

        With ``n`` > 1 that one is the first sample, and its ``samples`` are all of them.

        Args:
            prompts: texts, lists of token ids or conversations (lists of messages with ``role`` and ``content``); one text
                alone is a list of one.
            sampling_params: for all, or one for each prompt; default options where not given.
            use_tqdm: show a progress bar.

        Raises:
            ValueError: a prompt is empty or too long, an option can't be honoured, the number of parameters doesn't match or
                the line is shorter than the prompts (``max_queue``); nothing has been run. Also where the call is
                interrupted, nothing of it stays behind.
        """
        if isinstance(prompts, str):
            prompts = [prompts]
        params = self._params_of(sampling_params, len(prompts))
        if not self.is_finished():
            raise ValueError("requests added with add_request are live; step() them to their end before generate()")
        requests = [self._request(prompt, each) for prompt, each in zip(prompts, params, strict=True)]
        for request in requests:
            for sample in _samples_of(request):
                self.core.check(sample)
        try:
            for request in requests:
                self._add(request)
            finished = self._run(_progress_bar(sum(each.n for each in params)) if use_tqdm else None)
        except BaseException:
            self._abort_all()
            raise
        every = [[finished[sample.request_id] for sample in _samples_of(request)] for request in requests]
        return [replace(first, other_samples=tuple(others)) for first, *others in every]

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """As ``generate``, for one conversation or a list of them, through the model's chat template.

        Raises:
            ValueError: the model has no chat template, or the template refuses a conversation.
        """
        self._require_tokenizer()
        every = [conversations] if _is_conversation(conversations) else conversations
        return self.generate(cast(Sequence[Prompt], every), sampling_params, use_tqdm)

    def add_request(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
        predicted_output_tokens: int | None = None,
        cache_salt: str | None = None,
    ) -> str:
        """Hand in a request (a text, token ids or a conversation) for ``step`` to work on; returns its id.

        With ``n`` > 1 it becomes n requests with ids ``<id>/0`` ... ``<id>/<n-1>``; outputs come under these, and
        ``abort`` takes one of them or ``<id>`` for all. The full blocks of the prompt are computed once: samples find
        them in the prefix cache, also those admitted in the very step that computes them.

        Raises:
            ValueError: the id is live already, the prompt is empty or too long, the line is full.
        """
        return self._add(
            self._request(
                prompt,
                sampling_params or SamplingParams(),
                request_id,
                priority=priority,
                predicted_output_tokens=predicted_output_tokens,
                cache_salt=cache_salt,
            )
        )

    def step(self) -> list[RequestOutput]:
        """Compute one step; an output for every request that got a token or ended in it."""
        return [self._output(event, self._advance(event)) for event in self.core.step()]

    def abort(self, request_id: str) -> None:
        """End a request; the next ``step`` returns it with ``finish_reason`` "aborted". Unknown ids are no error."""
        for name in self._samples.get(request_id, (request_id,)):
            self.core.abort(name)

    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return not self.core.has_work

    def _params_of(
        self, given: SamplingParams | Sequence[SamplingParams] | None, num_prompts: int
    ) -> Sequence[SamplingParams]:
        if given is None or isinstance(given, SamplingParams):
            return [given or SamplingParams()] * num_prompts
        if len(given) != num_prompts:
            raise ValueError(f"{num_prompts} prompts but {len(given)} sampling_params; give one for all, or one each")
        for each in given:
            if not isinstance(each, SamplingParams):
                raise ValueError(f"sampling_params has {each!r}; give SamplingParams(...), one for all or one each")
        return given

    def _run(self, bar: Progress | None) -> dict[str, RequestOutput]:
        """Step until nothing is left; the last output of every request by its id."""
        finished: dict[str, RequestOutput] = {}
        with bar or nullcontext():
            while not self.is_finished():
                for event in self.core.step():
                    stream = self._advance(event)
                    if event.seq.is_finished:  # nobody sees the outputs on the way: a third of the host's time
                        finished[event.seq.request_id] = self._output(event, stream)
                        if bar is not None:
                            bar.advance(bar.task_ids[0])
        return finished

    def _abort_all(self) -> None:
        for name in self._streams:
            self.core.abort(name)
        self.step()  # nobody is left to compute: it ends them

    def _request(self, prompt: Prompt, params: SamplingParams, request_id: str | None = None, **more: Any) -> Request:
        if params.stop:
            self._require_tokenizer()
        token_ids = self._token_ids(prompt)
        return Request(request_id or f"request-{next(self._ids)}", token_ids, params, **more)

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._require_tokenizer().encode(prompt)
        if _is_conversation(prompt):
            return self._require_tokenizer().encode_chat(cast(Sequence[Message], prompt))
        try:
            token_ids = [index(token_id) for token_id in cast(Sequence[int], prompt)]
        except TypeError:
            raise ValueError(
                f"a prompt is {prompt!r:.80}; it must be a text, a list of token ids or a list of chat messages"
            ) from None
        for token_id in token_ids:
            if not 0 <= token_id < self.info.vocab_size:
                raise ValueError(f"token id {token_id} is outside the vocabulary of {self.info.vocab_size} tokens")
        return token_ids

    def _add(self, request: Request) -> str:
        """Hand a request, or all samples of it or none, to the core."""
        name = request.request_id
        samples = _samples_of(request)
        for live in (name, *(sample.request_id for sample in samples)):
            if live in self._samples or live in self._streams:
                raise ValueError(f"request id {live!r} is live already; give each request its own id")
        added: list[LiveSequence] = []
        try:
            for sample in samples:
                added.append(self.core.add(sample))
        except ValueError:
            for seq in added:
                self.core.finish_early(seq, "aborted")
            raise
        for seq in added:
            self._streams[seq.request_id] = TextStream(self.tokenizer, request.params.stop)
        if request.params.n > 1:
            self._samples[name] = {seq.request_id for seq in added}
        return name

    def _advance(self, event: TokenEvent) -> TextStream:
        """Take the token into the request's text, and end the request where a stop string was completed."""
        seq = event.seq
        stream = self._streams[seq.request_id]
        if event.token_id is not None:
            may_stop = seq.num_output_tokens >= seq.params.min_tokens
            if stream.append(event.token_id, may_stop):
                self._stop(seq)
        if seq.is_finished:
            stream.finish()
            del self._streams[seq.request_id]
            self._forget_sample(seq.request_id)
        return stream

    def _output(self, event: TokenEvent, stream: TextStream) -> RequestOutput:
        seq = event.seq
        return RequestOutput(
            request_id=seq.request_id,
            prompt_token_ids=seq.request.prompt_token_ids,
            text=stream.text,
            token_ids=seq.token_ids[seq.num_prompt_tokens :],
            new_text=stream.take(),
            new_token_ids=[] if event.token_id is None else [event.token_id],
            finish_reason=seq.finish_reason,
            stats=RequestStats.of(seq),
            logprobs=None if seq.params.logprobs is None else seq.logprobs[: seq.num_output_tokens],
        )

    def _forget_sample(self, name: str) -> None:
        parent = name.rpartition("/")[0]
        live = self._samples.get(parent, set())
        live.discard(name)
        if not live:
            self._samples.pop(parent, None)

    def _stop(self, seq: LiveSequence) -> None:
        """A stop string was completed."""
        if seq.is_finished:
            seq.finish_reason = "stop"
        else:
            self.core.finish_early(seq, "stop")

    def _require_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            what = self.config.model if self.config.executor == "model" else f"executor: {self.config.executor}"
            raise ValueError(f"{what} has no tokenizer: give prompts as token ids, without stop strings")
        return self.tokenizer


def _is_conversation(prompt: object) -> bool:
    """Whether it is a list of chat messages and not a list of anything else."""
    return isinstance(prompt, Sequence) and len(prompt) > 0 and isinstance(prompt[0], Mapping)


def _samples_of(request: Request) -> list[Request]:
    """The requests that a request with ``n`` samples is for the core; itself where n is 1.

    Sample 0 keeps the seed, so that it is what n = 1 would give; the others' are hashed from seed and number.
    """
    params = request.params
    if params.n == 1:
        return [request]
    seeds = [
        params.seed if i == 0 or params.seed is None else stream_seed(params.seed, str(i)) for i in range(params.n)
    ]
    return [
        replace(request, request_id=f"{request.request_id}/{i}", params=replace(params, n=1, seed=seed))
        for i, seed in enumerate(seeds)
    ]


def _progress_bar(total: int) -> Progress:
    bar = Progress(TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), transient=True)
    bar.add_task("", total=total)
    return bar
