"""The release build, installed into a folder and then moved to another folder, as packages are."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from uvmalloc._cli.environment import without_settings
from uvmalloc.libraries import find_libraries

from tests.conftest import MakeOnce

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **environment: str) -> str:
    """Runs the command and returns its output. If the command fails, its errors are shown."""
    kept = without_settings(os.environ, "LD_", "PKG_CONFIG_", "CMAKE_")
    done = subprocess.run(
        [str(word) for word in command],
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    """An installed tree and what is needed to use it."""

    prefix: Path

    @property
    def libraries(self) -> Path:
        return next(self.prefix.rglob("libuvmalloc.so")).parent

    @property
    def stand_ins(self) -> Path:
        return self.libraries / "uvmalloc" / "sim"

    @property
    def headers(self) -> Path:
        return self.prefix / "include"

    def pkg_config(self, *words: str) -> list[str]:
        folder = self.libraries / "pkgconfig"
        return shlex.split(run("pkg-config", *words, PKG_CONFIG_LIBDIR=str(folder)))

    def run_simulated(self, program: Path, *, shared: bool) -> str:
        """Runs the program on a simulated device and returns its output."""
        folders = [str(self.stand_ins)] + [str(self.libraries)] * shared
        return run(program, LD_LIBRARY_PATH=":".join(folders))


@pytest.fixture(scope="session")
def installed(make_once: MakeOnce) -> Installed:
    def install(folder: Path) -> None:
        run("cmake", "--install", find_libraries().folder.parent, "--prefix", folder / "first")
        shutil.move(folder / "first", folder / "moved")

    return Installed(make_once("installed", install) / "moved")
