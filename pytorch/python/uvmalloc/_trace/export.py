"""Shows traces as a table, and writes them as CSV and as JSON for the Perfetto UI."""

from __future__ import annotations

import csv
import datetime
import json
from collections.abc import Iterator
from typing import Any, TextIO

import numpy as np
from rich.console import Console

from uvmalloc._cli.tables import print_table
from uvmalloc._trace.reader import (
    ACCESSES,
    ADVICE,
    ADVISE,
    ALLOCATE,
    ALREADY_LIVE,
    ERRORS,
    FACADES,
    FAILURE,
    FREE,
    GONE,
    HOST,
    KERNEL,
    KINDS,
    MARK,
    MOVE,
    NO_FACADE,
    STREAM,
    TOUCH,
    USE,
    WAIT,
    WAITS,
    WORK,
    Trace,
)
from uvmalloc.sizes import format_size

COLUMNS = (
    "time_ns",
    "thread",
    "kind",
    "facade",
    "device",
    "address",
    "size_bytes",
    "block_bytes",
    "stream",
    "place",
    "detail",
    "text",
)


def write_csv(trace: Trace, out: TextIO) -> None:
    """Writes a line of COLUMNS, then one line for each event, in order."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_rows(trace))


def _rows(trace: Trace) -> Iterator[tuple[Any, ...]]:
    for time_ns, thread, event in _numbered(trace):
        _, address, size_bytes, extra, stream, kind, facade, flags, detail, device, place = event
        yield (
            time_ns,
            thread,
            KINDS[kind],
            "" if facade == NO_FACADE else FACADES[facade],
            _place(device),
            hex(address),
            size_bytes,
            extra if kind in (ALLOCATE, FREE) else "",
            hex(stream),
            _place(place),
            _detail(kind, detail, flags),
            trace.text(kind, extra),
        )


def _numbered(trace: Trace) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    times, threads = trace.times_ns.tolist(), trace.threads.tolist()
    return zip(times, threads, trace.events.tolist(), strict=True)


def _place(place: int) -> str:
    return str(place) if place >= 0 else "host" if place == HOST else ""


def _detail(kind: int, detail: int, flags: int) -> str:
    if kind == ADVISE:
        return _name(ADVICE, detail)
    if kind == FAILURE:
        return _name(ERRORS, detail)
    if kind == STREAM:
        return "gone" if flags & GONE else "seen"
    if kind == KERNEL:
        return WORK.get(detail, str(detail))
    if kind == TOUCH:
        return _name(ACCESSES, detail)
    if kind == WAIT:
        return _name(WAITS, detail)
    return "already_live" if flags & ALREADY_LIVE else ""


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else str(number)


class LiveBytes:
    """Live bytes in blocks by pool (memory kind, plus the device for device memory), over time."""

    def __init__(self) -> None:
        self.bytes: dict[str, int] = {}
        self.peaks: dict[str, int] = {}
        self._blocks: dict[int, tuple[str, int]] = {}

    def change(self, event: tuple[int, ...]) -> list[str]:
        """Applies an event; an allocation frees what was at its address. Returns changed pools."""
        _, address, _, block_bytes, _, kind, facade, _, _, device, _ = event
        changed = []
        before = self._blocks.pop(address, None)
        if before is not None:
            self.bytes[before[0]] -= before[1]
            changed.append(before[0])
        if kind == ALLOCATE:
            pool = FACADES[facade] if facade < len(FACADES) else "other"
            if pool == "device":
                pool = f"device {device}"
            self._blocks[address] = (pool, block_bytes)
            total = self.bytes.get(pool, 0) + block_bytes
            self.bytes[pool] = total
            self.peaks[pool] = max(self.peaks.get(pool, 0), total)
            if pool not in changed:
                changed.append(pool)
        return changed


def write_perfetto(trace: Trace, out: TextIO, blocks: bool = False) -> None:
    """Writes the trace-event format. With `blocks`, each block's life is an asynchronous slice."""
    head = {"program": trace.program, "dropped": trace.dropped, "finished": trace.finished}
    out.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(head)},"traceEvents":[\n')
    encode = json.JSONEncoder(separators=(",", ":")).encode  # dumps() would create one per event
    separator = ""
    for event in _perfetto_events(trace, blocks):
        out.write(separator + encode(event))
        separator = ",\n"
    out.write("\n]}\n")


# Streams have tracks beside the threads' tracks. No thread has a number this large (PID_MAX_LIMIT).
_FIRST_STREAM_TRACK = 1 << 22


def _stream_tracks(trace: Trace) -> dict[tuple[int, int], int]:
    """Returns the track of each stream that is used, by device and handle."""
    kinds = trace.events["kind"]
    events = trace.events[(kinds == USE) | (kinds == STREAM)]
    streams = sorted(set(zip(events["device"].tolist(), events["stream"].tolist(), strict=True)))
    return {stream: _FIRST_STREAM_TRACK + number for number, stream in enumerate(streams)}


def _stream_name(device: int, stream: int) -> str:
    name = f"stream {stream:#x}" if stream else "default stream"
    return f"{name}, device {device}" if device >= 0 else name


def _perfetto_events(trace: Trace, blocks: bool) -> Iterator[dict[str, Any]]:
    pid = trace.process
    name = {"name": f"{trace.program or 'program'} (uvmalloc)"}
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": name}
    for thread, tid in sorted(trace.system_threads.items()):
        args = {"name": f"thread {thread}"}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}
    tracks = _stream_tracks(trace)
    for key, tid in tracks.items():
        args = {"name": _stream_name(*key)}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": args}
    live = LiveBytes()
    numbers: dict[int, tuple[int, str]] = {}  # number and kind of each live block
    made = 0
    for time_ns, thread, event in _numbered(trace):
        _, address, size_bytes, _, stream, kind, facade, _, _, device, _ = event
        where = {"pid": pid, "tid": trace.system_threads.get(thread, pid), "ts": time_ns / 1000}
        if kind not in (ALLOCATE, FREE):
            instant = _instant(trace, event)
            if kind in (USE, STREAM):
                instant["args"]["thread"] = thread
                where["tid"] = tracks[device, stream]
            yield {"ph": "i", **instant, **where}
            continue
        for pool in live.change(event):
            value = {"bytes": live.bytes[pool]}
            yield {"ph": "C", "name": f"live bytes, {pool}", **where, "args": value}
        if not blocks:
            continue
        if (begun := numbers.pop(address, None)) is not None:
            yield {"ph": "e", "cat": begun[1], "id": begun[0], "name": "block", **where}
        if kind == ALLOCATE:
            made += 1
            cat = _name(FACADES, facade)
            numbers[address] = (made, cat)
            block = {"address": hex(address), "size_bytes": size_bytes}
            yield {"ph": "b", "cat": cat, "id": made, "name": "block", **where, "args": block}


