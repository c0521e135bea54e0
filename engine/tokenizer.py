"""Text to token ids and back, chat prompts, and text that grows token by token. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.weights.presets import read_chat_template, read_model_config, resolve_tokenizer

_REPLACEMENT = "\ufffd"


class Tokenizer:
    """A ``tokenizers`` file with the model's chat template.

    Args:
        backend: the tokenizer proper.
        chat_template: Jinja text as in Hugging Face's tokenizer_config.json, or ``None``.
        bos_token, eos_token: their text, for templates that write them.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, chat_template: str | None = None, bos_token: str = "", eos_token: str = ""
    ) -> None:
        self._backend = backend
        self._chat_template = chat_template
        self._specials = {"bos_token": bos_token, "eos_token": eos_token}
        added = backend.get_added_tokens_decoder()
        self.special_token_ids: tuple[int, ...] = tuple(sorted(i for i, token in added.items() if token.special))

    @classmethod
    def from_file(cls, path: Path) -> Tokenizer:
        """The tokenizer of a tokenizer.json, without chat template."""
        return cls(_read(path))

    @classmethod
    def from_model(cls, model: str) -> Tokenizer:
        """The tokenizer and chat template of a preset, folder, GGUF file or hub id.

        Raises:
            ValueError: the model has no tokenizer, or is unknown.
        """
        backend = _read(resolve_tokenizer(model))
        config = read_model_config(model)

        def text(token_id: int | None) -> str:
            return (backend.id_to_token(token_id) or "") if token_id is not None else ""

        eos = config.eos_token_ids
        return cls(backend, read_chat_template(model), text(config.bos_token_id), text(eos[0] if eos else None))

    @property
    def vocab_size(self) -> int:
        """Token ids the tokenizer knows; the model's vocabulary may be padded beyond it."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of ``text``, with what the model's post-processor puts around it (a BOS token, or nothing)."""
        ids: list[int] = self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ``token_ids``; bytes that are no UTF-8 become U+FFFD."""
        return str(self._backend.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def render_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation; each message has ``role`` and ``content``.

        Raises:
            ValueError: the model has no chat template, or the template refuses the messages.
        """
        if self._chat_template is None:
            raise ValueError("this model has no chat template; give the prompt as text or token ids")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        environment.filters["tojson"] = _to_json
        try:
            return environment.from_string(self._chat_template).render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._specials
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template refuses these messages: {error}") from error

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens itself."""
        return self.encode(self.render_chat(messages, add_generation_prompt), add_special_tokens=False)


def special_token_ids(path: Path) -> tuple[int, ...]:
    """Ids of the control tokens of a tokenizer.json, in order; read without building the tokenizer."""
    added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens", [])
    return tuple(sorted(token["id"] for token in added if token["special"]))


class IncrementalDetokenizer:
    """Text of a growing list of tokens, piece by piece, never splitting a character.

    The pieces and what :meth:`flush` gives join to ``tokenizer.decode`` of all tokens. A character whose bytes are
    spread over several tokens comes with the last of them. Two indices into the tokens do it: text up to ``_read`` has
    been given; decoding starts at ``_context``, a little before, because a token's text may depend on its left
    neighbour.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special_tokens: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._tokens: list[int] = []
        self._context = 0
        self._read = 0

    def append(self, token_id: int) -> str:
        """Take one more token; the text that is complete by now (often one word, sometimes nothing)."""
        self._tokens.append(token_id)
        text = self._pending()
        if not text or text.endswith(_REPLACEMENT):
            return ""
        self._context, self._read = self._read, len(self._tokens)
        return text

    def flush(self) -> str:
        """What is left at the end: the bytes of an unfinished character, as U+FFFD."""
        text = self._pending()
        self._context, self._read = self._read, len(self._tokens)
        return text

    def _pending(self) -> str:
        before = self._decode(self._tokens[self._context : self._read])
        return self._decode(self._tokens[self._context :])[len(before) :]

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, self._skip)


def _read(path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception for a file it cannot read
        raise ValueError(f"{path} is not a tokenizer.json that can be read: {error}") from error


def _refuse(message: str) -> None:
    raise TemplateError(message)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)
