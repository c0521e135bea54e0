"""Weights as the native step lays them out in memory, kept as one file: an engine starts from it without torch.

A file belongs to one model, one type and one library (source, compiler, flags, processor), all in its name. It appears
by a rename, and its SHA-256 is checked when it is read; a damaged one is made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path

from engine.models.config import ModelConfig
from engine.weights.fetch import cache_folder, made, say

_DIGEST_BYTES = 32


class PackedWeights:
    """The place of one packed file in the cache folder.

    Args:
        fingerprint: of the checkpoint.
        config: the model's shape.
        kind: what else decides the bytes: type of the weights, rotary positions, the library's name.
    """

    def __init__(self, fingerprint: str, config: ModelConfig, *kind: str) -> None:
        model = hashlib.sha256(f"{fingerprint} {config}".encode()).hexdigest()[:16]
        layout = hashlib.sha256(json.dumps(kind).encode()).hexdigest()[:16]
        self._others = f"{model}-{kind[0]}-*.packed"
        self.path = cache_folder() / "packed" / f"{model}-{kind[0]}-{layout}.packed"

    def read_into(self, weights: memoryview) -> bool:
        """Fill ``weights`` from the file; False where there is none of that size, or it is damaged."""
        try:
            with self.path.open("rb", buffering=0) as file:
                if os.fstat(file.fileno()).st_size != _DIGEST_BYTES + len(weights):
                    return False
                digest = file.read(_DIGEST_BYTES)
                done = 0
                while done < len(weights):
                    done += file.readinto(weights[done : done + (64 << 20)]) or len(weights)
        except (FileNotFoundError, NotADirectoryError):
            return False
        if hashlib.sha256(weights).digest() == digest:
            return True
        say(f"{self.path} is damaged; packing the weights again")
        return False

    def write(self, weights: memoryview) -> None:
        """Keep ``weights``; files of the same model and type for other libraries go, since each is as large.

        A full or read-only cache is told and is no error: the weights are in memory already.
        """
        partial: Path | None = None
        try:
            made(self.path.parent, writable=True)
            handle, name = tempfile.mkstemp(suffix=".partial", dir=self.path.parent)
            partial = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(weights).digest())
                file.write(weights)
            partial.replace(self.path)
            for other in self.path.parent.glob(self._others):
                if other != self.path:
                    other.unlink(missing_ok=True)
        except (OSError, ValueError) as error:
            if partial is not None:
                partial.unlink(missing_ok=True)
            say(f"packed weights are not kept, so the next start is slower: {error}")
