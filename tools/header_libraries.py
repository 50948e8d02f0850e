"""The libraries of which uvmalloc's build needs only headers (cmake/uvmalloc_headers.cmake), as
packages of Debian.

    PYTHONPATH=tools python -m header_libraries FOLDER

copies them into a folder that a build can take them from.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


class MissingSourceError(Exception):
    """A source is not on this machine. The message is one line."""


@dataclass(frozen=True)
class HeaderLibrary:
    name: str
    package: str
    header: str  # the folder before the slash holds all of the library
    licence: str  # as SPDX names it
    only_for_simulator: bool = False


LIBRARIES = (
    HeaderLibrary("fmt", "libfmt-dev", "fmt/format.h", "MIT"),
    HeaderLibrary("nlohmann-json", "nlohmann-json3-dev", "nlohmann/json.hpp", "MIT"),
    HeaderLibrary("tomlplusplus", "libtomlplusplus-dev", "toml++/toml.h", "MIT", True),
    HeaderLibrary("cli11", "libcli11-dev", "CLI/CLI.hpp", "BSD-3-Clause"),
)


def copy_headers(folder: Path, libraries: Iterable[HeaderLibrary] = LIBRARIES) -> None:
    """Copies the libraries into the folder's `include`, and their licences into `licences`."""
    for library in libraries:
        name = library.header.split("/")[0]
        source = Path("/usr/include") / name
        if not source.is_dir():
            raise MissingSourceError(
                f"{source} is not there: install {library.package} (scripts/setup does)"
            )
        shutil.copytree(source, folder / "include" / name)
        copy_licence(library.package, folder)


def copy_licence(package: str, folder: Path) -> None:
    file = Path("/usr/share/doc") / package / "copyright"
    if file.is_file():
        (folder / "licences").mkdir(exist_ok=True)
        shutil.copyfile(file, folder / "licences" / package)


if __name__ == "__main__":
    copy_headers(Path(sys.argv[1]))
