"""The command `uvmalloc`: its subcommands and their options. Other modules do the work."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import mkdtemp
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from uvmalloc import __version__, _trace
from uvmalloc._cli import doctor as doctor_module
from uvmalloc._cli.environment import (
    SERVES_CUDA,
    SWITCH,
    Environment,
    on_simulated_device,
    with_uvmalloc,
    without_uvmalloc,
)
from uvmalloc._cli.files import open_own, refuse_same, write_own
from uvmalloc._cli.options import (
    AllocatorOptions,
    MachineOptions,
    ReplayOptions,
    ReportOptions,
    check_drawing,
    check_file,
    machine_of,
    size_of,
    takes_options,
)
from uvmalloc._cli.processes import SIM_REPORT_NAME
from uvmalloc._cli.report import read_report, show_report
from uvmalloc._cli.running import console, run_program, say
from uvmalloc._cli.static_runtime import refuse_static_runtime
from uvmalloc.errors import CommandError, OptionError
from uvmalloc.libraries import find_libraries
from uvmalloc.sizes import EXAMPLES

if TYPE_CHECKING:
    from uvmalloc._cli.top import Moments
    from uvmalloc._trace.reader import Trace


class _PlanCommand(typer.core.TyperCommand):
    """Records whether `--` was given, because the parsed arguments do not contain it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.obj = "--" in args
        return super().parse_args(ctx, args)


# All words after the first word that is not an option belong to the program, even without `--`.
_PROGRAM = {"allow_interspersed_args": False}

# Errors that are reported as "cannot write", because most of the command's files are only written.
_WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}

_BUNDLE = "uvmalloc-bundle.tar.gz"

# Help without panels, as wide as the terminal: panels are unreadable on a narrow terminal.
_HELP = {
    "terminal_width": min(shutil.get_terminal_size().columns, 100),
    "help_option_names": ["-h", "--help"],
}
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
TraceArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A trace, which UVMALLOC_TRACE writes.")
]
OutOption = Annotated[
    Path | None, typer.Option("-o", "--out", metavar="OUT", help="Write to OUT, not to stdout.")
]
DrawingOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", metavar="OUT", help="Write to OUT (default: beside FILE)."),
]
UnfinishedOption = Annotated[
    bool, typer.Option("--unfinished", help="Accept the trace of a killed process.")
]
PageOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Write a page there.")
]
PictureOption = Annotated[
    Path | None, typer.Option("--png", metavar="FILE", help="Write the chart there.")
]


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    verbose: Annotated[
        bool,
        typer.Option("-v", "--verbose", help="With --version: also commit, compiler and torch."),
    ] = False,
) -> None:
    """Caching allocation over unified memory, for unmodified programs."""
    if version:
        typer.echo(f"uvmalloc {__version__}")
        if verbose:
            for name, fact in doctor_module.build_facts(find_libraries()).items():
                typer.echo(f"{name}: {fact}")
        raise typer.Exit()
    if verbose:
        raise OptionError("--verbose", "given", "only with --version")
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
@takes_options()
def run(command: CommandArgument, allocator: AllocatorOptions, reporting: ReportOptions) -> None:
    """Run a program with its allocators replaced by uvmalloc."""
    settings = allocator.variables()
    libraries = find_libraries()

    def environment(folder: Path | None) -> Environment:
        return with_uvmalloc(os.environ, libraries, settings, folder)

    raise typer.Exit(run_program(command, environment, reporting.read(allocator.trace)))


@app.command(context_settings=_PROGRAM)
@takes_options()
def sim(
    command: CommandArgument,
    simulated: MachineOptions,
    allocator: AllocatorOptions,
    reporting: ReportOptions,
    native: Annotated[bool, typer.Option("--native", help="Run without uvmalloc.")] = False,
) -> None:
    """Run a program on a simulated device, with uvmalloc unless --native."""
    libraries = find_libraries()
    machine = simulated.read(libraries)
    if native:
        allocator.refuse("nothing with --native, without uvmalloc")
    settings = allocator.variables()
    wanted = reporting.read(allocator.trace)
    if not machine.hip:
        refuse_static_runtime(command, libraries.audit)

    def environment(folder: Path | None) -> Environment:
        counters = folder / SIM_REPORT_NAME if folder else None
        result = on_simulated_device(os.environ, libraries, machine, counters)
        return (
            without_uvmalloc(result)
            if native
            else with_uvmalloc(result, libraries, settings, folder)
        )

    if native:
        raise typer.Exit(run_program(command, environment, wanted, "left out by --native"))
    raise typer.Exit(run_program(command, environment, wanted))


