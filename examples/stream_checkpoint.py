"""Runs a model whose checkpoint is three times as large as the device's memory.

    uvmalloc sim --capacity 64MiB -- python examples/stream_checkpoint.py

Writes a checkpoint of 144 MiB to a temporary folder, then runs the model from it, module by module,
within a window of 25 MiB.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
import uvmalloc
from safetensors.torch import save_file


def stack(layers: int, width: int) -> torch.nn.Sequential:
    modules: list[torch.nn.Module] = []
    for _ in range(layers):
        modules += [torch.nn.Linear(width, width), torch.nn.Tanh()]
    return torch.nn.Sequential(*modules)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=1772)
    parser.add_argument("--window", default="25MiB")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = stack(arguments.layers, arguments.width)
    inputs = torch.randn(4, arguments.width)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.safetensors"
        save_file(model.state_dict(), file)
        wanted = model(inputs)
        with torch.device("meta"):
            empty = stack(arguments.layers, arguments.width)
        with uvmalloc.stream_safetensors(file, device, window=arguments.window) as stream:
            with stream.into(empty):
                found = empty(inputs.to(device)).cpu()
            read = stream.bytes_read
        print(f"file: {file.stat().st_size / 2**20:.1f} MiB, read: {read / 2**20:.1f} MiB")
    print(f"largest difference from the model in memory: {(found - wanted).abs().max().item():g}")


if __name__ == "__main__":
    main()
