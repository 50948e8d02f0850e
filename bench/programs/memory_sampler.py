"""Samples the memory of another process from outside it, because loading keeps Python's lock.

    python memory_sampler.py PID FILE

Answers each line of input with a line of JSON. "begin" resets the peaks. "end" returns the peaks
since "begin", in bytes: `host` for memory of malloc and managed memory, `all` including device
memory, and `mapped` for mapped files. It also returns the part of FILE in the page cache. Managed
and device memory are the memfds of the simulated machine.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import select
import sys
from pathlib import Path

INTERVAL_SECONDS = 0.001


class Memory:
    def __init__(self, process: int) -> None:
        self.status = Path(f"/proc/{process}/status")
        folder = Path(f"/proc/{process}/fd")
        arenas = {"/memfd:uvmsim-managed": "managed", "/memfd:uvmsim-device": "device"}
        self.arenas = {}
        for entry in folder.iterdir():
            target = str(entry.readlink()) if entry.is_symlink() else ""
            kind = arenas.get(target.removesuffix(" (deleted)"))
            if kind is not None:
                self.arenas[kind] = entry

    def now(self) -> dict[str, int]:
        """Returns the current resident bytes."""
        text = self.status.read_text()
        anonymous, mapped = (_kib_of(text, name) << 10 for name in ("RssAnon:", "RssFile:"))
        managed, device = (
            self.arenas[kind].stat().st_blocks * 512 for kind in ("managed", "device")
        )
        host = anonymous + managed
        return {"host": host, "all": host + device, "mapped": mapped}


def _kib_of(text: str, name: str) -> int:
    begin = text.index(name) + len(name)
    return int(text[begin : text.index("kB", begin)])


def cached_bytes(file: Path) -> int:
    """Returns the bytes of the file in the page cache."""
    size_bytes, page_bytes = file.stat().st_size, mmap.PAGESIZE
    pages = (ctypes.c_ubyte * -(-size_bytes // page_bytes))()
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, mmap.MAP_PRIVATE) as mapping:
        start = ctypes.c_char.from_buffer(mapping)
        failed = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(start)), ctypes.c_size_t(size_bytes), pages
        )
        del start
    if failed:
        raise OSError("mincore failed")
    return sum(page & 1 for page in pages) * page_bytes


def main() -> None:
    memory, file = Memory(int(sys.argv[1])), Path(sys.argv[2])
    peaks = memory.now()
    while True:
        told = select.select([sys.stdin], [], [], INTERVAL_SECONDS)[0]
        command = sys.stdin.readline().strip() if told else ""
        if told and not command:
            return
        now = memory.now()
        peaks = now if command == "begin" else {name: max(peaks[name], now[name]) for name in now}
        if command:
            print(json.dumps({**peaks, "cached": cached_bytes(file)}), flush=True)


if __name__ == "__main__":
    main()
