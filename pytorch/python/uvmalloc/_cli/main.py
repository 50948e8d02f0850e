"""The command `uvmalloc`: its subcommands and their options. Other modules do the work."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from uvmalloc import __version__, _trace
from uvmalloc._cli import doctor as doctor_module
from uvmalloc._cli.accepted import (
    DRIVER_VERSIONS,
    HINTS,
    LOG_LEVELS,
    MOST_DEVICES,
    MOVES,
    POLICIES,
    PROFILES,
)
from uvmalloc._cli.environment import (
    Environment,
    on_simulated_device,
    with_uvmalloc,
    without_uvmalloc,
)
from uvmalloc._cli.files import open_own
from uvmalloc._cli.options import (
    allocator_options,
    check_drawings,
    check_word,
    machine_of,
    refuse_with_native,
    reporting_of,
    size_of,
)
from uvmalloc._cli.processes import SIM_REPORT_NAME
from uvmalloc._cli.report import read_report, show_report
from uvmalloc._cli.running import console, run_program, say
from uvmalloc._cli.static_runtime import refuse_static_runtime
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.libraries import find_libraries
from uvmalloc.sizes import EXAMPLES

if TYPE_CHECKING:
    from uvmalloc._trace.reader import Trace


class _PlanCommand(typer.core.TyperCommand):
    """Records whether `--` was given, because the parsed arguments do not contain it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        ctx.obj = "--" in args
        return super().parse_args(ctx, args)


# All words after the first word that is not an option belong to the program, even without `--`.
_PROGRAM = {"allow_interspersed_args": False}

# Errors that are reported as "cannot write", because most of the command's files are only written.
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

# Help without panels, as wide as the terminal: panels are unreadable on a narrow terminal.
_HELP = {"terminal_width": min(shutil.get_terminal_size().columns, 100)}
app = typer.Typer(
    rich_markup_mode=None,
    context_settings=_HELP,
    pretty_exceptions_enable=False,
)
trace_app = typer.Typer(rich_markup_mode=None)
app.add_typer(trace_app, name="trace")

CommandArgument = Annotated[
    list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments.")
]


def _one_of(words: Sequence[str], help_text: str) -> Any:
    """Returns an option that takes one of `words`. Shells complete the words."""
    return typer.Option(
        metavar="NAME",
        help=f"{help_text}: {', '.join(words)}.",
        autocompletion=lambda incomplete: [word for word in words if word.startswith(incomplete)],
    )


PolicyOption = Annotated[str | None, _one_of(POLICIES, "How memory is placed")]
MoveOption = Annotated[str | None, _one_of(MOVES, "What x.to('cuda') does")]
LogOption = Annotated[str | None, _one_of(LOG_LEVELS, "Which messages go to stderr")]
BudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory uvmalloc may hold.")
]
DeviceBudgetOption = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most memory it may hold on each device.")
]
DecayOption = Annotated[
    str | None,
    typer.Option(metavar="SECONDS", help="Half-life of idle cached memory; off: it stays."),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write a trace of the allocator; %p is the process number."
    ),
]
CallSitesOption = Annotated[
    bool, typer.Option("--call-sites", help="Name the line of each allocation in the trace.")
]
ShareOption = Annotated[
    bool, typer.Option("--share", help="Take turns on a device with other programs that share it.")
]
ReportOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Also write the report there, as JSON.")
]
TraceArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A trace, which UVMALLOC_TRACE writes.")
]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="OUT", help="Write to OUT, not to stdout.")
]
UnfinishedOption = Annotated[
    bool, typer.Option("--unfinished", help="Accept the trace of a killed process.")
]
NoReportOption = Annotated[bool, typer.Option("--no-report", help="Show no report at the end.")]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
) -> None:
    """Caching allocation over unified memory, for unmodified programs."""
    if version:
        typer.echo(f"uvmalloc {__version__}")
        raise typer.Exit()
    _help_without_command(context)


@trace_app.callback(invoke_without_command=True)
def _trace_root(context: typer.Context) -> None:
    """Show and convert traces of the allocator."""
    _help_without_command(context)


def _help_without_command(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)


