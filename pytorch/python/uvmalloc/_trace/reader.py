"""Reads traces of the allocator (docs/reference/trace.md) into numpy arrays, sorted by time.

Importing this module imports numpy, so the command line imports it only when needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from uvmalloc._cli.files import read_regular
from uvmalloc._trace import MAGIC
from uvmalloc.errors import CommandError

VERSION = 4
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
    "kernel",
    "touch",
    "signal",
    "wait",
    "site",
)
ALLOCATE, FREE, MOVE, ADVISE, PREFETCH, DISCARD, USE, STREAM, FAILURE, MARK = range(1, 11)
KERNEL, TOUCH, SIGNAL, WAIT, SITE = range(11, 16)
ACCESSES = ("none", "read", "write", "read_write")  # by a touch
WAITS = ("stream_for_event", "host_for_event", "host_for_stream", "host_for_device")
# Units of a kernel's work.
WORK = {
    0: "float64", 1: "float32", 2: "tensor_float32", 3: "float16", 4: "float8",
    252: "bytes_to_device", 253: "bytes_to_host", 254: "bytes_inside", 255: "nanoseconds",
}  # fmt: skip
FACADES = ("host", "pinned", "device")
NO_FACADE = 0xFF
HOST, NOWHERE = -1, -2  # places that are not devices
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

_HEADER = "8s4IQq2Q4I"
_DEVICE = "Q56s"
CHUNK = "4I3Q"
EVENT_CHUNK, PACKED_CHUNK, TEXT_CHUNK, END_CHUNK = b"EVNT", b"PACK", b"TEXT", b"ENDS"
_BYTE_ORDERS = {b"\4\3\2\1": "<", b"\1\2\3\4": ">"}
_EVENT_FIELDS = [
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
MOST_EVENTS_PER_CHUNK = 1364
_MOST_COUNT = {EVENT_CHUNK: MOST_EVENTS_PER_CHUNK, PACKED_CHUNK: 6144}
_MOST_MODELS_PER_CHUNK = 740
# Parts of a word in a packed chunk: the model's number, whether the event is a free, and the time
# since the last event.
_WORD_BYTES = 4
_FREE_SHIFT, _TIME_SHIFT = 13, 14
_PAUSE = (1 << _FREE_SHIFT) - 1  # in place of a model's number: no event, only more time
_PAUSE_SHIFT = 32 - _TIME_SHIFT
_MOST_DEVICES = 1024
_MOST_TEXT_BYTES = 4096


class TraceError(CommandError):
    """The file is not a trace, or is damaged."""

    exit_code = 2

    def __init__(self, file: Path, offset: int, what: str) -> None:
        super().__init__(f"{file}: at byte {offset}: {what}")


@dataclass(frozen=True)
class Device:
    name: str
    capacity_bytes: int


@dataclass(frozen=True)
class Trace:
    """A whole trace. The arrays have one entry per event."""

    process: int
    program: str
    start_time_of_day_ns: int
    devices: list[Device]
    events: np.ndarray[Any, Any]  # the fields of docs/reference/trace.md
    times_ns: np.ndarray[Any, Any]  # since the start
    threads: np.ndarray[Any, Any]  # numbered from 1; 0: the recorder
    system_threads: dict[int, int]  # by thread
    texts: list[str]
    dropped: int
    finished: bool

    def text(self, kind: int, extra: int) -> str:
        """Returns the string of a mark, a failure or a call site, or "" for other events."""
        known = kind in (FAILURE, MARK, SITE) and 1 <= extra <= len(self.texts)
        return self.texts[extra - 1] if known else ""


def read_trace(file: Path, unfinished: bool = False) -> Trace:
    """Reads a trace. With `unfinished`, accepts the trace of a killed process, up to its last
    whole chunk.
    """
    try:
        content = read_regular(file)
    except OSError as error:
        raise CommandError(f"cannot read {file}: {error.strerror}") from None
    return _Parser(file, content, unfinished).parse()


@dataclass(frozen=True)
class _EventChunk:
    offset: int
    count: int  # number of events, or of models if the chunk is packed
    thread: int
    words: int | None  # number of words after the models; None: not packed


class _Parser:
    def __init__(self, file: Path, content: bytes, unfinished: bool) -> None:
        self._file = file
        self._content = content
        self._unfinished = unfinished
        self._at = 0
        self._order = "<"
        self._chunks: list[_EventChunk] = []
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
        if not MAGIC.startswith(self._content[:8]):
            raise self._error(0, "this is not a trace of uvmalloc")
        if size < struct.calcsize("<" + _HEADER):
            raise self._error(size, "the file ends in its header (truncated)")
        order = _BYTE_ORDERS.get(self._content[12:16])
        if order is None:
            raise self._error(12, "the byte-order mark is damaged")
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
        """Returns whether the chunk is the last one, and its time; or None if the file ends inside
        it.
        """
        start = self._at
        if len(self._content) - start < struct.calcsize("<" + CHUNK):
            self._require_unfinished(start)
            return None
        number, count, thread, system_thread, value, time, monotonic_ns = self._take(CHUNK)
        kind = number.to_bytes(4, "little")
        size_bytes = {
            EVENT_CHUNK: count * _EVENT_BYTES,
            PACKED_CHUNK: value * _EVENT_BYTES + _padded(count * _WORD_BYTES),
            TEXT_CHUNK: _padded(count),
            END_CHUNK: 0,
        }.get(kind)
        if size_bytes is None:
            raise self._error(start, "no chunk starts here")
        if count > _MOST_COUNT.get(kind, count):
            raise self._error(start + 4, "the number of events is damaged")
        if kind == PACKED_CHUNK and (value > _MOST_MODELS_PER_CHUNK or (count and not value)):
            raise self._error(start + 16, "the number of models is damaged")
        if kind == TEXT_CHUNK and count > _MOST_TEXT_BYTES:
            raise self._error(start + 4, "the size of a string is damaged")
        if len(self._content) - self._at < size_bytes:
            self._require_unfinished(start)
            return None
        if kind in (EVENT_CHUNK, PACKED_CHUNK):
            packed = kind == PACKED_CHUNK
            events, words = (value, count) if packed else (count, None)
            self._chunks.append(_EventChunk(self._at, events, thread, words))
            if thread:
                self._system_threads[thread] = system_thread
        elif kind == TEXT_CHUNK:
            if value != len(self._texts) + 1:
                raise self._error(start + 16, "the number of a string is damaged")
            text = self._content[self._at : self._at + count]
            self._texts.append(text.decode("utf-8", "replace"))
        else:
            self._dropped = value
        self._at += size_bytes
        return kind == END_CHUNK, (time, monotonic_ns)

    def _require_unfinished(self, start: int) -> None:
        """Raises TraceError for a file that ends in a chunk, unless such a file is accepted."""
        if not self._unfinished:
            what = f"the file ends in the chunk that starts at byte {start} (truncated)"
            raise self._error(len(self._content), what)

    def _events(self, devices: int, start: int) -> tuple[np.ndarray, np.ndarray]:
        layout = event_layout(self._order)
        stored = [
            np.frombuffer(self._content, layout, chunk.count, chunk.offset)
            for chunk in self._chunks
        ]
        every = np.concatenate(stored) if stored else np.empty(0, layout)
        kinds, facades = every["kind"], every["facade"]
        self._refuse((kinds == 0) | (kinds >= len(KINDS)), 40, "kind", kinds)
        self._refuse((facades != NO_FACADE) & (facades >= len(FACADES)), 41, "memory kind", facades)
        for name, position in (("device", 44), ("place", 46)):
            values = every[name]
            self._refuse((values < NOWHERE) | (values >= devices), position, name, values)
        pieces = [
            self._unpacked(chunk, models)
            for chunk, models in zip(self._chunks, stored, strict=True)
        ]
        events = np.concatenate(pieces) if pieces else every
        chunk_threads = np.array([chunk.thread for chunk in self._chunks], np.uint32)
        threads = np.repeat(chunk_threads, [len(piece) for piece in pieces])
        ours = events["time"] >= start  # other events belong to an earlier trace of the process
        if not ours.all():
            events, threads = events[ours], threads[ours]
        order = np.argsort(events["time"], kind="stable")
        return events[order], threads[order]

    def _unpacked(self, chunk: _EventChunk, models: np.ndarray) -> np.ndarray:
        if not chunk.words:
            return models if chunk.words is None else models[:0]
        offset = chunk.offset + chunk.count * _EVENT_BYTES
        words = np.frombuffer(self._content, self._order + "i4", chunk.words, offset)
        numbers = words & _PAUSE
        wrong = (numbers != _PAUSE) & (numbers >= len(models))
        if wrong.any():
            first = int(np.argmax(wrong))
            what = f"an event like number {numbers[first]}, which is not in the chunk"
            raise self._error(offset + first * _WORD_BYTES, what)
        return unpacked(models, words)

    def _refuse(self, wrong: np.ndarray, position: int, name: str, values: np.ndarray) -> None:
        if not wrong.any():
            return
        index = first = int(np.argmax(wrong))
        for chunk in self._chunks:
            if index < chunk.count:
                what = f"an event of the unknown {name} {values[first]}"
                raise self._error(chunk.offset + index * _EVENT_BYTES + position, what)
            index -= chunk.count


def unpacked(models: np.ndarray, words: np.ndarray) -> np.ndarray:
    """Returns the events of a packed chunk, which has at least one model."""
    numbers = words & _PAUSE
    since_last = (words >> _TIME_SHIFT).astype(np.int64)
    since_last[numbers == _PAUSE] <<= _PAUSE_SHIFT
    times = models["time"][0] + np.cumsum(since_last).astype(np.uint64)
    is_event = numbers != _PAUSE
    events: np.ndarray = models[numbers[is_event]]
    events["time"] = times[is_event]
    events["kind"][(words[is_event] >> _FREE_SHIFT & 1) != 0] = FREE
    return events


def event_layout(order: str) -> np.dtype:
    return np.dtype([(name, order + code) for name, code in _EVENT_FIELDS])


def _padded(size_bytes: int) -> int:
    return (size_bytes + 7) // 8 * 8