@app.command()
@takes_options()
def env(
    allocator: AllocatorOptions,
    unset: Annotated[bool, typer.Option("--unset", help="Print the lines that undo it.")] = False,
) -> None:
    """Print the variables of `uvmalloc run` for a job script: eval "$(uvmalloc env)"."""
    wanted: Mapping[str, str | None]
    if unset:
        allocator.refuse("nothing with --unset, which undoes all of them")
        kept = without_uvmalloc(os.environ).get("LD_PRELOAD")
        wanted = {
            **dict.fromkeys([*AllocatorOptions.names(), SERVES_CUDA, SWITCH]), "LD_PRELOAD": kept
        }  # fmt: skip
    else:
        settings = allocator.variables()
        made = with_uvmalloc(os.environ, find_libraries(), settings, None)
        wanted = {name: made[name] for name in ("LD_PRELOAD", SWITCH, SERVES_CUDA, *settings)}
    for name, value in wanted.items():
        typer.echo(f"unset {name}" if value is None else f"export {name}={shlex.quote(value)}")


@app.command()
def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help=f"With --bundle: the archive (default: {_BUNDLE})."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    with_bundle: Annotated[
        bool,
        typer.Option(
            "--bundle", help="Show, and then write, an archive for a maintainer, without secrets."
        ),
    ] = False,
    reports: Annotated[
        list[Path] | None,
        typer.Option(
            "--report", metavar="FILE", help="With --bundle: a saved report to add; repeatable."
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="With --bundle: write without asking.")
    ] = False,
) -> None:
    """Show what this machine can do, the effective configuration, and what to do about problems."""
    if with_bundle:
        _write_bundle(file or Path(_BUNDLE), reports or [], yes)
        return
    for option, value in (("FILE", file), ("--report", reports), ("--yes", yes)):
        if value:
            given = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            raise OptionError(option, given, "only with --bundle")
    diagnosis = doctor_module.diagnose()
    if as_json:
        typer.echo(json.dumps(diagnosis, indent=2))
    else:
        doctor_module.show_diagnosis(diagnosis, console())
    raise typer.Exit(0 if diagnosis["usable"] else 1)


def _write_bundle(file: Path, reports: Sequence[Path], yes: bool) -> None:
    """Shows all that the archive holds, asks, and writes it."""
    from uvmalloc._cli import bundle
    from uvmalloc._cli.private import Filter

    check_file("FILE", file)
    refuse_same(file, *reports)
    found = bundle.contents(reports, os.environ, Filter.of_this_machine())
    for name, text in found.items():
        typer.echo(f"==== {name} ({len(text):,} characters)")
        typer.echo(text)
    typer.echo(f"{file} would hold: {', '.join(found)}")
    typer.echo("Names of users and hosts, home folders and secrets were removed. Please check.")
    if not yes and not typer.confirm(f"Write {file}?"):
        say("nothing was written")
        raise typer.Exit(1)
    write_own(file, bundle.archive(found))
    say(f"wrote {file}")


@trace_app.command()
def show(file: TraceArgument, unfinished: UnfinishedOption = False) -> None:
    """Show the contents of a trace: events, devices, peaks."""
    trace, export = _read_trace(file, unfinished)
    export.show_trace(trace, console())


@trace_app.command(hidden=True)
def info(file: TraceArgument, unfinished: UnfinishedOption = False) -> None:
    """Show the contents of a trace. Old name of `uvmalloc trace show`."""
    _warn_of_old_form("uvmalloc trace info", "uvmalloc trace show")
    show(file, unfinished)


@trace_app.command("csv")
def trace_csv(
    file: TraceArgument, out: OutOption = None, unfinished: UnfinishedOption = False
) -> None:
    """Write a trace as CSV, one line for each event."""
    trace, export = _read_trace(file, unfinished)
    with _output(out, file) as stream:
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
    with _output(out, file) as stream:
        export.write_perfetto(trace, stream, blocks)


@trace_app.command("html")
@takes_options()
def trace_html(file: TraceArgument, replay: ReplayOptions, out: DrawingOption = None) -> None:
    """Draw a trace as one page: memory, traffic, faults, steps, allocations."""
    _draw_trace(file, replay, _drawing(file, out, "html", "plotly"), None)


@trace_app.command("png")
@takes_options()
def trace_png(file: TraceArgument, replay: ReplayOptions, out: DrawingOption = None) -> None:
    """Draw the charts of a trace as a picture."""
    _draw_trace(file, replay, None, _drawing(file, out, "png", "matplotlib"))


def _drawing(trace: Path, out: Path | None, kind: str, package: str) -> Path:
    """Returns the file for the drawing of a trace, by default beside the trace."""
    drawing = out or trace.with_name(f"{trace.name}.{kind}")
    check_drawing("--out", drawing, package, f"uvmalloc trace {kind}")
    return drawing


