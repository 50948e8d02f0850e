"""The command `uvmalloc`: it configures programs and shows what happened; it decides nothing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, TextIO

import typer
from rich.console import Console

from uvmalloc import __version__
from uvmalloc import doctor as doctor_module
from uvmalloc.environment import (
    AllocatorOptions,
    Environment,
    Machine,
    on_simulated_device,
    wanted_reports,
    with_uvmalloc,
    without_uvmalloc,
)
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.launch import launch
from uvmalloc.libraries import find_libraries
from uvmalloc.report import Report, main_report, read_report, show_report
from uvmalloc.sizes import EXAMPLES, format_size, parse_size

if TYPE_CHECKING:
    from uvmalloc.trace import Trace

POLICIES = ("auto", "driver", "off")
DRIVER_VERSIONS = ("12.2", "12.8", "13.0")
PROFILES = ("discrete", "integrated", "hmm", "coherent")
LEAST_SIZE_BYTES = 2 << 20  # of a capacity or a budget: one page of unified memory
MOST_SIZE_BYTES = 64 << 40  # the simulator has addresses for no more
MOST_DEVICES = 16

# Everything after the first word that is no option belongs to the program, also without `--`.
_PROGRAM = {"allow_interspersed_args": False}

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
trace_app = typer.Typer(no_args_is_help=True, help="Show and convert traces of the allocator.")
app.add_typer(trace_app, name="trace")

CommandArgument = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments.")
]
PolicyOption = Annotated[
    str | None, typer.Option(metavar="NAME", help=f"One of {', '.join(POLICIES)}.")
]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory uvmalloc may hold.")
]
DeviceBudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory of each device it may hold.")
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the report there, as JSON.")
]
TraceArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Written where UVMALLOC_TRACE is set.")
]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="OUT", help="Written there, not to stdout.")
]
UnfinishedOption = Annotated[
    bool, typer.Option("--unfinished", help="Accept the trace of a killed process.")
]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Show no report at the end.")]


@dataclass(frozen=True)
class Reporting:
    """What becomes of the reports when the program has ended."""

    file: Path | None
    shown: bool

    @property
    def wanted(self) -> bool:
        return self.shown or self.file is not None


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Caching allocation over unified memory, for unmodified programs."""
    if version:
        typer.echo(f"uvmalloc {__version__}")
        raise typer.Exit()


