"""Rotary position embedding (Su et al. 2021) in the half-split layout, with the context extensions in use.

``default``, ``linear`` (positions divided), ``llama3`` (low frequencies divided, Llama 3.1) and ``yarn`` (Peng et al.
2023). Agrees with transformers' ``modeling_rope_utils``, against which it is tested.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from engine.models.config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> tuple[Tensor, float]:
    """Angle per position of each pair, float32 [head_dim / 2], and the factor that cosines and sines are scaled by."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return plain, 1.0
    if scaling["rope_type"] == "linear":
        return plain / scaling["factor"], 1.0
    if scaling["rope_type"] == "llama3":
        return _llama3(plain, scaling), 1.0
    assert scaling["rope_type"] == "yarn", scaling
    return _yarn(plain, scaling, config)


def _llama3(plain: Tensor, scaling: dict[str, Any]) -> Tensor:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    periods = scaling["original_max_position_embeddings"] / (2 * math.pi / plain)
    blend = ((periods - low) / (high - low)).clamp(0.0, 1.0)
    return (1.0 - blend) * plain / scaling["factor"] + blend * plain


def _yarn(plain: Tensor, scaling: dict[str, Any], config: ModelConfig) -> tuple[Tensor, float]:
    half, factor = config.head_dim // 2, scaling["factor"]
    length = scaling.get("original_max_position_embeddings", config.max_position_embeddings)

    def pair_with(rotations: float) -> float:
        """The (fractional) pair that turns ``rotations`` times over the original context."""
        return config.head_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(config.rope_theta))

    low, high = pair_with(scaling.get("beta_fast", 32)), pair_with(scaling.get("beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.head_dim - 1)
    ramp = ((torch.arange(half, dtype=torch.float32) - low) / max(high - low, 0.001)).clamp(0.0, 1.0)
    frequencies = ramp * plain / factor + (1.0 - ramp) * plain

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if "attention_factor" in scaling:
        return frequencies, float(scaling["attention_factor"])
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return frequencies, scale(scaling["mscale"]) / scale(scaling["mscale_all_dim"])
    return frequencies, scale(1.0)


def rope_tables(config: ModelConfig, max_positions: int) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position and pair, float32 [max_positions, head_dim / 2], scaled where YaRN does."""
    frequencies, factor = inverse_frequencies(config)
    angles = torch.outer(torch.arange(max_positions, dtype=torch.float32), frequencies)
    return angles.cos() * factor, angles.sin() * factor


class RotaryEmbedding(nn.Module):
    """Cosines and sines of every position up to ``max_positions``, looked up once a step for all layers."""

    def __init__(self, config: ModelConfig, max_positions: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        cosines, sines = rope_tables(config, max_positions)
        # The first half of each head is turned by -sin, the second by +sin: the sign goes into the table.
        self.cosines = nn.Buffer(torch.cat((cosines, cosines), dim=-1).to(device, dtype), persistent=False)
        self.sines = nn.Buffer(torch.cat((-sines, sines), dim=-1).to(device, dtype), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines of each row, [T, 1, head_dim], for :func:`rotate`."""
        return self.cosines[positions].unsqueeze(1), self.sines[positions].unsqueeze(1)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turn each pair (i, i + head_dim / 2) of ``x`` [T, heads, head_dim]."""
    return x * cosines + x.roll(x.shape[-1] // 2, dims=-1) * sines