@app.command()
@takes_options("replay")
def report(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="A report, from --report or UVMALLOC_REPORT_DIR."),
    ],
    replay: ReplayOptions,
    page: Annotated[Path | None, typer.Option("--html", hidden=True)] = None,
    picture: Annotated[Path | None, typer.Option("--png", hidden=True)] = None,
) -> None:
    """Show a saved report."""
    if _is_trace(file):
        _warn_of_old_form("uvmalloc report TRACE", "uvmalloc trace html TRACE, or trace png TRACE")
        if page is None and picture is None:
            page = file.with_name(file.name + ".html")
        _check_drawings(page, picture)
        _draw_trace(file, replay, page, picture)
        return
    refused = "nothing for a report: only a trace can be drawn"
    replay.refuse(refused)
    for option, value in (("--html", page), ("--png", picture)):
        if value is not None:
            raise OptionError(option, str(value), refused)
    saved = read_report(file)
    try:
        show_report(saved, console())
    except CommandError as error:
        raise CommandError(f"{file} is not a report: {error}") from None


def _warn_of_old_form(old: str, new: str) -> None:
    say(f"warning: the next minor version will not have `{old}`; use {new}")


@app.command(cls=_PlanCommand)
def plan(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE | -- COMMAND...",
            help="A trace, or a program that is recorded first.",
        ),
    ],
    machine: Annotated[
        str,
        typer.Option(metavar="NAME", help="A machine of sim/profiles, or a file."),
    ] = "h100-pcie5",
    memory: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SIZE",
            help=f"Memory of the device, repeatable: {EXAMPLES} (default: ten sizes).",
        ),
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="MARK",
            help="The step at this mark (default: the last mark or, without marks, the kernels "
            "that the program repeats).",
        ),
    ] = None,
    page: PageOption = None,
    picture: PictureOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show the time of a program's step with less memory, under each policy."""
    from uvmalloc._trace import plan as plan_module

    sizes = [size_of("--memory", size) for size in memory or []]
    if step == "":
        raise OptionError("--step", step, "a mark")
    _check_drawings(page, picture)
    libraries = find_libraries()
    program = libraries.require_what_if()
    machine = machine_of(machine, libraries)
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
    try:
        folder = Path(mkdtemp(prefix="uvmalloc-plan-"))
    except OSError as error:
        raise CommandError(f"{error.strerror}; set TMPDIR to a folder with room") from None
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
    as_metrics: Annotated[
        bool, typer.Option("--metrics", help="Print one reading as OpenMetrics, for Prometheus.")
    ] = False,
) -> None:
    """Show running programs live: memory, moves, faults, traffic per second."""
    from uvmalloc._cli import top as top_module

    pid = top_module.pid_of(process)
    if as_metrics:
        if count is not None:
            raise OptionError("--count", count, "nothing with --metrics, which reads once")
        _print_metrics(top_module.moments_or_refuse(pid))
        return
    seconds, pictures = top_module.interval_of(interval), top_module.count_of(count)
    top_module.show(pid, seconds, pictures, console())


def _print_metrics(now: Moments) -> None:
    from uvmalloc._cli.metrics import metrics

    for line in now.left_out:
        say(f"left out: {line}")
    typer.echo(metrics(now.processes[pid].report for pid in sorted(now.processes)), nl=False)


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
    if not file.is_file():  # a pipe would wait for its writer
        return False
    try:
        with file.open("rb") as stream:
            return stream.read(len(_trace.MAGIC)) == _trace.MAGIC
    except OSError:
        return False


def _check_drawings(page: Path | None, picture: Path | None) -> None:
    check_drawing("--html", page, "plotly")
    check_drawing("--png", picture, "matplotlib")


def _draw_trace(file: Path, replay: ReplayOptions, page: Path | None, picture: Path | None) -> None:
    for written in (page, picture):
        if written is not None:
            refuse_same(written, file)
    libraries = find_libraries()
    machine = replay.read(libraries)
    trace, _ = _read_trace(file, False)
    from uvmalloc._trace import pages

    replayed = None
    if pages.has_kernels(trace):
        replayed = pages.replay(
            libraries.require_machine_replay(),
            file,
            machine.machine,
            machine.capacity_bytes,
            replay.hints,
        )
    if picture is not None:
        pages.write_png(trace, replayed, picture)
    if page is not None:
        pages.write_html(trace, replayed, page)
    for written in (page, picture):
        if written is not None:
            say(f"wrote {written}")


@contextmanager
def _output(file: Path | None, source: Path) -> Iterator[TextIO]:
    if file is None:
        if sys.stdout is None:
            raise CommandError("cannot write the output: it is closed")
        try:
            yield sys.stdout
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has closed the pipe; typer would report a failure
            _drop_output()
        return
    refuse_same(file, source)
    try:
        with os.fdopen(open_own(file), "w", encoding="utf-8", newline="") as stream:
            yield stream
    except OSError as error:
        raise CommandError(f"cannot write {file}: {error.strerror}") from None
