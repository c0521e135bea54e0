"""Compiles every Triton kernel for compute capability 9.0, which needs no GPU: ``python -m tests.engine.compile_kernels``.

Prints one line a kernel with its shared memory, of which an H200 gives a block 227 KiB, and with what the assembler spilled
from the registers to memory, which in half precision must be nothing.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from engine.attention import triton as attention
from engine.attention.triton_kernels import combine_kernel, decode_kernel, prefill_kernel, write_kernel
from engine.layers.triton_operators import norm_kernel, rotate_kernel, silu_kernel

NAMES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}
INDICES = {"slots", "tile_seqs", "tile_firsts", "query_start", "context_lens", "block_tables", "decode_seqs"}
SHARED_LIMIT = 227 * 1024


def compile_for_h200(
    kernel: Any, dtype: torch.dtype, constants: dict[str, Any], warps: int = 4, stages: int = 3
) -> None:
    """Compile and print; raises if it does not compile, takes too much shared memory or spills in half precision."""
    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        is_number = name.endswith(("_row", "_head", "_slot", "_width", "_stride")) or name in ("scale", "eps")
        if name in ("scale", "eps"):
            signature[name] = "fp32"
        elif is_number:
            signature[name] = "i32"
        else:
            signature[name] = "*i32" if name in INDICES else "*fp32" if name.startswith("part_") else NAMES[dtype]
        if name not in ("scale", "eps", "table_width"):
            attributes[(i,)] = [["tt.divisibility", 16]]
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=values, attrs=attributes)
    options = {"num_warps": warps, "num_stages": stages}
    done = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    assert done.metadata.shared <= SHARED_LIMIT, done.metadata.shared
    spilled = spilled_bytes(done.asm["ptx"])
    assert spilled == 0 or dtype == torch.float32, spilled
    name = f"{kernel.fn.__name__} {dtype} {constants}"
    print(f"compiled {name}: {done.metadata.shared} bytes shared, {spilled} spilled", flush=True)


def spilled_bytes(ptx: str) -> int:
    """Bytes a thread stores to memory because there are too few registers."""
    with TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx)
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", source, "-o", Path(folder) / "kernel.cubin"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"(\d+) bytes spill stores", said)
    assert found is not None, said
    return int(found[1])


def compile_attention(dtype: torch.dtype, head_dim: int, group: int, block_size: int) -> None:
    sizes, lanes = attention._tiles(head_dim, dtype), attention._lanes(head_dim)
    common = {"GROUP": group, "HEAD_DIM": head_dim, "LANES": lanes, "BLOCK_SIZE": block_size, "WIDEN": False}
    common["PRECISION"] = sizes.precision
    tiles = {"TILE_M": attention._tile_rows(group), "TILE_N": sizes.prefill_columns}
    compile_for_h200(prefill_kernel, dtype, {**common, **tiles}, sizes.prefill_warps, sizes.stages)
    for splits in (1, 8):
        tiles = {"HEADS": 2 * group, "ROWS": 16, "TILE_N": sizes.decode_columns, "SPLITS": splits}
        compile_for_h200(decode_kernel, dtype, {**common, **tiles}, 4, sizes.stages)
    parts = {"HEADS": 2 * group, "HEAD_DIM": head_dim, "LANES": lanes, "SPLITS": 8}
    compile_for_h200(combine_kernel, dtype, parts, 2)
    compile_for_h200(
        write_kernel, dtype, {"HEADS": 2, "HEAD_DIM": head_dim, "WIDTH": attention._power_of_two(2 * head_dim)}
    )


if __name__ == "__main__":
    for dtype, head_dim, group, block_size in (
        (torch.bfloat16, 128, 4, 64),
        (torch.bfloat16, 128, 2, 16),
        (torch.bfloat16, 64, 3, 64),
        (torch.bfloat16, 80, 3, 3),
        (torch.bfloat16, 256, 1, 64),
        (torch.float16, 64, 8, 256),
        (torch.float32, 128, 2, 64),
        (torch.float32, 256, 1, 16),
    ):
        compile_attention(dtype, head_dim, group, block_size)
    for dtype in NAMES:
        for add in (False, True):
            compile_for_h200(norm_kernel, dtype, {"SIZE": 4096, "LANES": 4096, "ADD": add}, 8)
        for norm in (False, True):
            heads = {"HEADS": 32, "TURNED": 40, "HEAD_DIM": 128, "LANES": 64, "PROGRAM_HEADS": 8, "NORM": norm}
            compile_for_h200(rotate_kernel, dtype, heads)
        compile_for_h200(silu_kernel, dtype, {"INNER": 12288, "COLUMNS": 1024})
