"""Lists the traces of this folder, recorded by record.py, and unpacks them for benchmarks."""

from __future__ import annotations

import lzma
from collections.abc import Mapping
from pathlib import Path

COMPRESSED = ".xz"
_SUFFIX = ".trace" + COMPRESSED


def committed_file(name: str) -> Path:
    return Path(__file__).resolve().parent / f"{name}{_SUFFIX}"


def committed_traces() -> dict[str, Path]:
    """Returns the traces of this folder by name."""
    files = sorted(Path(__file__).resolve().parent.glob(f"*{_SUFFIX}"))
    return {file.name.removesuffix(_SUFFIX): file for file in files}


def unpack(traces: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """Returns uncompressed files of the same traces. Writes unpacked files to `folder`."""
    plain = {}
    for name, file in traces.items():
        plain[name] = file
        if file.suffix == COMPRESSED:
            plain[name] = folder / f"{name}.trace"
            plain[name].write_bytes(lzma.decompress(file.read_bytes()))
    return plain
