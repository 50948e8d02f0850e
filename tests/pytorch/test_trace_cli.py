"""The commands `uvmalloc trace`: what they show of a trace that the recorder wrote."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from uvmalloc._trace.reader import ALLOCATE, FREE, KINDS, USE, TraceError, read_trace
from uvmalloc.libraries import find_libraries

from tests.pytorch.conftest import fails_in_one_line_on_a_full_disk

MIB = 1 << 20
HEADER_BYTES = 72 + 2 * 64 + 16  # with two devices and the program's name
WRITER = find_libraries().folder.parent / "bin" / "write_trace"


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory) -> Path:
    """Returns the trace that write_trace.cpp writes."""
    file = tmp_path_factory.mktemp("trace") / "known.trace"
    subprocess.run([WRITER, file], check=True)
    return file


@pytest.fixture
def trace_command(clean_environment, tmp_path):
    def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "uvmalloc", "trace", *map(str, arguments)],
            env={**clean_environment, "COLUMNS": "200"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=120,
        )

    return run


def refusal(finished: subprocess.CompletedProcess[str]) -> str:
    """Returns the one line of a command that refuses a file."""
    assert finished.returncode == 2, finished
    assert finished.stdout == ""
    line = finished.stderr.removesuffix("\n")
    assert "\n" not in line
    return line.removeprefix("uvmalloc: error: ")


def failure(finished: subprocess.CompletedProcess[str]) -> str:
    """Returns the one line of a command that cannot do its work."""
    assert finished.returncode == 1, finished
    assert finished.stderr.count("\n") == 1
    return finished.stderr.removeprefix("uvmalloc: error: ").removesuffix("\n")


# ---- csv ----------------------------------------------------------------------------------------

EXPECTED = [
    # thread, kind, facade, device, address, size, block, stream, place, detail, text
    "0,allocate,pinned,0,0xf00000,2097152,2097152,0x0,,already_live,",
    "1,stream,,1,0x0,0,,0x77,,seen,",
    "1,allocate,device,1,0x200000,3145728,4194304,0x0,,,",
    "2,allocate,host,0,0x800000,100,512,0x0,,,",
    "1,use,,1,0x200000,0,,0x77,,,",
    "1,move,,1,0x200000,3145728,,0x77,host,,",
    "1,advise,,1,0x200000,4194304,,0x0,host,set_preferred_location,",
    "1,prefetch,,1,0x200000,4194304,,0x77,0,,",
    "1,discard,,1,0x200000,4194304,,0x77,,,",
    "1,failure,device,0,0x0,9437184,,0x0,,out_of_memory,call: NO_MEMORY (2)",
    '1,mark,,,0x0,0,,0x0,,,"step ""1"", café"',
    "1,free,device,1,0x200000,3145728,4194304,0x0,,,",
]


def test_csv_has_one_line_for_each_event_in_the_order_of_time(trace_command, trace_file):
    finished = trace_command("csv", trace_file)
    assert finished.returncode == 0, finished.stderr
    head, *lines = finished.stdout.splitlines()
    assert head == (
        "time_ns,thread,kind,facade,device,address,size_bytes,block_bytes,stream,place,detail,text"
    )
    times = [int(line.split(",")[0]) for line in lines]
    assert times == sorted(times)
    assert times[0] == 0
    assert [line.split(",", 1)[1] for line in lines] == EXPECTED


def test_csv_can_go_to_a_file(trace_command, trace_file, tmp_path):
    out = tmp_path / "out.csv"
    finished = trace_command("csv", trace_file, "-o", out)
    assert (finished.returncode, finished.stdout) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out.read_text(encoding="utf-8"))))
    assert rows[-2]["text"] == 'step "1", café'


def test_a_reader_that_stops_early_is_no_error(clean_environment, tmp_path):
    file = tmp_path / "many.trace"
    subprocess.run([WRITER, file, "20000"], check=True)
    command = f"'{sys.executable}' -m uvmalloc trace csv '{file}' | head -1; exit $PIPESTATUS"
    finished = subprocess.run(
        ["bash", "-c", command], env=clean_environment, capture_output=True, text=True, timeout=60
    )
    assert (finished.returncode, finished.stderr) == (0, "")


def test_a_closed_output_is_one_line(clean_environment, trace_file):
    command = f"'{sys.executable}' -m uvmalloc trace csv '{trace_file}' >&-"
    finished = subprocess.run(
        ["bash", "-c", command], env=clean_environment, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 1
    assert finished.stderr == "uvmalloc: error: cannot write the output: it is closed\n"


@pytest.mark.parametrize("command", ["csv", "perfetto", "show"])
def test_an_output_that_cannot_be_written_is_one_line(clean_environment, trace_file, command):
    fails_in_one_line_on_a_full_disk(clean_environment, ["trace", command, trace_file])


# ---- perfetto -----------------------------------------------------------------------------------

# What the trace-event format requires of each phase:
# https://perfetto.dev/docs/getting-started/other-formats
REQUIRED = {
    "M": {"name", "pid", "tid", "args"},
    "C": {"name", "pid", "tid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "b": {"name", "cat", "id", "pid", "tid", "ts"},
    "e": {"name", "cat", "id", "pid", "tid", "ts"},
}


def check_schema(document: dict) -> list[dict]:
    events = document["traceEvents"]
    for event in events:
        assert REQUIRED[event["ph"]] <= event.keys(), event
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event.get("ts", 0), int | float)
        assert event.get("s", "t") in {"g", "p", "t"}
        if event["ph"] == "C":
            assert all(isinstance(value, int) for value in event["args"].values())
    return events


def test_perfetto_has_counters_and_instants(trace_command, trace_file):
    finished = trace_command("perfetto", trace_file)
    assert finished.returncode == 0, finished.stderr
    events = check_schema(json.loads(finished.stdout))
    counters = [(e["name"], e["args"]["bytes"]) for e in events if e["ph"] == "C"]
    assert counters == [
        ("live bytes, pinned", 2 * MIB),
        ("live bytes, device 1", 4 * MIB),
        ("live bytes, host", 512),
        ("live bytes, device 1", 0),
    ]
    instants = [(e["name"], e["s"]) for e in events if e["ph"] == "i"]
    assert instants == [
        ("stream", "t"),
        ("use", "t"),
        ("move", "t"),
        ("advise", "t"),
        ("prefetch", "t"),
        ("discard", "t"),
        ("failure", "p"),
        ('step "1", café', "p"),
    ]
    threads = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert threads == ["thread 1", "thread 2", "stream 0x77, device 1"]
    assert not {"b", "e"} & {e["ph"] for e in events}


def test_perfetto_shows_uses_on_the_track_of_their_stream(trace_command, trace_file):
    events = check_schema(json.loads(trace_command("perfetto", trace_file).stdout))
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["name"] == "thread_name"}
    of_stream = tracks.pop("stream 0x77, device 1")
    assert of_stream not in tracks.values()
    shown = [(e["name"], e["args"]) for e in events if e["ph"] == "i" and e["tid"] == of_stream]
    assert shown == [
        ("stream", {"detail": "seen", "thread": 1}),
        ("use", {"address": "0x200000", "thread": 1}),
    ]


def test_perfetto_shows_blocks_as_slices_that_begin_and_end(trace_command, trace_file, tmp_path):
    out = tmp_path / "out.json"
    assert trace_command("perfetto", trace_file, "--blocks", "-o", out).returncode == 0
    events = check_schema(json.loads(out.read_text(encoding="utf-8")))
    slices = [(e["ph"], e["cat"], e["id"]) for e in events if e["ph"] in "be"]
    assert slices == [("b", "pinned", 1), ("b", "device", 2), ("b", "host", 3), ("e", "device", 2)]


# ---- info ---------------------------------------------------------------------------------------


def test_the_old_name_of_show_warns_and_goes_on_working(trace_command, trace_file):
    finished = trace_command("info", trace_file)
    assert (finished.returncode, finished.stdout) == (0, trace_command("show", trace_file).stdout)
    assert finished.stderr == (
        "uvmalloc: warning: the next minor version will not have `uvmalloc trace info`; use "
        "uvmalloc trace show\n"
    )


def test_show_shows_devices_counts_and_peaks(trace_command, trace_file):
    finished = trace_command("show", trace_file)
    assert finished.returncode == 0, finished.stderr
    lines = [" ".join(line.split()) for line in finished.stdout.splitlines()]
    assert lines[0].startswith("write_trace, process ")
    assert lines[0].endswith(", 12 events of 2 threads")
    for expected in (
        "device 0: first card, 8 GiB",
        "device 1: second card, 4 GiB",
        "allocate 3",
        "mark 1",
        "device 1 4 MiB 0 B",
        "pinned 2 MiB 2 MiB",
    ):
        assert expected in lines


# ---- damaged files ------------------------------------------------------------------------------


def changed(file: Path, folder: Path, offset: int, to: bytes) -> Path:
    content = bytearray(file.read_bytes())
    content[offset : offset + len(to)] = to
    out = folder / "changed.trace"
    out.write_bytes(content)
    return out


@pytest.mark.parametrize(
    ("offset", "to", "said"),
    [
        (0, b"PK\3\4", "at byte 0: this is not a trace of uvmalloc"),
        (8, b"\5", "at byte 8: the trace has version 5; this program reads versions up to 4"),
        (8, b"\0", "at byte 8: the version is 0"),
        (12, b"\0", "at byte 12: the byte-order mark is damaged"),
        (16, b"\0", "at byte 16: the size of the header is damaged"),
        (20, b"\0", "at byte 20: the size of an event is damaged"),
        (HEADER_BYTES, b"\0", f"at byte {HEADER_BYTES}: no chunk starts here"),
        (
            HEADER_BYTES + 80,
            b"\x63",
            f"at byte {HEADER_BYTES + 80}: an event of the unknown kind 99",
        ),
        (
            HEADER_BYTES + 84,
            b"\x02",
            f"at byte {HEADER_BYTES + 84}: an event of the unknown device 2",
        ),
    ],
)
def test_a_damaged_file_is_named_with_offset_and_fault(trace_file, tmp_path, offset, to, said):
    file = changed(trace_file, tmp_path, offset, to)
    with pytest.raises(TraceError) as raised:
        read_trace(file)
    assert str(raised.value) == f"{file}: {said}"


@pytest.mark.parametrize("command", ["show", "csv", "perfetto"])
def test_every_command_refuses_a_damaged_file_in_one_line(
    trace_command, trace_file, tmp_path, command
):
    file = changed(trace_file, tmp_path, 8, b"\5")
    assert refusal(trace_command(command, file)) == (
        f"{file}: at byte 8: the trace has version 5; this program reads versions up to 4"
    )


def test_a_file_cut_anywhere_is_refused(trace_file, tmp_path):
    content = trace_file.read_bytes()
    cut = tmp_path / "cut.trace"
    for size in range(len(content)):
        cut.write_bytes(content[:size])
        with pytest.raises(TraceError) as raised:
            read_trace(cut)
        said = str(raised.value)
        assert said.startswith(f"{cut}: at byte {size}: ")
        assert said.endswith("(truncated)")
        if size >= HEADER_BYTES:
            assert not read_trace(cut, unfinished=True).finished


def test_a_trace_of_a_killed_process_can_be_accepted(trace_command, trace_file, tmp_path):
    cut = tmp_path / "cut.trace"
    cut.write_bytes(trace_file.read_bytes()[:-40])
    line = refusal(trace_command("show", cut))
    assert line == (
        f"{cut}: at byte {cut.stat().st_size}: the trace is not finished: "
        "the process still runs or was killed (truncated)"
    )
    finished = trace_command("show", "--unfinished", cut)
    assert finished.returncode == 0
    assert "not finished" in finished.stdout


def test_missing_files_and_folders_are_named(trace_command, trace_file, tmp_path):
    finished = trace_command("show", tmp_path / "missing")
    assert finished.returncode == 1
    assert finished.stderr == (
        f"uvmalloc: error: cannot read {tmp_path}/missing: No such file or directory\n"
    )
    finished = trace_command("csv", trace_file, "-o", tmp_path / "no" / "out")
    assert finished.returncode == 1
    assert finished.stderr == (
        f"uvmalloc: error: cannot write {tmp_path}/no/out: No such file or directory\n"
    )


# ---- the format, from its description -----------------------------------------------------------


@pytest.mark.parametrize("command", ["csv", "perfetto", "png"])
def test_a_trace_is_not_replaced_by_what_is_made_of_it(
    trace_command, trace_file, tmp_path, command
):
    trace, link = tmp_path / "run.trace", tmp_path / "link.trace"
    trace.write_bytes(trace_file.read_bytes())
    link.hardlink_to(trace)
    for out in (trace, link):
        said = failure(trace_command(command, trace, "--out", out))
        assert said == f"{out} and {trace} are the same file: name another one to write"
    assert trace.read_bytes() == trace_file.read_bytes()


@pytest.mark.parametrize("command", ["trace show", "report"])
@pytest.mark.parametrize("kind", ["endless", "pipe"])
def test_what_may_never_end_is_refused(clean_environment, tmp_path, command, kind):
    file = Path("/dev/zero")
    if kind == "pipe":
        file = tmp_path / "pipe"
        os.mkfifo(file)
    finished = subprocess.run(
        [sys.executable, "-m", "uvmalloc", *command.split(), file],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert failure(finished) == f"cannot read {file}: it is not a regular file"


@pytest.mark.parametrize("kind", ["pipe", "trace"])
def test_a_report_is_not_written_to_a_pipe_or_the_trace(clean_environment, tmp_path, kind):
    """That is said before the program runs, not when it has ended."""
    file, more = tmp_path / "file", []
    accepted = "a file: a pipe may never be read"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        accepted, more = "a file other than that of --trace", ["--trace", file]
    finished = subprocess.run(
        [sys.executable, "-m", "uvmalloc", "sim", "--report", file, *more, "--", "echo", "ran"],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert refusal(finished) == f"--report is '{file}'; accepted: {accepted}"


def test_a_trace_made_from_the_description_is_read(tmp_path):
    """Tests both byte orders. The clock counts 3 ticks per nanosecond."""
    for order in "<>":
        header = struct.pack(
            order + "8s4IQq2Q4I", b"UVMTRACE", 1, 0x01020304, 72 + 64 + 8, 48, 42, 7, 3000, 50,
            1, 1, 3, 0,
        )  # fmt: skip
        device = struct.pack(order + "Q56s", 5, b"card")
        event = struct.pack(order + "5Q4B2h", 3300, 0x10, 8, 512, 9, 1, 2, 0, 0, 0, -2)
        chunk = struct.pack(order + "4I3Q", 0x544E5645, 1, 4, 99, 0, 6000, 1050)
        end = struct.pack(order + "4I3Q", 0x53444E45, 0, 0, 0, 11, 6000, 1050)
        file = tmp_path / "made.trace"
        file.write_bytes(header + device + b"run\0\0\0\0\0" + chunk + event + end)
        trace = read_trace(file)
        assert (trace.process, trace.program, trace.start_time_of_day_ns) == (42, "run", 7)
        assert trace.times_ns.tolist() == [100]
        assert trace.events["address"].tolist() == [0x10]
        assert trace.system_threads == {4: 99}
        assert trace.dropped == 11


def test_a_packed_chunk_made_from_the_description_is_read(tmp_path):
    """Tests both byte orders: a repeated block, a use of it, a pause, and an earlier time."""
    for order in "<>":
        header = struct.pack(
            order + "8s4IQq2Q4I", b"UVMTRACE", 2, 0x01020304, 72 + 64 + 8, 48, 42, 7, 3000, 50,
            0, 1, 3, 0,
        )  # fmt: skip
        device = struct.pack(order + "Q56s", 5, b"card")
        models = struct.pack(order + "5Q4B2h", 3300, 0x10, 8, 512, 9, 1, 2, 0, 0, 0, -2)
        models += struct.pack(order + "5Q4B2h", 0, 0x10, 0, 0, 9, 7, 255, 0, 0, 0, -2)
        free, pause = 1 << 13, (1 << 13) - 1
        words = [0, 20 << 14 | 1, 2 << 14 | pause, (5 << 14) | free, (-3 << 14) | 0]
        packed = struct.pack(order + "5i4x", *words)
        chunk = struct.pack(order + "4I3Q", 0x4B434150, 5, 4, 99, 2, 0, 0)
        end = struct.pack(order + "4I3Q", 0x53444E45, 0, 0, 0, 0, 0, 0)
        file = tmp_path / "made.trace"
        file.write_bytes(header + device + b"run\0\0\0\0\0" + chunk + models + packed + end)
        trace = read_trace(file)
        late = 320 + 2 * (1 << 18) + 5
        assert trace.times_ns.tolist() == [300, 320, late - 3, late]
        assert trace.events["kind"].tolist() == [ALLOCATE, USE, ALLOCATE, FREE]
        assert trace.events["size_bytes"].tolist() == [8, 0, 8, 8]
        assert trace.threads.tolist() == [4] * 4


def test_the_document_names_every_kind(trace_file):
    document = Path(__file__).parents[2] / "docs" / "reference" / "trace.md"
    text = document.read_text(encoding="utf-8")
    for number, kind in enumerate(KINDS[1:], start=1):
        assert f"| {number} | `{kind}` |" in text


def test_a_million_events_are_read_in_seconds(tmp_path):
    file = tmp_path / "many.trace"
    subprocess.run([WRITER, file, "1000000"], check=True)
    begin = time.process_time()
    trace = read_trace(file)
    seconds = time.process_time() - begin
    file.unlink()
    assert len(trace.events) == 1_000_001
    assert seconds < 5
