"""The folders of this tree and of a build, and the device to check."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from uvmalloc._cli.environment import without_settings

ROOT = Path(__file__).resolve().parents[2]
DEPS = ROOT / "build" / "gpu_deps"
MIB = 1 << 20
CLI_MODULES = ("typer", "rich")


@dataclass(frozen=True)
class Place:
    """The machine to check: a real machine or, for a trial, the simulated one."""

    simulated: bool
    build: Path
    budget_bytes: int = 0  # for programs under uvmalloc; 0 until the probe has run

    @property
    def libraries(self) -> Path:
        return self.build / "lib"

    def program(self, name: str) -> str:
        return str(self.build / "bin" / name)

    def environment(self) -> dict[str, str]:
        """Returns the environment of all programs: paths, and the most memory they may manage."""
        result = without_settings(os.environ, "LD_PRELOAD")  # ignore a developer's preload
        paths = [str(ROOT / "pytorch" / "python")]
        paths += [path] if (path := os.environ.get("PYTHONPATH")) else []
        if not all(map(importlib.util.find_spec, CLI_MODULES)):
            paths.append(str(DEPS / "python"))
        result["PYTHONPATH"] = os.pathsep.join(paths)
        result["UVMALLOC_LIB_DIR"] = str(self.libraries)
        result["UVMALLOC_BUDGET"] = str(max(self.budget_bytes, 2 * MIB))
        # By default, the span of each memory kind is as large as the budget. A span is virtual
        # memory, but the driver has to reserve it.
        result["UVMALLOC_SPAN_SIZE"] = str(max(self.budget_bytes // 8, 2 * MIB))
        result["UVM_TEST_DEVICE"] = "simulated" if self.simulated else "real"
        return result

    def driver_environment(self) -> dict[str, str]:
        """Returns the environment of programs that open libcuda.so.1 themselves."""
        result = self.environment()
        if self.simulated:
            result["LD_LIBRARY_PATH"] = str(self.libraries / "sim")
        return result

    def python(
        self,
        *arguments: str,
        native: bool,
        report: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Returns the command that runs a Python program on this machine's device.

        `variables` are set only for the program, not for its launcher.
        """
        settings = [f"{name}={value}" for name, value in (variables or {}).items()]
        program = [*(("env", *settings) if settings else ()), sys.executable, *arguments]
        if native and not self.simulated:
            return program
        command = [sys.executable, "-m", "uvmalloc", "sim" if self.simulated else "run"]
        command += ["--no-report", *(("--report", str(report)) if report else ())]
        command += ["--native"] if native else ["--budget", str(self.budget_bytes)]
        return [*command, "--", *program]
