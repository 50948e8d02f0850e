"""Reads and checks the values of the command's options."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path

from uvmalloc_autoload import OFF_WORDS

from uvmalloc._cli.accepted import (
    DRIVER_VERSIONS,
    LEAST_SIZE_BYTES,
    LOG_LEVELS,
    MOST_DEVICES,
    MOST_SIZE_BYTES,
    MOVES,
    POLICIES,
    PROFILES,
)
from uvmalloc._cli.environment import AllocatorOptions, Machine
from uvmalloc._cli.library_calls import machine_fault
from uvmalloc._cli.running import Reporting
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.libraries import Libraries
from uvmalloc.sizes import EXAMPLES, format_size, parse_size


def allocator_options(
    policy: str | None,
    move: str | None,
    budget: str | None,
    device_budget: str | None,
    decay: str | None,
    trace: Path | None,
    call_sites: bool,
    log: str | None,
    share: bool,
) -> AllocatorOptions:
    check_word("--policy", policy, POLICIES)
    check_word("--move", move, MOVES)
    check_word("--log", log, LOG_LEVELS)
    if trace is not None:
        _check_file("--trace", trace)
    elif call_sites and "UVMALLOC_TRACE" not in os.environ:
        raise OptionError("--call-sites", "given", "only with --trace: the trace names them")
    return AllocatorOptions(
        policy=policy,
        move=move,
        budget_bytes=None if budget is None else size_of("--budget", budget),
        device_budget_bytes=(
            None if device_budget is None else size_of("--device-budget", device_budget)
        ),
        decay_seconds=None if decay is None else _seconds("--decay", decay),
        trace=None if trace is None else trace.absolute(),
        call_sites=call_sites,
        log=log,
        share=share,
    )


def refuse_with_native(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(option, str(value), "nothing with --native, without uvmalloc")


def check_word(option: str, word: str | None, accepted: Sequence[str]) -> None:
    if word is not None and word not in accepted:
        raise OptionError(option, word, ", ".join(accepted))


def _seconds(option: str, text: str) -> float:
    if text.lower() in OFF_WORDS:
        return 0.0
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if seconds >= 0 and math.isfinite(seconds):
            return seconds
    raise OptionError(option, text, "seconds, such as 30 or 0.5; off")


def _check_file(option: str, file: Path) -> None:
    """Refuses an unusable file before the program runs, not hours later."""
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(option, str(file), "a file in a folder that exists and can be written")


def check_drawings(page: Path | None, picture: Path | None) -> None:
    """Refuses drawings that cannot be made, before anything is recorded, read or printed."""
    for option, file, package in (("--html", page, "plotly"), ("--png", picture, "matplotlib")):
        if file is None:
            continue
        _check_file(option, file)
        for needed in ("numpy", package):
            require_package(needed, option)


def require_package(package: str, needed_by: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise CommandError(f"{needed_by} needs {package}: pip install {package}")


def machine_of(
    devices: str,
    capacity: str | None,
    driver_version: str | None,
    profile: str | None,
    hip: bool,
    machine: str | None,
    host_memory: str | None,
    cpu_touches: bool,
    libraries: Libraries,
) -> Machine:
    """`machine` is a name in sim/profiles, or a file that the simulator can read."""
    if not (devices.isascii() and devices.isdigit() and int(devices) <= MOST_DEVICES):
        raise OptionError("--devices", devices, f"a whole number from 0 to {MOST_DEVICES}")
    check_word("--driver-version", driver_version, DRIVER_VERSIONS)
    if hip and driver_version is not None:
        raise OptionError("--driver-version", driver_version, "nothing with --hip")
    check_word("--profile", profile, PROFILES)
    capacity_bytes = None if capacity is None else size_of("--capacity", capacity)
    host_memory_bytes = None if host_memory is None else size_of("--host-memory", host_memory)
    if machine is not None and machine not in (machines := libraries.machines()):
        if not Path(machine).is_file():
            raise OptionError("--machine", machine, f"{', '.join(machines)}; a file in TOML")
        file = str(Path(machine).absolute())
        if fault := machine_fault(libraries.require_simulator(), file):
            raise OptionError("--machine", machine, f"a file that describes a machine: {fault}")
        machine = file
    return Machine(
        int(devices), capacity_bytes, driver_version, profile, hip, machine, host_memory_bytes,
        cpu_touches,
    )  # fmt: skip


def size_of(option: str, text: str) -> int:
    least, most = format_size(LEAST_SIZE_BYTES), format_size(MOST_SIZE_BYTES)
    accepted = f"a size from {least} to {most}, such as {EXAMPLES}"
    try:
        size_bytes = parse_size(text)
    except ValueError:
        raise OptionError(option, text, accepted) from None
    if not LEAST_SIZE_BYTES <= size_bytes <= MOST_SIZE_BYTES:
        raise OptionError(option, text, accepted)
    return size_bytes


def reporting_of(file: Path | None, hidden: bool) -> Reporting:
    if file is not None:
        _check_file("--report", file)
    return Reporting(file, shown=not hidden)
