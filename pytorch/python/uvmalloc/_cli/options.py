"""The options that several commands share, each declared once, and the reading of their values.

A command takes a dataclass of options as one argument; takes_options() declares the fields to
typer. Values are texts until a method reads them. A wrong value raises OptionError.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import math
import os
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from uvmalloc_autoload import OFF_WORDS

from uvmalloc._cli.accepted import (
    DRIVER_VERSIONS,
    HINTS,
    LEAST_SIZE_BYTES,
    LOG_LEVELS,
    MOST_DEVICES,
    MOST_SIZE_BYTES,
    MOVES,
    POLICIES,
    PROFILES,
)
from uvmalloc._cli.environment import Environment, Machine
from uvmalloc._cli.library_calls import machine_fault
from uvmalloc._cli.running import Reporting
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.libraries import Libraries
from uvmalloc.sizes import EXAMPLES, format_size, parse_size


def takes_options(*hidden: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Returns a decorator for a command that takes dataclasses of options.

    Help does not show the options of the arguments that `hidden` names.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(function, eval_str=True)
        groups: dict[str, Any] = {}
        parameters = []
        for parameter in signature.parameters.values():
            if not is_dataclass(parameter.annotation):
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
                continue
            groups[parameter.name] = parameter.annotation
            types = get_type_hints(parameter.annotation, include_extras=True)
            for each in fields(parameter.annotation):
                kind = _hidden(types[each.name]) if parameter.name in hidden else types[each.name]
                parameters.append(
                    inspect.Parameter(
                        each.name, inspect.Parameter.KEYWORD_ONLY,
                        default=each.default, annotation=kind,
                    )
                )  # fmt: skip

        @functools.wraps(function)
        def command(**given: Any) -> None:
            for name, kind in groups.items():
                given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
            function(**given)

        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _hidden(annotation: Any) -> Any:
    kind, declared = get_args(annotation)
    declared = copy(declared)
    declared.hidden = True
    return Annotated[kind, declared]


def _one_of(words: Sequence[str], help_text: str) -> Any:
    """Returns an option that takes one of `words`. Shells complete the words."""
    return typer.Option(
        metavar="NAME",
        help=f"{help_text}: {', '.join(words)}.",
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


CapacityOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help=f"Memory of each device: {EXAMPLES}.")
]
MachineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A machine of sim/profiles, such as gb10, or a file."),
]


# ---- settings of uvmalloc -----------------------------------------------------------------------


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


def check_word(option: str, word: str | None, accepted: Sequence[str]) -> None:
    if word is not None and word not in accepted:
        raise OptionError(option, word, ", ".join(accepted))


def _word(accepted: Sequence[str]) -> Callable[[str, str], str]:
    def read(option: str, text: str) -> str:
        check_word(option, text, accepted)
        return text

    return read


def _seconds(option: str, text: str) -> float:
    if text.lower() in OFF_WORDS:
        return 0.0
    with contextlib.suppress(ValueError):
        seconds = float(text)
        if seconds >= 0 and math.isfinite(seconds):
            return seconds
    raise OptionError(option, text, "seconds, such as 30 or 0.5; off")


def check_file(option: str, file: Path) -> Path:
    """Refuses an unusable file before the program runs, not hours later. Returns its whole path."""
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(option, str(file), "a file in a folder that exists and can be written")
    if file.is_fifo():
        raise OptionError(option, str(file), "a file: a pipe may never be read")
    return file.absolute()


def _read_by(read: Callable[[str, Any], object]) -> dict[str, Any]:
    """Returns metadata of a field: the function that reads the option's text."""
    return {"read": read}


def _flag(option: str, given: bool) -> str:
    return "1"


class _Options:
    """Base of the dataclasses of options."""

    def refuse(self, why: str) -> None:
        """Raises OptionError if an option is given."""
        for each in fields(self):  # type: ignore[arg-type]
            if (value := getattr(self, each.name)) != each.default:
                raise OptionError(option_of(each.name), str(value), why)


