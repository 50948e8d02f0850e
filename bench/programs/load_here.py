"""Prints, as JSON, the peak memory of each way of loading a checkpoint to the device.

Peaks are relative to the beginning of the load, in parts of the model's bytes. They are `device`,
`host` (with memory that torch's own allocator has pinned) and `all` together. Managed memory always
counts as the host's, and as the device's while it is there. `all` counts a page that has moved
once. `mapped` is the largest mapped part of the file, and `cached` its part in the page cache at
the end. The kernel can take both back, and they count nowhere else.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import uvmalloc
from safetensors import safe_open
from safetensors.torch import load_file, save_file

SAMPLER = Path(__file__).resolve().parent / "memory_sampler.py"
WIDTH = 1024
TORCH_FILE = "model.pt"
SAFETENSORS_FILE = "model.safetensors"

Tensors = dict[str, torch.Tensor]


class Model(torch.nn.Module):
    """An embedding with an eighth of the bytes, and layers of matrices and vectors."""

    def __init__(self, size_bytes: int, device: str) -> None:
        super().__init__()
        row = WIDTH * torch.float32.itemsize
        rows = size_bytes // row
        self.embedding = self.parameter(rows // 8, device)
        per_layer = max(rows // 32, 8)
        self.layers = torch.nn.ParameterList(
            self.parameter(count, device)
            for _ in range((rows - rows // 8) // per_layer)
            for count in (1, per_layer // 4, 1, per_layer - per_layer // 4 - 2)
        )

    @staticmethod
    def parameter(rows: int, device: str) -> torch.nn.Parameter:
        empty = torch.empty(rows, WIDTH, device=device)
        return torch.nn.Parameter(empty, requires_grad=False)


def write(folder: Path, size_bytes: int) -> None:
    """Writes the files to disk, not only to the page cache, so that the cache can be dropped."""
    model = Model(size_bytes, "cpu")
    for number, parameter in enumerate(model.parameters()):
        parameter.fill_(number + 0.5)
    torch.save(model.state_dict(), folder / TORCH_FILE)
    save_file(model.state_dict(), folder / SAFETENSORS_FILE)
    for name in (TORCH_FILE, SAFETENSORS_FILE):
        with (folder / name).open("rb") as stream:
            os.fsync(stream.fileno())


def to_device(tensors: Tensors) -> Tensors:
    return {name: tensor.to("cuda") for name, tensor in tensors.items()}


def into_model_on_device(file: Path, size_bytes: int) -> Tensors:
    model = Model(size_bytes, "cuda")
    for parameter in model.parameters():
        parameter.zero_()
    model.load_state_dict(torch.load(file))
    return model.state_dict()


def into_model_by_assigning(file: Path, size_bytes: int) -> Tensors:
    model = Model(size_bytes, "meta")
    model.load_state_dict(torch.load(file), assign=True)
    return model.to("cuda").state_dict()


def by_safe_open(file: Path, size_bytes: int) -> Tensors:
    with safe_open(file, framework="pt", device="cuda:0") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


WAYS: dict[str, tuple[str, Callable[[Path, int], Tensors]]] = {
    "torch.load, to": (TORCH_FILE, lambda file, _: to_device(torch.load(file))),
    "torch.load, map_location": (TORCH_FILE, lambda file, _: torch.load(file, map_location="cuda")),
    "torch.load, mmap, to": (TORCH_FILE, lambda file, _: to_device(torch.load(file, mmap=True))),
    "load_state_dict": (TORCH_FILE, into_model_on_device),
    "load_state_dict, assign, to": (TORCH_FILE, into_model_by_assigning),
    "load_file, to": (SAFETENSORS_FILE, lambda file, _: to_device(load_file(file))),
    "load_file on device": (SAFETENSORS_FILE, lambda file, _: load_file(file, "cuda:0")),
    "safe_open on device": (SAFETENSORS_FILE, by_safe_open),
    "uvmalloc.load_safetensors": (
        SAFETENSORS_FILE,
        lambda file, _: uvmalloc.load_safetensors(file, "cuda"),
    ),
}


class Simulator:
    """The figures of the simulated device."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)

    def begin(self) -> None:
        self.library.uvmsim_reset_peak_used(0)

    def peak_bytes(self) -> int:
        peak = ctypes.c_size_t()
        self.library.uvmsim_peak_used(0, ctypes.byref(peak))
        return peak.value


def pinned_peak_bytes() -> int:
    """Returns the peak of torch's pinned allocator. The sampler cannot distinguish this memory from
    the simulator's.
    """
    if torch.cuda.get_allocator_backend() != "native":
        return 0
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)


class Sampler:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def tell(self, command: str) -> dict[str, int]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@contextmanager
def sampler(file: Path) -> Iterator[Sampler]:
    # The sampler itself must not run on the simulated device.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LD_")}
    with subprocess.Popen(
        [sys.executable, "-S", str(SAMPLER), str(os.getpid()), str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        yield Sampler(process)
        assert process.stdin is not None
        process.stdin.close()


def is_as_written(tensors: Tensors, size_bytes: int) -> bool:
    names = Model(size_bytes, "meta").state_dict()
    return tensors.keys() == names.keys() and all(
        tensors[name].is_cuda and tensors[name][-1, -1].item() == number + 0.5
        for number, name in enumerate(names)
    )


def forget_all(file: Path) -> None:
    """Empties the caches of allocators, of the C library and of the kernel."""
    gc.collect()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()
    ctypes.CDLL(None).malloc_trim(0)
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(way: str, folder: Path, size_bytes: int) -> dict[str, float]:
    name, load = WAYS[way]
    file = folder / name
    forget_all(file)
    simulator = Simulator()
    with sampler(file) as samples:
        simulator.begin()
        torch.cuda.reset_peak_host_memory_stats()
        pinned_before = pinned_peak_bytes()
        device_before = simulator.peak_bytes()
        before = samples.tell("begin")
        tensors = load(file, size_bytes)
        torch.cuda.synchronize()
        after = samples.tell("end")
        pinned = pinned_peak_bytes() - pinned_before
        used = {
            "device": simulator.peak_bytes() - device_before,
            **{kind: after[kind] - before[kind] + pinned for kind in ("host", "all")},
            "mapped": after["mapped"] - before["mapped"],
            "cached": after["cached"],
        }
    if not is_as_written(tensors, size_bytes):
        sys.exit(f"{way} loads something else than was saved")
    return {kind: size / file.stat().st_size for kind, size in used.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model-bytes", type=int, required=True)
    parser.add_argument("--write", action="store_true", help="only write the files")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.write:
        write(options.folder, options.model_bytes)
        print("{}")
        return
    torch.ones(8 << 20, device="cuda").cpu()
    peaks = {way: measure(way, options.folder, options.model_bytes) for way in WAYS}
    print(json.dumps({"allocator": torch.cuda.get_allocator_backend(), "peaks": peaks}))


if __name__ == "__main__":
    main()
