"""The native libraries: where they are, and which exist."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uvmalloc.errors import MissingLibraryError

LIB_DIR_VARIABLE = "UVMALLOC_LIB_DIR"
CUDA_MAJOR = 13  # major version of the CUDA headers for the plugin
_PACKAGE = Path(__file__).resolve().parent
_BUILD_HINT = "build them with scripts/build, or set UVMALLOC_LIB_DIR to the folder that holds them"


@dataclass(frozen=True)
class Libraries:
    """The folder of one build's libraries. Only `require_` methods check that the files exist."""

    folder: Path

    @property
    def uvmalloc(self) -> Path:
        return self.folder / "libuvmalloc_preload.so"

    @property
    def pipelines(self) -> Path:
        return self.folder / "libuvmalloc_pipelines.so"

    @property
    def stand_ins(self) -> Path:
        """The folder of the libraries that replace CUDA's on a simulated device."""
        return self.folder / "sim"

    @property
    def hip_stand_ins(self) -> Path:
        """The same for HIP devices. Absent from a build without HIP's headers."""
        return self.stand_ins / "hip"

    @property
    def simulator(self) -> Path:
        return self.stand_ins / "libuvmsim.so"

    @property
    def audit(self) -> Path:
        return self.stand_ins / "libuvmsim_audit.so"

    @property
    def simulated_host(self) -> Path:
        """The library that shows programs the host memory of a simulated machine."""
        return self.stand_ins / "libuvmsim_host.so"

    @property
    def kernels(self) -> Path:
        """PyTorch's operators on the simulated device. Absent from a build without torch."""
        return self.folder / "libuvmsim_torch.so"

    @property
    def machine_replay(self) -> Path:
        """The program that replays traces on simulated machines."""
        return self.folder.parent / "bin" / "uvmalloc_machine_replay"

    @property
    def what_if(self) -> Path:
        """The program that runs recorded steps with less memory."""
        return self.folder.parent / "bin" / "uvmalloc_plan"

    def machines(self) -> list[str]:
        """Returns the names of the machines that can be simulated."""
        return sorted(file.stem for file in (self.stand_ins / "profiles").glob("*.toml"))

    def plugin(self, torch_version: str) -> Path:
        """The plugin for a version such as 2.11.0+cu130. Each minor version of torch has one."""
        major, minor = torch_version.split(".")[:2]
        return self.folder / f"libuvmalloc_torch_{major}_{minor}.so"

    def plugins(self) -> list[Path]:
        return sorted(self.folder.glob("libuvmalloc_torch_*.so"))

    @property
    def checkout(self) -> Path | None:
        """The checkout that built these libraries, or None if they come from a wheel."""
        root = self.folder.parents[2] if len(self.folder.parents) > 2 else self.folder
        return root if (root / "scripts" / "build").is_file() else None

    def served_torch(self) -> list[str]:
        """Versions such as 2.15 that the checkout can build for, or that the wheel holds."""
        if self.checkout is not None:
            lines = (self.checkout / "scripts" / "torch_versions.txt").read_text().splitlines()
            releases = [line for line in lines if line and not line.startswith("#")]
            return [release.rpartition(".")[0] for release in releases]
        return self.built_for_torch()

    def built_for_torch(self) -> list[str]:
        """Versions such as 2.15 that have a plugin here."""
        names = [file.stem.removeprefix("libuvmalloc_torch_") for file in self.plugins()]
        return [name.replace("_", ".") for name in names]

    def require_uvmalloc(self) -> Path:
        self._require(self.uvmalloc)
        return self.uvmalloc

    def require_simulator(self) -> Path:
        self._require(self.simulator)
        return self.simulator

    def require_machine_replay(self) -> Path:
        self._require(self.machine_replay)
        return self.machine_replay

    def require_what_if(self) -> Path:
        self._require(self.what_if)
        return self.what_if

    def require_stand_ins(self) -> None:
        runtime = self.stand_ins / f"libcudart.so.{CUDA_MAJOR}"
        self._require(self.audit, runtime, self.stand_ins / "libcuda.so.1")

    def require_hip_stand_ins(self) -> None:
        self._require(self.audit)
        self._require(
            self.hip_stand_ins / "libamdhip64.so.7", self.hip_stand_ins / "libhsa-runtime64.so.1"
        )

    def _require(self, *files: Path) -> None:
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            where = files[0].parent
            raise MissingLibraryError(f"{', '.join(missing)} not found in {where}: {_BUILD_HINT}")


def find_libraries(
    environment: Mapping[str, str] | None = None, package: Path = _PACKAGE
) -> Libraries:
    """Returns `lib` in this package, else build/release/lib of the checkout that holds the package.

    UVMALLOC_LIB_DIR selects another folder inside the package or the checkout, such as
    build/asan/lib. Raises MissingLibraryError for other folders: they may belong to another user.
    """
    environment = os.environ if environment is None else environment
    checkout = _checkout_of(package)
    chosen = environment.get(LIB_DIR_VARIABLE)
    if chosen:
        folder = Path(chosen).resolve()
        homes = [home for home in (package, checkout) if home is not None]
        if not folder.is_dir() or not any(folder.is_relative_to(home) for home in homes):
            raise MissingLibraryError(
                f"{LIB_DIR_VARIABLE} is '{chosen}'; accepted: the folder of "
                + "libuvmalloc_preload.so, in "
                + " or ".join(map(str, homes))
            )
        return Libraries(folder)
    folders = [package / "lib"] + ([checkout / "build/release/lib"] if checkout is not None else [])
    for folder in folders:
        if folder.is_dir():
            return Libraries(folder)
    raise MissingLibraryError(f"libuvmalloc_preload.so not found: {_BUILD_HINT}")


def _checkout_of(package: Path) -> Path | None:
    root = package.parent.parent.parent
    return root if package == root / "pytorch/python/uvmalloc" else None
