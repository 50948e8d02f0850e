"""Compares the stand-ins' lists of names with a CUDA release, and adds what is new.

    newest_names.py FOLDER         prints the names that differ; exit 1 if there are any
    newest_names.py FOLDER --add   adds the new names to cuda_symbols.txt, cudart_symbols.txt and
                                   driver/introductions.inc

FOLDER has `include/cuda.h`, `include/cudaTypedefs.h` and `lib/libcudart.so.*`, as the package
nvidia-cuda-runtime has. The runtime's names are those that its library exports. The driver's
library is in no package, so its names are those that cuda.h declares, and the versions of their
introduction come from cudaTypedefs.h.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DRIVER_NAMES = HERE / "cuda_symbols.txt"
RUNTIME_NAMES = HERE / "cudart_symbols.txt"
INTRODUCTIONS = HERE / "driver" / "introductions.inc"

# The suffix of a variant of a function: `_vN` for a version of its interface, `_ptsz` or `_ptds`
# for a default stream per thread. A header declares the plain name; a macro maps it to a variant.
FORM = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
DECLARATION = re.compile(r"^ ?(?:\w+ )?CUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w+)\s*\(", re.MULTILINE)
RENAMED = re.compile(
    r"^\s*#\s*define\s+cu[A-Z]\w+\s+(?:__CUDA_API_PT(?:SZ|DS)\()?(cu[A-Z]\w+)\)?\s*$", re.MULTILINE
)
PER_THREAD = re.compile(r"__CUDA_API_(PTSZ|PTDS)\((cu\w+)\)")
TYPE = re.compile(r"\(CUDAAPI \*PFN_(cu\w+?)_v(\d+)(_pt\w+)?\)")

# The oldest modelled driver. It has all functions that earlier versions introduced.
OLDEST = 12020

# cuGetProcAddress returns the same function for both kinds of default stream.
NOT_EXPORTED = {"cuGetProcAddress_v2_ptsz"}
# cudaProfiler.h and cudaEGL.h declare these; no PFN type or cuda.h names them.
DECLARED_ELSEWHERE = re.compile(r"^cuProfiler|EGL|VDPAU|GL[A-Z]")


def driver_names(folder: Path) -> set[str]:
    """The functions that cuda.h declares, in all their forms."""
    text = (folder / "include" / "cuda.h").read_text()
    names = set(DECLARATION.findall(text)) | set(RENAMED.findall(text))
    names |= {f"{name}_{kind.lower()}" for kind, name in PER_THREAD.findall(text)}
    return names - NOT_EXPORTED


def runtime_names(folder: Path) -> set[str]:
    """The functions that the runtime's library exports."""
    (library,) = sorted((folder / "lib").glob("libcudart.so.*"))
    command = ["nm", "--dynamic", "--defined-only", "--format=posix", str(library)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    names = {line.split()[0].split("@")[0] for line in lines}
    return {name for name in names if re.match(r"(__)?cuda[A-Z]", name)}


def introductions(folder: Path) -> dict[str, int]:
    """The release that introduced each exported driver function, in the form of CUDA_VERSION.

    A function's n-th form has the suffix _v<n>; the first has none.
    """
    forms: dict[str, set[int]] = {}
    for name, version, suffix in TYPE.findall((folder / "include" / "cudaTypedefs.h").read_text()):
        forms.setdefault(name + suffix, set()).add(int(version))
    exported = driver_names(folder)
    found: dict[str, int] = {}
    for name in exported:
        form = FORM.search(name)
        assert form is not None
        plain = name[: form.start()] + (form[2] or "")
        number = int((form[1] or "_v1")[2:])
        versions = sorted(forms.get(plain, ()))
        if versions:
            found[name] = versions[min(number, len(versions)) - 1]
    return found


def is_form_of(name: str, names: set[str]) -> bool:
    """Whether a newer form of `name` is declared, so that the library keeps the old one."""
    base = FORM.sub("", name)
    return any(FORM.sub("", each) == base for each in names)


def add_introductions(came: dict[str, int]) -> None:
    text = INTRODUCTIONS.read_text()
    rows = [f'{{"{name}", {version}}},' for name, version in came.items() if version > OLDEST]
    rows += [line for line in text.splitlines() if line.startswith("{")]
    comment = [line for line in text.splitlines() if not line.startswith("{")]
    INTRODUCTIONS.write_text("\n".join([*comment, *sorted(rows)]) + "\n")


def compare(folder: Path, add: bool) -> int:
    """Prints the differences between the lists and the release, and returns their number."""
    differences = 0
    came = introductions(folder)
    there_by_file = {DRIVER_NAMES: driver_names(folder), RUNTIME_NAMES: runtime_names(folder)}
    for file, there in there_by_file.items():
        listed = set(file.read_text().split())
        new = there - listed
        unknown = {
            name
            for name in listed - there
            if not is_form_of(name, there) and not DECLARED_ELSEWHERE.search(name)
        }
        for name in sorted(new):
            print(f"{file.name}: new: {name}")
        for name in sorted(unknown):
            print(f"{file.name}: in no header or library: {name}")
        differences += len(new) + len(unknown)
        if add:
            file.write_text("\n".join(sorted(listed | new)) + "\n")
            add_introductions({name: came[name] for name in new if name in came})
    return differences


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--add", action="store_true", help="add the new names to the lists")
    arguments = parser.parse_args()
    return 1 if compare(arguments.folder, arguments.add) and not arguments.add else 0


if __name__ == "__main__":
    sys.exit(main())