@app.command(context_settings=_PROGRAM)
def run(
    command: CommandArgument,
    policy: PolicyOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program with its allocators replaced by uvmalloc."""
    options = _allocator_options(policy, budget, device_budget)
    reporting = _reporting(report, no_report)
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        return with_uvmalloc(os.environ, libraries, options, folder)

    raise typer.Exit(_run(command, environment, reporting))


@app.command(context_settings=_PROGRAM)
def sim(
    command: CommandArgument,
    devices: Annotated[
        str, typer.Option(metavar="N", help=f"How many devices, 1 to {MOST_DEVICES}.")
    ] = "1",
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of each device: {EXAMPLES}.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Without uvmalloc: the program's own allocators.")
    ] = False,
    driver_version: Annotated[
        str | None, typer.Option(metavar="VERSION", help=f"One of {', '.join(DRIVER_VERSIONS)}.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"How devices and host share memory: {', '.join(PROFILES)}."
        ),
    ] = None,
    policy: PolicyOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program on a simulated device, with uvmalloc unless --native."""
    machine = _machine(devices, capacity, driver_version, profile)
    options = _allocator_options(policy, budget, device_budget)
    reporting = _reporting(report, no_report)
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        counters = folder / "sim.json" if folder else None
        result = on_simulated_device(os.environ, libraries, machine, counters)
        return (
            without_uvmalloc(result)
            if native
            else with_uvmalloc(result, libraries, options, folder)
        )

    if native:
        raise typer.Exit(_run(command, environment, reporting, "left out by --native"))
    raise typer.Exit(_run(command, environment, reporting))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what this machine can do, the effective configuration, and what to do about problems."""
    diagnosis = doctor_module.diagnose()
    if as_json:
        typer.echo(json.dumps(diagnosis, indent=2))
    else:
        doctor_module.show_diagnosis(diagnosis, _console())
    raise typer.Exit(0 if diagnosis["usable"] else 1)


@trace_app.command()
def info(file: TraceArgument, unfinished: UnfinishedOption = False) -> None:
    """Show what a trace holds: events, devices, peaks."""
    trace, export = _read_trace(file, unfinished)
    export.show_trace(trace, _console())


@trace_app.command("csv")
def trace_csv(
    file: TraceArgument, out: OutOption = None, unfinished: UnfinishedOption = False
) -> None:
    """Write a trace as CSV, one line for each event."""
    trace, export = _read_trace(file, unfinished)
    with _output(out) as stream:
        export.write_csv(trace, stream)


@trace_app.command()
def perfetto(
    file: TraceArgument,
    out: OutOption = None,
    blocks: Annotated[
        bool, typer.Option("--blocks", help="Also a slice for the life of each block.")
    ] = False,
    unfinished: UnfinishedOption = False,
) -> None:
    """Write a trace as JSON for the Perfetto UI: live bytes, failures, marks, hints."""
    trace, export = _read_trace(file, unfinished)
    with _output(out) as stream:
        export.write_perfetto(trace, stream, blocks)


@app.command()
def report(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Written by --report.")],
) -> None:
    """Show a saved report."""
    saved = read_report(file)
    try:
        show_report(saved, _console())
    except CommandError as error:
        raise CommandError(f"{file} is no report: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; what is wrong with the command is one line."""
    usage_error = typer.BadParameter.__bases__[0]  # typer exports no base of its errors
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # what its encoding lacks
    try:
        code = app(args=arguments, prog_name="uvmalloc", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except CommandError as error:
        return _fail(str(error), error.exit_code)
    except usage_error as error:  # type: ignore[misc]
        message = error.format_message()
        return _fail(message, 2) if message else 2
    except typer.Abort:
        return 130
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        _drop_output()
        return _fail(f"cannot write {error.filename or 'the output'}: {error.strerror}", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, exit_code: int) -> int:
    _say(f"error: {message}")
    return exit_code


def _say(message: str) -> None:
    """Where nobody can be told, the exit code stays what it is."""
    with contextlib.suppress(OSError):
        typer.echo(f"uvmalloc: {message}", err=True)


def _drop_output() -> None:
    """The interpreter writes at its end what could not be written: to nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ---- options ------------------------------------------------------------------------------------


def _allocator_options(
    policy: str | None, budget: str | None, device_budget: str | None
) -> AllocatorOptions:
    if policy is not None and policy not in POLICIES:
        raise OptionError("--policy", policy, ", ".join(POLICIES))
    budget_bytes = None if budget is None else _size("--budget", budget)
    device_bytes = None if device_budget is None else _size("--device-budget", device_budget)
    return AllocatorOptions(policy, budget_bytes, device_bytes)


def _machine(
    devices: str, capacity: str | None, driver_version: str | None, profile: str | None
) -> Machine:
    if not (devices.isascii() and devices.isdigit() and 1 <= int(devices) <= MOST_DEVICES):
        raise OptionError("--devices", devices, f"a whole number from 1 to {MOST_DEVICES}")
    if driver_version is not None and driver_version not in DRIVER_VERSIONS:
        raise OptionError("--driver-version", driver_version, ", ".join(DRIVER_VERSIONS))
    if profile is not None and profile not in PROFILES:
        raise OptionError("--profile", profile, ", ".join(PROFILES))
    capacity_bytes = None if capacity is None else _size("--capacity", capacity)
    return Machine(int(devices), capacity_bytes, driver_version, profile)


def _size(option: str, text: str) -> int:
    least, most = format_size(LEAST_SIZE_BYTES), format_size(MOST_SIZE_BYTES)
    accepted = f"a size from {least} to {most}, such as {EXAMPLES}"
    try:
        size_bytes = parse_size(text)
    except ValueError:
        raise OptionError(option, text, accepted) from None
    if not LEAST_SIZE_BYTES <= size_bytes <= MOST_SIZE_BYTES:
        raise OptionError(option, text, accepted)
    return size_bytes


def _reporting(file: Path | None, hidden: bool) -> Reporting:
    # Said before the program runs, not after hours of it.
    if file is not None:
        folder = file.absolute().parent
        if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
            raise OptionError(
                "--report", str(file), "a file in a folder that exists and can be written"
            )
    return Reporting(file, shown=not hidden)


# ---- traces -------------------------------------------------------------------------------------


def _read_trace(file: Path, unfinished: bool) -> tuple[Trace, ModuleType]:
    """The trace, and what shows it: both need numpy, which no other command imports."""
    try:
        from uvmalloc import trace, trace_export
    except ImportError as error:
        raise CommandError(f"traces need {error.name}: pip install {error.name}") from None
    return trace.read_trace(file, unfinished), trace_export


@contextmanager
def _output(file: Path | None) -> Iterator[TextIO]:
    if file is None:
        if sys.stdout is None:
            raise CommandError("cannot write the output: it is closed")
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has seen enough; typer would call it a failure
            _drop_output()
        return
    try:
        with file.open("w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None


# ---- running ------------------------------------------------------------------------------------


def _run(
    command: Sequence[str],
    environment: Callable[[Path | None], Environment],
    reporting: Reporting,
    inactive_reason: str = "this program did not use it",
) -> int:
    """Runs `command` in environment(folder of its reports, or None) and deals with the reports."""
    if not reporting.wanted:
        return launch(command, environment(None)).exit_code
    folder = Path(tempfile.mkdtemp(prefix="uvmalloc-report-"))
    try:
        finished = launch(command, environment(folder))
        _copy_reports(folder)
        try:
            found = _collect(folder, finished.pid, inactive_reason)
            if reporting.file is not None:
                text = json.dumps(found, indent=2) + "\n"
                reporting.file.write_text(text, encoding="utf-8")
            if reporting.shown:
                show_report(found, _console(stderr=True))
        except (CommandError, OSError) as error:  # the program's exit code counts, not ours
            _say(f"the report is lost: {error}")
        return finished.exit_code
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy_reports(folder: Path) -> None:
    """To where the user's own variables ask for them, as they do without this command."""
    reports = sorted(folder.glob("report.*.json"))
    for file, wanted in wanted_reports(os.environ, reports, folder / "sim.json"):
        try:
            shutil.copyfile(file, wanted)
        except OSError as error:
            _say(f"cannot write {wanted}: {error.strerror}")


def _collect(folder: Path, pid: int, inactive_reason: str) -> Report:
    found = main_report(folder, pid) or {"active": False, "reason": inactive_reason}
    counters = folder / "sim.json"
    if counters.is_file():
        found["simulator"] = read_report(counters)
    return found


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, highlight=False)