@dataclass(frozen=True)
class AllocatorOptions(_Options):
    """Settings of uvmalloc. The option --device-budget sets UVMALLOC_DEVICE_BUDGET, and so on."""

    policy: Annotated[str | None, _one_of(POLICIES, "How memory is placed")] = field(
        default=None, metadata=_read_by(_word(POLICIES))
    )
    move: Annotated[str | None, _one_of(MOVES, "What x.to('cuda') does")] = field(
        default=None, metadata=_read_by(_word(MOVES))
    )
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most memory uvmalloc may hold.")
    ] = field(default=None, metadata=_read_by(size_of))
    device_budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Most memory it may hold on each device.")
    ] = field(default=None, metadata=_read_by(size_of))
    decay: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="Half-life of idle cached memory; off: it stays."),
    ] = field(default=None, metadata=_read_by(_seconds))
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a trace of the allocator; %p is the process ID."),
    ] = field(default=None, metadata=_read_by(check_file))
    call_sites: Annotated[
        bool, typer.Option("--call-sites", help="Name the line of each allocation in the trace.")
    ] = field(default=False, metadata=_read_by(_flag))
    log: Annotated[str | None, _one_of(LOG_LEVELS, "Which messages go to stderr")] = field(
        default=None, metadata=_read_by(_word(LOG_LEVELS))
    )
    share: Annotated[
        bool,
        typer.Option("--share", help="Take turns on a device with other programs that share it."),
    ] = field(default=False, metadata=_read_by(_flag))

    def variables(self) -> Environment:
        if self.call_sites and self.trace is None and "UVMALLOC_TRACE" not in os.environ:
            raise OptionError("--call-sites", "given", "only with --trace: the trace names them")
        return {
            f"UVMALLOC_{each.name.upper()}": str(
                each.metadata["read"](option_of(each.name), getattr(self, each.name))
            )
            for each in fields(self)
            if getattr(self, each.name) != each.default
        }

    @classmethod
    def names(cls) -> list[str]:
        return [f"UVMALLOC_{each.name.upper()}" for each in fields(cls)]


def option_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


# ---- the report ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReportOptions:
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the report there, as JSON.")
    ] = None
    no_report: Annotated[bool, typer.Option("--no-report", help="Show no report at the end.")] = (
        False
    )

    def read(self, trace: Path | None) -> Reporting:
        if self.report is not None:
            file = check_file("--report", self.report)
            if trace is not None and file == trace.absolute():
                raise OptionError("--report", str(self.report), "a file other than that of --trace")
        return Reporting(self.report, shown=not self.no_report)


# ---- machines -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class MachineOptions:
    """A simulated machine."""

    devices: Annotated[
        str, typer.Option(metavar="N", help=f"Number of devices, 0 to {MOST_DEVICES}.")
    ] = "1"
    capacity: CapacityOption = None
    driver_version: Annotated[
        str | None, _one_of(DRIVER_VERSIONS, "CUDA version of the driver")
    ] = None
    profile: Annotated[str | None, _one_of(PROFILES, "How devices and host share memory")] = None
    hip: Annotated[bool, typer.Option("--hip", help="Simulate HIP (ROCm), not CUDA.")] = False
    machine: MachineOption = None
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of the host: {EXAMPLES}.")
    ] = None
    cpu_touches: Annotated[
        bool,
        typer.Option("--cpu-touches", help="The CPU's loads and stores fault and migrate."),
    ] = False

    def read(self, libraries: Libraries) -> Machine:
        devices = self.devices
        if not (devices.isascii() and devices.isdigit() and int(devices) <= MOST_DEVICES):
            raise OptionError("--devices", devices, f"a whole number from 0 to {MOST_DEVICES}")
        check_word("--driver-version", self.driver_version, DRIVER_VERSIONS)
        if self.hip and self.driver_version is not None:
            raise OptionError("--driver-version", self.driver_version, "nothing with --hip")
        check_word("--profile", self.profile, PROFILES)
        capacity, host_memory = self.capacity, self.host_memory
        return Machine(
            int(devices),
            None if capacity is None else size_of("--capacity", capacity),
            self.driver_version,
            self.profile,
            self.hip,
            None if self.machine is None else machine_of(self.machine, libraries),
            None if host_memory is None else size_of("--host-memory", host_memory),
            self.cpu_touches,
        )


def machine_of(machine: str, libraries: Libraries) -> str:
    """Returns the name of a machine in sim/profiles, or the path of a file in the same form."""
    machines = libraries.machines()
    if machine in machines:
        return machine
    if not Path(machine).is_file():
        raise OptionError("--machine", machine, f"{', '.join(machines)}; a file in TOML")
    file = str(Path(machine).absolute())
    if fault := machine_fault(libraries.require_simulator(), file):
        raise OptionError("--machine", machine, f"a file that describes a machine: {fault}")
    return file


@dataclass(frozen=True)
class ReplayOptions(_Options):
    """Where and how a trace is replayed to draw it."""

    machine: Annotated[
        str | None, typer.Option(metavar="NAME", help="The machine for the replay of the trace.")
    ] = None
    capacity: CapacityOption = None
    hints: Annotated[str, _one_of(HINTS, "The hints of the replay")] = "recorded"

    def read(self, libraries: Libraries) -> Machine:
        check_word("--hints", self.hints, HINTS)
        return MachineOptions(machine=self.machine, capacity=self.capacity).read(libraries)


# ---- drawings -----------------------------------------------------------------------------------


def check_drawing(option: str, file: Path | None, package: str, command: str = "") -> None:
    """Refuses a drawing that cannot be made, before anything is recorded, read or printed.

    `command` needs the packages; without it, the option does.
    """
    if file is None:
        return
    check_file(option, file)
    for needed in ("numpy", package):
        if importlib.util.find_spec(needed) is None:
            raise CommandError(f"{command or option} needs {needed}: pip install {needed}")
