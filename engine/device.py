"""Where the model computes: on the CPU or on a CUDA device. Torch is asked only where a driver is."""

from __future__ import annotations

from pathlib import Path

from engine.config import EngineConfig

_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")  # Linux, in containers, and under Windows


def find_device(config: EngineConfig) -> str:
    """cpu or cuda, as ``config.device`` and ``config.backend`` ask.

    Raises:
        ValueError: a GPU is asked for and there is none, or not as many as ranks.
    """
    if config.device == "cpu" or (config.device == "auto" and config.backend == "native"):
        return "cpu"
    count = num_gpus() if config.device == "cuda" or _has_driver() else 0
    if config.device == "auto" and not count:
        return "cpu"
    if not count:
        raise ValueError("device is 'cuda', but there is no CUDA device that torch can use; take device: auto or cpu")
    if config.backend == "native":
        raise ValueError("backend native computes on the CPU; for device: cuda take backend: torch or auto")
    if config.tensor_parallel_size > count:
        raise ValueError(
            f"tensor_parallel_size is {config.tensor_parallel_size}, but there are {count} CUDA devices, and each rank "
            "takes one; lower it, or take device: cpu"
        )
    return "cuda"


def num_gpus() -> int:
    """CUDA devices that torch can use."""
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _has_driver() -> bool:
    return any(Path(driver).exists() for driver in _DRIVERS)
