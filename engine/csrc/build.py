"""Compile the native step with the system's C++ compiler, once per source, compiler, flags and processor.

The library lands in the cache folder under a name that is the hash of all four, written elsewhere and renamed, so that
two processes building at once cannot see half a file.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from engine.weights.fetch import cache_folder, made

_SOURCE = Path(__file__).parent
# gcc's SLP vectorizer turns the broadcasts of the micro-kernel into shuffles, at more than half its speed.
_FLAGS = ("-std=c++17", "-O3", "-fno-tree-slp-vectorize", "-fno-math-errno", "-fPIC", "-shared", "-pthread")


# What the step is built of, fastest first, and the flags that keep the compiler from anything faster.
INSTRUCTIONS = {
    "amx": (),
    "avx512_bf16": ("-DLAB_NO_AMX",),
    "vector": ("-DLAB_NO_AMX", "-mno-avx512bf16", "-mno-avx512vnni"),
}


class NativeUnavailableError(RuntimeError):
    """The native step cannot be built here; the message says why. The torch path computes the same."""


def native_flag() -> str:
    """The flag that selects this machine's instructions."""
    return "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"


def fastest_instructions() -> str:
    """The first of ``INSTRUCTIONS`` that this processor has and the system lets a process use."""
    flags = set(processor_flags().split())
    if {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16"} <= flags and _may_use_tiles():
        return "amx"
    return "avx512_bf16" if "avx512_bf16" in flags else "vector"


def _may_use_tiles() -> bool:
    """Asks Linux for the tile registers, which take 8 KiB a thread and must be granted (arch_prctl, since Linux 5.16)."""
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request_permission, tile_data) == 0


def find_compiler() -> list[str]:
    """``CXX`` (which may carry arguments) or the first of c++, g++, clang++ on the PATH.

    Raises:
        NativeUnavailableError: there is none.
    """
    chosen = os.environ.get("CXX", "").split()
    for command in [chosen] if chosen else [["c++"], ["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    looked = f"CXX={os.environ['CXX']}" if chosen else "c++, g++ or clang++ on the PATH"
    raise NativeUnavailableError(f"no C++ compiler: {looked} not found; install g++ or clang++, or set CXX")


def build_library(
    weight_type: str, cache_type: str, extra_flags: tuple[str, ...] = (), instructions: str | None = None
) -> Path:
    """The shared library for one pair of types (``bf16``, ``fp32``), compiled if it is not in the cache yet.

    ``instructions`` is one of ``INSTRUCTIONS``, the fastest that work here where not given.

    Raises:
        NativeUnavailableError: no compiler, or it failed; the message has the command and its last lines.
        ValueError: the cache folder can't be written.
    """
    compiler = find_compiler()
    chosen = INSTRUCTIONS[instructions or fastest_instructions()] if platform.machine() == "x86_64" else ()
    flags = [*_FLAGS, native_flag(), *chosen, f"-DLAB_WEIGHT={weight_type}", f"-DLAB_CACHE={cache_type}", *extra_flags]
    library = cache_folder() / "native" / f"step-{_fingerprint(compiler, flags)}.so"
    if library.exists():
        return library
    made(library.parent, writable=True)
    handle, name = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    partial = Path(name)
    command = [*compiler, *flags, str(_SOURCE / "step.cpp"), "-o", str(partial)]
    try:
        result = subprocess.run(command, capture_output=True, text=True)
        if result.returncode != 0:
            tail = "\n".join(result.stderr.splitlines()[-8:])
            raise NativeUnavailableError(f"the native step does not compile here: {' '.join(command)}\n{tail}")
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)
    return library


def source_fingerprint() -> str:
    """Hexadecimal digest of the C++ source, for a run's record of what it ran."""
    digest = hashlib.sha256()
    for file in sorted([*_SOURCE.glob("*.h"), *_SOURCE.glob("*.cpp")]):
        digest.update(f"{file.name} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _fingerprint(compiler: list[str], flags: list[str]) -> str:
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True).stdout
    parts = [source_fingerprint(), *compiler, version, *flags, platform.machine(), processor_flags()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


def processor_flags() -> str:
    """What -march=native sees: a cache folder may be shared by machines with different processors."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return platform.processor()
    wanted = ("flags", "Features", "model name", "CPU part")
    return "\n".join(sorted({line for line in cpuinfo.read_text().splitlines() if line.startswith(wanted)}))
