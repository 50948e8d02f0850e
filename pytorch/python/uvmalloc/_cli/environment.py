"""Environments for programs that run under uvmalloc or on a simulated device.

The functions are pure: they take an environment and return a new one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from uvmalloc_autoload import OFF_WORDS

from uvmalloc.errors import CommandError
from uvmalloc.libraries import Libraries

SWITCH = "PYTORCH_ENABLE_UNIFIED_MEMORY"
SERVES_CUDA = "UVMALLOC_CUDA"
STARTUP_LINE = "UVMALLOC_STARTUP_LINE"
REPORT_DIR = "UVMALLOC_REPORT_DIR"
SIM_REPORT = "UVMSIM_REPORT"

# With LD_AUDIT, the loader sizes static thread-local storage before it knows the preloaded
# libraries. This setting adds bytes for the storage of those libraries (jemalloc, for example).
_STATIC_TLS = "glibc.rtld.optional_static_tls"
_STATIC_TLS_BYTES = 16384

Environment = dict[str, str]

# The sanitizers of GCC (libasan.so.8) and of clang (libclang_rt.asan-x86_64.so).
_SANITIZER = re.compile(r"lib(clang_rt\.)?(a|l|t|m|ub|hwa)san[^/]*\.so[.0-9]*")


@dataclass(frozen=True)
class Machine:
    """A simulated machine."""

    devices: int = 1
    capacity_bytes: int | None = None  # of each device; None: the simulator's default
    driver_version: str | None = None  # such as 12.8
    profile: str | None = None  # see sim/README.md; None: the simulator's default
    hip: bool = False  # simulates HIP devices, not CUDA devices
    machine: str | None = None  # a name in sim/profiles, or a file; None: the ideal machine
    host_memory_bytes: int | None = None  # None: the host memory of `machine`
    cpu_touches: bool = False


# A card with XNACK switched on: uvmalloc stays inactive without XNACK. --profile selects another
# card.
_HIP_MACHINE = {"UVMSIM_PROFILE": "hmm", "HSA_XNACK": "1", "UVMALLOC_RUNTIME": "hip"}

_SETTING_PREFIXES = ("UVMALLOC_", "UVMSIM_", "PYTORCH_")


def without_settings(environment: Mapping[str, str], *also: str) -> Environment:
    """Returns `environment` without settings of uvmalloc, of the simulator and of PyTorch.

    Also removes variables that begin with one of the prefixes `also`.
    """
    prefixes = (*_SETTING_PREFIXES, *also)
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def with_uvmalloc(
    environment: Mapping[str, str],
    libraries: Libraries,
    settings: Mapping[str, str],
    report_dir: Path | None,
) -> Environment:
    """Returns `environment` with uvmalloc preloaded and on, these `settings`, and reports in
    `report_dir`."""
    result = dict(environment)
    _drop_preloads(result)
    _prepend(result, "LD_PRELOAD", libraries.require_uvmalloc(), separators=" :")
    _put_sanitizers_first(result)
    result[SWITCH] = "1"
    result.setdefault(SERVES_CUDA, "auto")
    if report_dir is not None:
        result[REPORT_DIR] = str(report_dir)
    return {**result, **settings}


def with_cuda_calls_served(environment: Mapping[str, str], library: Path) -> Environment:
    """Returns `environment` with only `library` preloaded, to serve a CUDA program's own calls."""
    return {
        **environment,
        "LD_PRELOAD": str(library),
        SERVES_CUDA: "1",
        STARTUP_LINE: "0",
    }


def without_uvmalloc(environment: Mapping[str, str]) -> Environment:
    """Returns `environment` without uvmalloc: the program keeps its own allocators."""
    result = dict(environment)
    result.pop(SWITCH, None)
    result.pop(REPORT_DIR, None)
    _drop_preloads(result)
    return result