@app.command(context_settings=_PROGRAM)
def run(
    command: CommandArgument,
    policy: PolicyOption = None,
    move: MoveOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    decay: DecayOption = None,
    trace: TraceOption = None,
    call_sites: CallSitesOption = False,
    log: LogOption = None,
    share: ShareOption = False,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program with its allocators replaced by uvmalloc."""
    options = allocator_options(
        policy, move, budget, device_budget, decay, trace, call_sites, log, share
    )  # fmt: skip
    reporting = reporting_of(report, no_report)
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        return with_uvmalloc(os.environ, libraries, options, folder)

    raise typer.Exit(run_program(command, environment, reporting))


@app.command(context_settings=_PROGRAM)
def sim(
    command: CommandArgument,
    devices: Annotated[
        str, typer.Option(metavar="N", help=f"Number of devices, 0 to {MOST_DEVICES}.")
    ] = "1",
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of each device: {EXAMPLES}.")
    ] = None,
    native: Annotated[bool, typer.Option("--native", help="Run without uvmalloc.")] = False,
    driver_version: Annotated[
        str | None, _one_of(DRIVER_VERSIONS, "CUDA version of the driver")
    ] = None,
    profile: Annotated[str | None, _one_of(PROFILES, "How devices and host share memory")] = None,
    hip: Annotated[bool, typer.Option("--hip", help="Simulate HIP (ROCm), not CUDA.")] = False,
    machine_name: Annotated[
        str | None,
        typer.Option(
            "--machine", metavar="NAME", help="A machine of sim/profiles, such as gb10, or a file."
        ),
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of the host: {EXAMPLES}.")
    ] = None,
    cpu_touches: Annotated[
        bool,
        typer.Option("--cpu-touches", help="The CPU's loads and stores fault and migrate."),
    ] = False,
    policy: PolicyOption = None,
    move: MoveOption = None,
    budget: BudgetOption = None,
    device_budget: DeviceBudgetOption = None,
    decay: DecayOption = None,
    trace: TraceOption = None,
    call_sites: CallSitesOption = False,
    log: LogOption = None,
    share: ShareOption = False,
    report: ReportOption = None,
    no_report: NoReportOption = False,
) -> None:
    """Run a program on a simulated device, with uvmalloc unless --native."""
    libraries = find_libraries()
    machine = machine_of(
        devices, capacity, driver_version, profile, hip, machine_name, host_memory, cpu_touches,
        libraries,
    )  # fmt: skip
    if native:
        refuse_with_native(
            policy=policy,
            move=move,
            budget=budget,
            device_budget=device_budget,
            decay=decay,
            trace=trace,
            call_sites=call_sites or None,
            log=log,
            share=share or None,
        )
    options = allocator_options(
        policy, move, budget, device_budget, decay, trace, call_sites, log, share
    )  # fmt: skip
    reporting = reporting_of(report, no_report)
    if not hip:
        refuse_static_runtime(command)

    def environment(folder: Path | None) -> Environment:
        counters = folder / SIM_REPORT_NAME if folder else None
        result = on_simulated_device(os.environ, libraries, machine, counters)
        return (
            without_uvmalloc(result)
            if native
            else with_uvmalloc(result, libraries, options, folder)
        )

    if native:
        raise typer.Exit(run_program(command, environment, reporting, "left out by --native"))
    raise typer.Exit(run_program(command, environment, reporting))


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show what this machine can do, the effective configuration, and what to do about problems."""
    diagnosis = doctor_module.diagnose()
    if as_json:
        typer.echo(json.dumps(diagnosis, indent=2))
    else:
        doctor_module.show_diagnosis(diagnosis, console())
    raise typer.Exit(0 if diagnosis["usable"] else 1)


@trace_app.command()
def info(file: TraceArgument, unfinished: UnfinishedOption = False) -> None:
    """Show the contents of a trace: events, devices, peaks."""
    trace, export = _read_trace(file, unfinished)
    export.show_trace(trace, console())


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
        Path,
        typer.Argument(
            metavar="FILE", help="A report (from --report or UVMALLOC_REPORT_DIR), or a trace."
        ),
    ],
    page: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="For a trace: its page (default: TRACE.html)."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="For a trace: its charts.")
    ] = None,
    machine_name: Annotated[
        str | None,
        typer.Option("--machine", metavar="NAME", help="For a trace: the machine for its replay."),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(metavar="SIZE", help=f"Memory of each device: {EXAMPLES}.")
    ] = None,
    hints: Annotated[str, _one_of(HINTS, "For a trace: the hints of its replay")] = "recorded",
) -> None:
    """Show a saved report, or draw a trace."""
    if _is_trace(file):
        _draw_trace(file, page, picture, machine_name, capacity, hints)
        return
    given = {"--html": page, "--png": picture, "--machine": machine_name, "--capacity": capacity}
    for option, value in given.items():
        if value is not None:
            raise OptionError(option, str(value), "nothing for a report: only a trace can be drawn")
    saved = read_report(file)
    try:
        show_report(saved, console())
    except CommandError as error:
        raise CommandError(f"{file} is no report: {error}") from None


