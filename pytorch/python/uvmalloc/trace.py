"""Reading traces of the allocator (docs/trace.md) into numpy arrays, in the order of their times.

Importing this imports numpy, so the command line does it late.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uvmalloc.errors import CommandError

VERSION = 1
KINDS = (
    "",
    "allocate",
    "free",
    "move",
    "advise",
    "prefetch",
    "discard",
    "use",
    "stream",
    "failure",
    "mark",
)
ALLOCATE, FREE, MOVE, ADVISE, PREFETCH, DISCARD, USE, STREAM, FAILURE, MARK = range(1, 11)
FACADES = ("host", "pinned", "device")
NO_FACADE = 0xFF
HOST, NOWHERE = -1, -2  # places that are no device's number
ALREADY_LIVE, GONE = 1, 2  # flags
ADVICE = (
    "",
    "set_read_mostly",
    "unset_read_mostly",
    "set_preferred_location",
    "unset_preferred_location",
    "set_accessed_by",
    "unset_accessed_by",
)
ERRORS = (
    "none",
    "not_ready",
    "out_of_memory",
    "not_supported",
    "invalid_value",
    "no_device",
    "not_usable",
    "capture",
    "other",
)

_MAGIC = b"UVMTRACE"
_HEADER = "8s4IQq2Q4I"
_DEVICE = "Q56s"
CHUNK = "4I3Q"
EVENT_CHUNK, TEXT_CHUNK, END_CHUNK = b"EVNT", b"TEXT", b"ENDS"
_BYTE_ORDERS = {b"\4\3\2\1": "<", b"\1\2\3\4": ">"}
EVENT_FIELDS = [
    ("time", "u8"),
    ("address", "u8"),
    ("size_bytes", "u8"),
    ("extra", "u8"),
    ("stream", "u8"),
    ("kind", "u1"),
    ("facade", "u1"),
    ("flags", "u1"),
    ("detail", "u1"),
    ("device", "i2"),
    ("place", "i2"),
]
_EVENT_BYTES = 48
_MOST_EVENTS_PER_CHUNK = 1364
_MOST_DEVICES = 1024
_MOST_TEXT_BYTES = 4096


class TraceError(CommandError):
    """A file is no trace, or is damaged."""

    exit_code = 2

    def __init__(self, file: Path, offset: int, what: str) -> None:
        super().__init__(f"{file}: at byte {offset}: {what}")


@dataclass(frozen=True)
class Device:
    name: str
    capacity_bytes: int


@dataclass(frozen=True)
class Trace:
    """A whole trace; the arrays have one entry for each event."""

    process: int
    program: str
    start_time_of_day_ns: int
    devices: list[Device]
    events: np.ndarray[Any, Any]  # the fields of docs/trace.md
    times_ns: np.ndarray[Any, Any]  # since the start
    threads: np.ndarray[Any, Any]  # from 1; 0: the recorder
    system_threads: dict[int, int]  # by thread
    texts: list[str]
    dropped: int
    finished: bool

    def text(self, kind: int, extra: int) -> str:
        """Of a mark or a failure; empty for others."""
        known = kind in (FAILURE, MARK) and 1 <= extra <= len(self.texts)
        return self.texts[extra - 1] if known else ""


def read_trace(file: Path, unfinished: bool = False) -> Trace:
    """Reads a trace; with `unfinished`, one of a killed process up to its last whole chunk."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    return _Parser(file, content, unfinished).parse()


