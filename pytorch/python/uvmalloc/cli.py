"""The command `uvmalloc`: it configures programs and shows what happened; it decides nothing."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from uvmalloc_autoload import OFF_WORDS

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
from uvmalloc.processes import SIM_REPORT_NAME, collect
from uvmalloc.report import read_report, show_report
from uvmalloc.sizes import EXAMPLES, format_size, parse_size

if TYPE_CHECKING:
    from uvmalloc.trace import Trace

POLICIES = ("auto", "driver", "off")
MOVES = ("cow", "alias", "copy")
LOG_LEVELS = ("off", "error", "warning", "info", "debug")
DRIVER_VERSIONS = ("12.2", "12.8", "13.0")
PROFILES = ("discrete", "integrated", "hmm", "coherent")
LEAST_SIZE_BYTES = 2 << 20  # of a capacity or a budget: one page of unified memory
MOST_SIZE_BYTES = 64 << 40  # the simulator has addresses for no more
MOST_DEVICES = 32

NOT_USED = "this program did not use it (it serves PyTorch, and programs linked to it)"

# Everything after the first word that is no option belongs to the program, also without `--`.
_PROGRAM = {"allow_interspersed_args": False}

# Plain help, as wide as the terminal: panels are unreadable where there is little room.
_HELP = {"terminal_width": min(shutil.get_terminal_size().columns, 100)}
app = typer.Typer(
    rich_markup_mode=None,
    context_settings=_HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
trace_app = typer.Typer(
    rich_markup_mode=None, no_args_is_help=True, help="Show and convert traces of the allocator."
)
app.add_typer(trace_app, name="trace")

CommandArgument = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments.")
]


def _one_of(words: Sequence[str], help_text: str) -> Any:
    """An option that takes one of `words`, which shells complete."""
    return typer.Option(
        metavar="NAME",
        help=f"{help_text}: {', '.join(words)}.",
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


PolicyOption = Annotated[str | None, _one_of(POLICIES, "Who decides where memory is")]
MoveOption = Annotated[str | None, _one_of(MOVES, "What x.to('cuda') does")]
LogOption = Annotated[str | None, _one_of(LOG_LEVELS, "What uvmalloc writes to stderr")]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory uvmalloc may hold.")
]
DeviceBudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory of each device it may hold.")
]
DecayOption = Annotated[
    str | None,
    typer.Option(metavar="SECONDS", help="Half-life of idle cached memory; off: it stays."),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Trace the allocator there; %p is the process number."
    ),
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
    move: MoveOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    decay: DecayOption = None,
    trace: TraceOption = None,
    log: LogOption = None,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program with its allocators replaced by uvmalloc."""
    options = _allocator_options(policy, move, budget, device_budget, decay, trace, log)
    reporting = _reporting(report, no_report)
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        return with_uvmalloc(os.environ, libraries, options, folder)

    raise typer.Exit(_run(command, environment, reporting))


@app.command(context_settings=_PROGRAM)
def sim(
    command: CommandArgument,
    devices: Annotated[
        str, typer.Option(metavar="N", help=f"How many devices, 0 to {MOST_DEVICES}.")
    ] = "1",
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of each device: {EXAMPLES}.")
    ] = None,
    native: Annotated[
        bool, typer.Option("--native", help="Without uvmalloc: the program's own allocators.")
    ] = False,
    driver_version: Annotated[
        str | None, _one_of(DRIVER_VERSIONS, "Version of CUDA that the driver has")
    ] = None,
    profile: Annotated[str | None, _one_of(PROFILES, "How devices and host share memory")] = None,
    policy: PolicyOption = None,
    move: MoveOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    decay: DecayOption = None,
    trace: TraceOption = None,
    log: LogOption = None,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program on a simulated device, with uvmalloc unless --native."""
    machine = _machine(devices, capacity, driver_version, profile)
    if native:
        _refuse_with_native(
            policy=policy,
            move=move,
            budget=budget,
            device_budget=device_budget,
            decay=decay,
            trace=trace,
            log=log,
        )
    options = _allocator_options(policy, move, budget, device_budget, decay, trace, log)
    reporting = _reporting(report, no_report)
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        counters = folder / SIM_REPORT_NAME if folder else None
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
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Written by --report, or left by a process.")
    ],
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
    except (typer.Abort, KeyboardInterrupt):
        return 128 + signal.SIGINT
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
    policy: str | None,
    move: str | None,
    budget: str | None,
    device_budget: str | None,
    decay: str | None,
    trace: Path | None,
    log: str | None,
) -> AllocatorOptions:
    _check_word("--policy", policy, POLICIES)
    _check_word("--move", move, MOVES)
    _check_word("--log", log, LOG_LEVELS)
    if trace is not None:
        _check_file("--trace", trace)
    return AllocatorOptions(
        policy=policy,
        move=move,
        budget_bytes=None if budget is None else _size("--budget", budget),
        device_budget_bytes=(
            None if device_budget is None else _size("--device-budget", device_budget)
        ),
        decay_seconds=None if decay is None else _seconds("--decay", decay),
        trace=None if trace is None else trace.absolute(),
        log=log,
    )


def _refuse_with_native(**options: object) -> None:
    for name, value in options.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise OptionError(option, str(value), "nothing beside --native, which has no uvmalloc")


def _check_word(option: str, word: str | None, accepted: Sequence[str]) -> None:
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
    """Said before the program runs, not after hours of it."""
    folder = file.absolute().parent
    if file.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise OptionError(option, str(file), "a file in a folder that exists and can be written")


def _machine(
    devices: str, capacity: str | None, driver_version: str | None, profile: str | None
) -> Machine:
    if not (devices.isascii() and devices.isdigit() and int(devices) <= MOST_DEVICES):
        raise OptionError("--devices", devices, f"a whole number from 0 to {MOST_DEVICES}")
    _check_word("--driver-version", driver_version, DRIVER_VERSIONS)
    _check_word("--profile", profile, PROFILES)
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
    if file is not None:
        _check_file("--report", file)
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
    inactive_reason: str = NOT_USED,
) -> int:
    """Runs `command` in environment(folder of its reports, or None) and deals with the reports."""
    folder = _report_folder() if reporting.wanted else None
    if folder is None:
        return launch(command, environment(None)).exit_code
    try:
        finished = launch(command, environment(folder))
        _copy_reports(folder)
        try:
            found = collect(folder, command, finished, inactive_reason)
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


def _report_folder() -> Path | None:
    """A new folder for the processes' reports; None, in one line, where there can be none.

    Processes keep figures in files there while they run: in memory if that can be.
    """
    chosen = [os.environ["TMPDIR"]] if os.environ.get("TMPDIR") else []
    for parent in (*chosen, "/dev/shm", None):
        with contextlib.suppress(OSError):
            return Path(tempfile.mkdtemp(prefix="uvmalloc-report-", dir=parent))
    _say("no folder for temporary files can be written: there will be no report")
    return None


def _copy_reports(folder: Path) -> None:
    """To where the user's own variables ask for them, as they do without this command."""
    for file, wanted in wanted_reports(os.environ, folder):
        try:
            shutil.copyfile(file, wanted)
        except OSError as error:
            _say(f"cannot write {wanted}: {error.strerror}")


def _console(stderr: bool = False) -> Console:
    return Console(stderr=stderr, markup=False, highlight=False)
