"""stream_here FOLDER DEVICE_BYTES: streams a file of three times the device's size through it.

Prints JSON: the most device memory allocated by PyTorch's allocator over the window, and the bytes
of tensors read over the file's.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import uvmalloc
from safetensors.torch import save_file

TENSOR_BYTES = 1 << 20


def main() -> None:
    folder, device_bytes = Path(sys.argv[1]), int(sys.argv[2])
    file = folder / "stream.safetensors"
    count = 3 * device_bytes // TENSOR_BYTES
    save_file({f"t{n:05}": torch.full((TENSOR_BYTES // 4,), float(n)) for n in range(count)}, file)
    window_bytes = device_bytes // 4
    torch.cuda.init()
    torch.cuda.reset_peak_memory_stats()
    wrong = 0
    with uvmalloc.stream_safetensors(file, "cuda", window=window_bytes) as stream:
        for tensors in stream:
            for name, tensor in tensors.items():
                wrong += tensor[0].item() != float(name[1:])
        read_bytes = stream.bytes_read
    print(
        json.dumps(
            {
                "peak_over_window": torch.cuda.max_memory_allocated() / window_bytes,
                "read_over_file": read_bytes / file.stat().st_size,
                "wrong": wrong,
            }
        )
    )


if __name__ == "__main__":
    main()