class _Parser:
    def __init__(self, file: Path, content: bytes, unfinished: bool) -> None:
        self._file = file
        self._content = content
        self._unfinished = unfinished
        self._at = 0
        self._order = "<"
        self._chunks: list[tuple[int, int, int]] = []  # offset of the events, count, thread
        self._system_threads: dict[int, int] = {}
        self._texts: list[str] = []
        self._dropped = 0

    def parse(self) -> Trace:
        header = self._header()
        process, time_of_day_ns, start, monotonic_ns, clock, device_count, name_bytes = header
        devices = []
        for _ in range(device_count):
            capacity_bytes, name = self._take(_DEVICE)
            devices.append(Device(name.split(b"\0")[0].decode("utf-8", "replace"), capacity_bytes))
        program = self._content[self._at : self._at + name_bytes].decode("utf-8", "replace")
        self._at += _padded(name_bytes)
        first = last = (start, monotonic_ns)
        finished = False
        while not finished:
            if self._at == len(self._content) and not self._unfinished:
                what = "the trace is not finished: the process still runs or was killed (truncated)"
                raise self._error(self._at, what)
            chunk = self._chunk()
            if chunk is None:
                break
            finished, moment = chunk
            last = max(last, moment)
        if finished and self._at != len(self._content):
            raise self._error(self._at, "there is more behind the end")
        ticks_ns = 1.0
        if clock == 1 and last[0] > first[0]:
            ticks_ns = (last[1] - first[1]) / (last[0] - first[0])
        events, threads = self._events(len(devices), start)
        since = events["time"] - np.uint64(start)
        times_ns = since.astype(np.int64) if clock == 0 else np.rint(since * ticks_ns)
        return Trace(
            process,
            program,
            time_of_day_ns,
            devices,
            events,
            times_ns.astype(np.int64),
            threads,
            self._system_threads,
            self._texts,
            self._dropped,
            finished,
        )

    def _error(self, offset: int, what: str) -> TraceError:
        return TraceError(self._file, offset, what)

    def _take(self, layout: str) -> tuple[Any, ...]:
        layout = self._order + layout
        values = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return values

    def _header(self) -> tuple[int, ...]:
        size = len(self._content)
        if not _MAGIC.startswith(self._content[:8]):
            raise self._error(0, "this is not a trace of uvmalloc")
        if size < struct.calcsize("<" + _HEADER):
            raise self._error(size, "the file ends in its header (truncated)")
        order = _BYTE_ORDERS.get(self._content[12:16])
        if order is None:
            raise self._error(12, "the mark of the byte order is damaged")
        self._order = order
        _, version, _, header_bytes, event_bytes, *rest = self._take(_HEADER)
        device_count, name_bytes = rest[5], rest[6]
        if version > VERSION:
            what = f"the trace has version {version}; this program reads versions up to {VERSION}"
            raise self._error(8, what)
        if version == 0:
            raise self._error(8, "the version is 0")
        if event_bytes != _EVENT_BYTES:
            raise self._error(20, "the size of an event is damaged")
        if device_count > _MOST_DEVICES:
            raise self._error(60, "the number of devices is damaged")
        devices_bytes = device_count * struct.calcsize("<" + _DEVICE)
        if header_bytes != self._at + devices_bytes + _padded(name_bytes):
            raise self._error(16, "the size of the header is damaged")
        if size < header_bytes:
            raise self._error(size, "the file ends in its header (truncated)")
        if rest[4] > 1:
            raise self._error(56, "the clock is unknown")
        return tuple(rest[:7])

    def _chunk(self) -> tuple[bool, tuple[int, int]] | None:
        """Whether it was the last one, and when it was written; None: the file ends inside it."""
        start = self._at
        if len(self._content) - start < struct.calcsize("<" + CHUNK):
            return self._cut_short(start)
        number, count, thread, system_thread, value, time, monotonic_ns = self._take(CHUNK)
        kind = number.to_bytes(4, "little")
        size_bytes = {
            EVENT_CHUNK: count * _EVENT_BYTES,
            TEXT_CHUNK: _padded(count),
            END_CHUNK: 0,
        }.get(kind)
        if size_bytes is None:
            raise self._error(start, "no chunk starts here")
        if kind == EVENT_CHUNK and count > _MOST_EVENTS_PER_CHUNK:
            raise self._error(start + 4, "the number of events is damaged")
        if kind == TEXT_CHUNK and count > _MOST_TEXT_BYTES:
            raise self._error(start + 4, "the size of a text is damaged")
        if len(self._content) - self._at < size_bytes:
            return self._cut_short(start)
        if kind == EVENT_CHUNK:
            self._chunks.append((self._at, count, thread))
            if thread:
                self._system_threads[thread] = system_thread
        elif kind == TEXT_CHUNK:
            if value != len(self._texts) + 1:
                raise self._error(start + 16, "the number of a text is damaged")
            text = self._content[self._at : self._at + count]
            self._texts.append(text.decode("utf-8", "replace"))
        else:
            self._dropped = value
        self._at += size_bytes
        return kind == END_CHUNK, (time, monotonic_ns)

    def _cut_short(self, start: int) -> None:
        if not self._unfinished:
            what = f"the file ends in the chunk that starts at byte {start} (truncated)"
            raise self._error(len(self._content), what)

    def _events(self, devices: int, start: int) -> tuple[np.ndarray, np.ndarray]:
        layout = np.dtype([(name, self._order + code) for name, code in EVENT_FIELDS])
        pieces = [
            np.frombuffer(self._content, layout, count, offset)
            for offset, count, _ in self._chunks
            if count
        ]
        events = np.concatenate(pieces) if pieces else np.empty(0, layout)
        counts = [count for _, count, _ in self._chunks]
        threads = np.repeat(np.array([chunk[2] for chunk in self._chunks], np.uint32), counts)
        kinds, facades = events["kind"], events["facade"]
        self._refuse((kinds == 0) | (kinds >= len(KINDS)), 40, "kind", kinds)
        self._refuse((facades != NO_FACADE) & (facades >= len(FACADES)), 41, "facade", facades)
        for name, position in (("device", 44), ("place", 46)):
            values = events[name]
            self._refuse((values < NOWHERE) | (values >= devices), position, name, values)
        ours = events["time"] >= start  # others belong to a former trace of the process
        if not ours.all():
            events, threads = events[ours], threads[ours]
        order = np.argsort(events["time"], kind="stable")
        return events[order], threads[order]

    def _refuse(self, wrong: np.ndarray, position: int, name: str, values: np.ndarray) -> None:
        if not wrong.any():
            return
        index = first = int(np.argmax(wrong))
        for offset, count, _ in self._chunks:
            if index < count:
                what = f"an event of the unknown {name} {values[first]}"
                raise self._error(offset + index * _EVENT_BYTES + position, what)
            index -= count


def _padded(size_bytes: int) -> int:
    return (size_bytes + 7) // 8 * 8