@app.command(cls=_PlanCommand)
def plan(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE | -- COMMAND...",
            help="A trace of steps with marks, or a program that is recorded first.",
        ),
    ],
    machine_name: Annotated[
        str,
        typer.Option("--machine", metavar="NAME", help="A machine of sim/profiles, or a file."),
    ],
    memory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"Memory of the device, repeatable: {EXAMPLES} (default: ten sizes).",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(metavar="MARK", help="The step at this mark (default: the last one)."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write a page there.")
    ] = None,
    picture: Annotated[
        Path | None, typer.Option("--png", metavar="FILE", help="Write the chart there.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the time of a recorded step with less memory, under each policy."""
    from uvmalloc._trace import plan as plan_module

    sizes = [size_of("--memory", size) for size in memory or []]
    if step == "":
        raise OptionError("--step", step, "the text of a mark")
    check_drawings(page, picture)
    libraries = find_libraries()
    program = libraries.require_what_if()
    machine = machine_of("1", None, None, None, False, machine_name, None, False, libraries).machine
    assert machine is not None
    plan_module.check(program, machine, sizes)
    recorded = len(words) > 1 or context.obj
    with _folder_of_trace() if recorded else nullcontext(Path()) as folder:
        trace = folder / "steps.trace" if recorded else Path(words[0])
        if recorded:
            plan_module.record(words, machine, trace, keep_stdout=as_json)
        result = plan_module.what_if(program, trace, machine, sizes, step)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        plan_module.show(result, console())
    plan_module.write(result, page, picture)
    for written in (page, picture):
        if written is not None:
            say(f"wrote {written}")


@contextmanager
def _folder_of_trace() -> Iterator[Path]:
    """Makes a folder for a trace. The folder is kept if it holds a trace and the plan fails."""
    folder = Path(mkdtemp(prefix="uvmalloc-plan-"))
    is_kept = False
    try:
        yield folder
    except CommandError:
        for trace in folder.iterdir():
            is_kept = True
            say(f"the recorded trace is kept: {trace}. To plan for it: uvmalloc plan {trace}")
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder)


@app.command()
def top(
    process: Annotated[
        str | None,
        typer.Argument(
            metavar="[PID]", help="One process and its descendants (default: all processes)."
        ),
    ] = None,
    interval: Annotated[
        str, typer.Option(metavar="SECONDS", help="Time between two readings, 0.1 to 3600.")
    ] = "1",
    count: Annotated[str | None, typer.Option(metavar="N", help="End after N readings.")] = None,
) -> None:
    """Show running programs live: memory, moves, faults, traffic per second."""
    from uvmalloc._cli import top as top_module

    pid = top_module.pid_of(process)
    seconds, pictures = top_module.interval_of(interval), top_module.count_of(count)
    top_module.show(pid, seconds, pictures, console())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Prints one line if the command is wrong."""
    usage_error = typer.BadParameter.__bases__[0]  # typer exports no base class of its errors
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # escape what it cannot encode
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
        return _fail(_reason(error), 1)
    return code if isinstance(code, int) else 0


def _reason(error: OSError) -> str:
    if error.errno in _WRITE_ERRORS:
        return f"cannot write {error.filename or 'the output'}: {error.strerror}"
    return f"{error.filename}: {error.strerror}" if error.filename else f"{error.strerror}"


def _fail(message: str, exit_code: int) -> int:
    say(f"error: {message}")
    return exit_code


def _drop_output() -> None:
    """Redirects stdout to /dev/null, so that the interpreter's flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _read_trace(file: Path, unfinished: bool) -> tuple[Trace, ModuleType]:
    """Returns the trace, and the module uvmalloc._trace.export. The import needs numpy."""
    try:
        from uvmalloc._trace import export, reader
    except ImportError as error:
        raise CommandError(f"traces need {error.name}: pip install {error.name}") from None
    return reader.read_trace(file, unfinished), export


def _is_trace(file: Path) -> bool:
    try:
        with file.open("rb") as stream:
            return stream.read(len(_trace.MAGIC)) == _trace.MAGIC
    except OSError:
        return False


def _draw_trace(
    file: Path,
    page: Path | None,
    picture: Path | None,
    machine_name: str | None,
    capacity: str | None,
    hints: str,
) -> None:
    libraries = find_libraries()
    machine = machine_of("1", capacity, None, None, False, machine_name, None, False, libraries)
    check_word("--hints", hints, HINTS)
    if page is None and picture is None:
        page = file.with_name(file.name + ".html")
    check_drawings(page, picture)
    trace, _ = _read_trace(file, False)
    from uvmalloc._trace import pages

    replayed = None
    if pages.has_kernels(trace):
        replayed = pages.replay(
            libraries.require_machine_replay(), file, machine.machine, machine.capacity_bytes, hints
        )
    if picture is not None:
        pages.write_png(trace, replayed, picture)
    if page is not None:
        pages.write_html(trace, replayed, page)
    for written in (page, picture):
        if written is not None:
            say(f"wrote {written}")


@contextmanager
def _output(file: Path | None) -> Iterator[TextIO]:
    if file is None:
        if sys.stdout is None:
            raise CommandError("cannot write the output: it is closed")
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe; typer would report a failure
            _drop_output()
        return
    try:
        with os.fdopen(open_own(file), "w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None
