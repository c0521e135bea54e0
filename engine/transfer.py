"""From numpy arrays on the host to the device in one copy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Int32 = NDArray[np.int32]

ALIGNMENT = 32  # int32 values: 128 bytes; Triton compiles a kernel anew for pointers that are not aligned


def to_device(arrays: Sequence[Int32], device: torch.device) -> list[Tensor]:
    """int32 ``arrays`` on ``device``, each with its shape. To a GPU they go together, from pinned memory, without waiting.

    The pinned memory comes from torch's own pool, which gives it to nobody else before the copy is done.
    """
    if device.type == "cpu":
        return [torch.from_numpy(np.ascontiguousarray(array, dtype=np.int32)) for array in arrays]
    starts, size = aligned_starts(arrays)
    host = torch.empty(size, dtype=torch.int32, pin_memory=True)
    pack(arrays, starts, host.numpy())
    on_device = host.to(device, non_blocking=True)
    return [
        on_device[start : start + array.size].view(array.shape) for start, array in zip(starts, arrays, strict=True)
    ]


def aligned_starts(arrays: Sequence[Int32]) -> tuple[list[int], int]:
    """Where each of ``arrays`` begins in one packed array, and the size of that."""
    starts, size = [], 0
    for array in arrays:
        starts.append(size)
        size += -(-array.size // ALIGNMENT) * ALIGNMENT
    return starts, size


def pack(arrays: Sequence[Int32], starts: Sequence[int], out: Int32) -> None:
    """Write each of ``arrays`` into ``out`` at its start."""
    for array, start in zip(arrays, starts, strict=True):
        out[start : start + array.size] = array.reshape(-1)


def move(array: NDArray[np.generic], device: torch.device) -> Tensor:
    """``array`` on ``device`` in its own type; to a GPU from pinned memory, without waiting."""
    values = torch.from_numpy(np.ascontiguousarray(array))
    return values if device.type == "cpu" else values.pin_memory().to(device, non_blocking=True)
