"""One archive with what a maintainer needs to understand a problem, and with nothing private."""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import struct
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console

from uvmalloc import __version__
from uvmalloc._cli import doctor
from uvmalloc._cli.private import Filter
from uvmalloc._cli.report import read_report
from uvmalloc.libraries import find_libraries

_VARIABLES = ("UVMALLOC_", "PYTORCH_", "CUDA_VISIBLE_DEVICES")
_PACKAGES = ("torch", "numpy", "triton", "typer", "rich")
# Files with a fact each: the driver's module, and how the kernel manages memory.
_FACTS = (
    "proc/driver/nvidia/version",
    "sys/module/nvidia_uvm/parameters/uvm_disable_hmm",
    "sys/kernel/mm/transparent_hugepage/enabled",
    "proc/sys/vm/overcommit_memory",
    "proc/sys/vm/swappiness",
    "proc/sys/kernel/numa_balancing",
)
_NOTE = 4  # PT_NOTE
_BUILD_ID = 3  # NT_GNU_BUILD_ID


def contents(
    reports: Sequence[Path], environment: Mapping[str, str], private: Filter, root: Path = Path("/")
) -> dict[str, str]:
    """Returns the archive's files: their texts by name. CommandError: a file is not a report.

    The environment's values are only those of _VARIABLES.
    """
    diagnosis = doctor.diagnose()
    # Their values come from other variables, LD_PRELOAD and HSA_XNACK.
    diagnosis["hooks"] = [Path(hook.rpartition(" (")[0]).name for hook in diagnosis["hooks"]]
    diagnosis["amd"].pop("HSA_XNACK", None)
    shown = io.StringIO()
    doctor.show_diagnosis(diagnosis, Console(file=shown, width=100, markup=False, highlight=False))
    variables = {
        name: value for name, value in sorted(environment.items()) if name.startswith(_VARIABLES)
    }
    found: dict[str, Any] = {
        "doctor.txt": shown.getvalue(),
        "doctor.json": diagnosis,
        "versions.json": _versions(),
        "machine.json": _machine(root),
        "variables.json": variables,
        "libraries.json": dict(_libraries(root)),
    }
    for number, report in enumerate(reports, 1):
        found[f"report-{number}.json"] = read_report(report)
    return {
        name: private.text(each)
        if isinstance(each, str)
        else json.dumps(private.value(each), indent=2) + "\n"
        for name, each in found.items()
    }


def archive(files: Mapping[str, str]) -> bytes:
    """Returns a .tar.gz that records no owner, no time and no name of its own."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w") as tar,
    ):
        for name, text in files.items():
            content = text.encode("utf-8", "replace")
            entry = tarfile.TarInfo(f"uvmalloc-bundle/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _versions() -> dict[str, str]:
    versions = {"uvmalloc": __version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {**versions, "libc": " ".join(platform.libc_ver())}


def _machine(root: Path) -> dict[str, str]:
    system = os.uname()
    found = {"kernel": f"{system.sysname} {system.release} {system.machine}"}
    for name in _FACTS:
        try:
            found[name] = (root / name).read_text(errors="replace").strip()
        except OSError:
            found[name] = "absent"
    return found


# ---- libraries ----------------------------------------------------------------------------------


def _libraries(root: Path) -> Iterator[tuple[str, str]]:
    """Yields the build id of each library in this process, of uvmalloc's plugins and of torch."""
    files = {
        line.split(maxsplit=5)[5]
        for line in (root / "proc/self/maps").read_text(errors="replace").splitlines()
        if ".so" in line.rpartition("/")[2] and " /" in line
    }
    files |= {str(file) for file in find_libraries().plugins()}
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        pass
    else:
        folder = Path(str(torch.locate_file("torch/lib")))
        files |= {str(file) for file in folder.glob("lib*torch*.so")}
        files |= {str(file) for file in folder.glob("libc10*.so")}
    for file in sorted(files):
        try:
            yield file, build_id(Path(file)) or "no build id"
        except (OSError, ValueError, struct.error) as error:
            yield file, f"unreadable: {type(error).__name__}"


def build_id(file: Path) -> str | None:
    """Returns the build id in a 64-bit ELF file, or None. ValueError: it is not such a file."""
    with file.open("rb") as stream:
        header = stream.read(64)
        if header[:5] != b"\x7fELF\x02":
            raise ValueError("not a 64-bit ELF file")
        order = "<" if header[5] == 1 else ">"
        table_at, entry_bytes, entries = struct.unpack_from(f"{order}32xQ14xHH", header)
        for number in range(entries):
            stream.seek(table_at + number * entry_bytes)
            kind, at, size_bytes = struct.unpack(f"{order}I4xQ16xQ", stream.read(40))
            if kind != _NOTE:
                continue
            stream.seek(at)
            found = _build_id_in(stream.read(min(size_bytes, 1 << 16)), order)
            if found is not None:
                return found
    return None


def _build_id_in(notes: bytes, order: str) -> str | None:
    at = 0
    while at + 12 <= len(notes):
        name_bytes, text_bytes, kind = struct.unpack_from(f"{order}III", notes, at)
        name_at = at + 12
        text_at = name_at + (name_bytes + 3) // 4 * 4
        if kind == _BUILD_ID and notes[name_at : name_at + 4] == b"GNU\0":
            return notes[text_at : text_at + text_bytes].hex()
        at = text_at + (text_bytes + 3) // 4 * 4
    return None
