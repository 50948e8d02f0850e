"""Records the traces of this folder: `python -m bench.traces.record [NAME...]`, see README.md."""

from __future__ import annotations

import lzma
import os
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from uvmalloc._trace import reader as traces

from bench.traces import committed_file

NAMES = ("transformer", "cnn", "varying", "gpt2", "lstm", "varying-generation")
_HEADER_BYTES_AT = 16
_DEVICE_FACADE = traces.FACADES.index("device")


def record(name: str) -> None:
    """Traces a workload under uvmalloc on a simulated device, into a file beside this one."""
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "trace"
        # Without `copy`, parameters that move to the device stay blocks of the host facade.
        variables = {"UVMALLOC_TRACE": str(file), "UVMALLOC_MOVE": "copy"}
        command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--capacity", "16GiB"]
        command += ["--", sys.executable, "-m", "bench.traces.workloads", name]
        subprocess.run(command, env={**os.environ, **variables}, check=True)
        trace = traces.read_trace(file)
        if trace.dropped:
            sys.exit(f"record: {trace.dropped} events of {name} could not be written")
        kept = device_facade_only(file.read_bytes())
    committed_file(name).write_bytes(compress(kept))


def device_facade_only(content: bytes) -> bytes:
    """Returns the trace reduced to allocations and frees of the device facade, and marks.

    The chunks of the result are not packed, because such chunks compress better.
    """
    (at,) = struct.unpack_from("=I", content, _HEADER_BYTES_AT)
    layout = traces.event_layout("=")
    chunk_bytes = struct.calcsize("=" + traces.CHUNK)
    pieces = [content[:at]]
    while at < len(content):
        number, count, thread, system_thread, value, *moment = struct.unpack_from(
            "=" + traces.CHUNK, content, at
        )
        at += chunk_bytes
        kind = number.to_bytes(4, "little")
        if kind in (traces.EVENT_CHUNK, traces.PACKED_CHUNK):
            packed = kind == traces.PACKED_CHUNK
            events = np.frombuffer(content, layout, value if packed else count, at)
            at += events.nbytes
            if packed:
                events = traces.unpacked(events, np.frombuffer(content, "=i4", count, at))
                at += (count * 4 + 7) // 8 * 8
            wanted = np.isin(events["kind"], (traces.ALLOCATE, traces.FREE))
            wanted &= events["facade"] == _DEVICE_FACADE
            kept = events[wanted | (events["kind"] == traces.MARK)]
            number = int.from_bytes(traces.EVENT_CHUNK, "little")
            most = traces.MOST_EVENTS_PER_CHUNK
            bodies = [kept[i : i + most] for i in range(0, max(len(kept), 1), most)]
            chunks = [(len(body), 0, body.tobytes()) for body in bodies]
        else:
            size_bytes = (count + 7) // 8 * 8 if kind == traces.TEXT_CHUNK else 0
            chunks = [(count, value, content[at : at + size_bytes])]
            at += size_bytes
        for count, value, body in chunks:
            head = (number, count, thread, system_thread, value, *moment)
            pieces += [struct.pack("=" + traces.CHUNK, *head), body]
    return b"".join(pieces)


def compress(trace: bytes) -> bytes:
    """Compresses well, because most bytes of an event equal those of the previous event."""
    event_bytes = 48
    filters = [
        {"id": lzma.FILTER_DELTA, "dist": event_bytes},
        {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME},
    ]
    return lzma.compress(trace, filters=filters)


def main() -> None:
    names = sys.argv[1:] or NAMES
    if not set(names) <= set(NAMES):
        sys.exit(f"record: {' '.join(names)}; accepted: some of {' '.join(NAMES)}")
    for name in names:
        record(name)
        print(f"{name}: {committed_file(name).stat().st_size} bytes")


if __name__ == "__main__":
    main()