def on_simulated_device(
    environment: Mapping[str, str], libraries: Libraries, machine: Machine, report: Path | None
) -> Environment:
    """Returns `environment` for a program on simulated devices, which write `report` at the end."""
    result = dict(environment)
    if machine.hip:
        libraries.require_hip_stand_ins()
        _redirect(result, libraries, libraries.hip_stand_ins)
        result.update(_HIP_MACHINE)
        if "HSA_XNACK" in environment:
            result["HSA_XNACK"] = environment["HSA_XNACK"]
    else:
        libraries.require_stand_ins()
        _redirect(result, libraries, libraries.stand_ins)
    result["UVMSIM_DEVICES"] = str(machine.devices)
    if machine.capacity_bytes is not None:
        result["UVMSIM_CAPACITY"] = str(machine.capacity_bytes)
    if machine.driver_version is not None:
        result["UVMSIM_DRIVER_VERSION"] = _version_number(machine.driver_version)
    if machine.profile is not None:
        result["UVMSIM_PROFILE"] = machine.profile
    if machine.machine is not None:
        result["UVMSIM_MACHINE"] = machine.machine
        if machine.profile is None:
            result.pop("UVMSIM_PROFILE", None)  # the machine's file sets the profile
    if machine.host_memory_bytes is not None:
        result["UVMSIM_HOST_MEMORY"] = str(machine.host_memory_bytes)
        _prepend(result, "LD_PRELOAD", libraries.simulated_host, separators=" :")
    if machine.cpu_touches:
        result["UVMSIM_CPU_TOUCHES"] = "1"
    if libraries.kernels.is_file() and not machine.hip:
        result["UVMSIM_KERNELS"] = str(libraries.kernels)
    if report is not None:
        result[SIM_REPORT] = str(report)
    return result


def wanted_reports(environment: Mapping[str, str], folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yields the files in `folder` that `environment` requests, each with its destination."""
    wanted = environment.get(REPORT_DIR, "")
    if wanted.lower() not in OFF_WORDS:
        for report in sorted(folder.glob("report.*")):
            yield report, Path(wanted, report.name)
    file = environment.get(SIM_REPORT)
    if file:
        for counters in sorted(folder.glob("sim.*")):
            pid, _, suffix = counters.name.removeprefix("sim.").partition(".json")
            yield counters, Path(file.replace("%p", pid, 1) + suffix)


def _version_number(version: str) -> str:
    """Returns the version in CUDA's form: 12080 for 12.8."""
    major, minor = version.split(".")
    return str(int(major) * 1000 + int(minor) * 10)


def _redirect(environment: Environment, libraries: Libraries, stand_ins: Path) -> None:
    """Makes the loader use the stand-ins in that folder, whatever path a program names."""
    _prepend(environment, "LD_AUDIT", libraries.audit)
    _prepend(environment, "LD_LIBRARY_PATH", stand_ins)
    environment["UVMSIM_LIBRARY_DIR"] = str(stand_ins)
    tunables = [entry for entry in environment.get("GLIBC_TUNABLES", "").split(":") if entry]
    if not any(entry.startswith(f"{_STATIC_TLS}=") for entry in tunables):
        tunables.append(f"{_STATIC_TLS}={_STATIC_TLS_BYTES}")
    environment["GLIBC_TUNABLES"] = ":".join(tunables)


def _drop_preloads(environment: Environment) -> None:
    """Removes every libuvmalloc_preload.so, from any folder: a process can have only one."""
    entries = environment.pop("LD_PRELOAD", "").replace(":", " ").split()
    kept = [entry for entry in entries if Path(entry).name != "libuvmalloc_preload.so"]
    if kept:
        environment["LD_PRELOAD"] = ":".join(kept)


def _put_sanitizers_first(environment: Environment) -> None:
    """Sanitizers refuse to run behind another library. Expects the separator of _prepend()."""
    entries = environment["LD_PRELOAD"].split(":")
    entries.sort(key=lambda entry: _SANITIZER.fullmatch(Path(entry).name) is None)
    environment["LD_PRELOAD"] = ":".join(entries)


def _prepend(environment: Environment, name: str, path: Path, separators: str = ":") -> None:
    """Puts `path` first in a list for the loader, once. Raises CommandError if `path` holds a
    separator: the loader does not support quotes.
    """
    bad = next((character for character in str(path) if character in separators), None)
    if bad is not None:
        raise CommandError(
            f"{name} cannot hold '{path}': the loader splits it at '{bad}'; move it elsewhere"
        )
    present = environment.get(name, "")
    for separator in separators[:-1]:
        present = present.replace(separator, separators[-1])
    entries = [entry for entry in present.split(separators[-1]) if entry and entry != str(path)]
    environment[name] = separators[-1].join([str(path), *entries])