def _instant(trace: Trace, event: tuple[int, ...]) -> dict[str, Any]:
    """Returns a mark on the time line. Failures and marks cross all tracks of the process. Uses of
    a stream, and its first and last use, are on the stream's track.
    """
    _, address, size_bytes, extra, _, kind, _, flags, detail, device, place = event
    args: dict[str, Any] = {} if kind in (USE, STREAM) else {"size_bytes": size_bytes}
    if address:
        args["address"] = hex(address)
    if text := trace.text(kind, extra):
        args["text"] = text
    if label := _detail(kind, detail, flags):
        args["detail"] = label
    if kind == MOVE:
        args["from"] = _place(device)
    if to := _place(place):
        args["to"] = to
    if kind == MARK:
        return {"name": text or "mark", "s": "p", "args": args}
    return {"name": KINDS[kind], "s": "p" if kind == FAILURE else "t", "args": args}


def show_trace(trace: Trace, console: Console) -> None:
    """Prints a summary of a trace. `console` must not interpret markup."""
    started = datetime.datetime.fromtimestamp(
        trace.start_time_of_day_ns / 1e9, tz=datetime.timezone.utc
    )
    seconds = float(trace.times_ns[-1]) / 1e9 if len(trace.times_ns) else 0.0
    threads = len(np.unique(trace.threads[trace.threads != 0]))
    console.print(
        f"{trace.program or 'program'}, process {trace.process}, "
        f"{started:%Y-%m-%d %H:%M:%S} UTC, {seconds:.3f} s, {len(trace.events):,} events "
        f"of {threads} threads",
        soft_wrap=True,
    )
    for number, device in enumerate(trace.devices):
        size = format_size(device.capacity_bytes)
        console.print(f"device {number}: {device.name}, {size}", soft_wrap=True)
    print_table(console, ("event", "count"), _counts(trace), numbers_from=1)
    print_table(console, ("memory", "peak", "live at the end"), _memory(trace), numbers_from=1)
    if trace.dropped:
        console.print(f"{trace.dropped:,} events could not be written and are missing")
    if not trace.finished:
        console.print("not finished: the process was killed or still runs")


def _counts(trace: Trace) -> Iterator[tuple[str, str]]:
    counts = np.bincount(trace.events["kind"], minlength=len(KINDS))
    return ((KINDS[kind], f"{count:,}") for kind, count in enumerate(counts.tolist()) if count)


def _memory(trace: Trace) -> Iterator[tuple[str, str, str]]:
    live = LiveBytes()
    kinds = trace.events["kind"]
    for event in trace.events[(kinds == ALLOCATE) | (kinds == FREE)].tolist():
        live.change(event)
    for pool, peak in sorted(live.peaks.items()):
        yield pool, format_size(peak), format_size(live.bytes[pool])
