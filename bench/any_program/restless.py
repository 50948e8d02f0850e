"""Forks, starts programs, frees and exits at moments that a seed chooses; uses the device between.

A child that is forked after the driver's first use cannot use the driver. So children only use host
memory or start another program.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import subprocess
import sys
import threading

MIB = 1 << 20


class Device:
    """The runtime's calls. The library is loaded at the first use."""

    def __init__(self) -> None:
        self._runtime = ctypes.CDLL("libcudart.so.13")
        self._blocks: list[ctypes.c_void_p] = []

    def allocate(self, size_bytes: int) -> None:
        block = ctypes.c_void_p()
        status = self._runtime.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size_bytes))
        assert status == 0, status
        self._blocks.append(block)

    def free(self, index: int) -> None:
        assert self._runtime.cudaFree(self._blocks.pop(index % len(self._blocks))) == 0

    def __len__(self) -> int:
        return len(self._blocks)


def child(choice: random.Random) -> None:
    """Ends the process in one of several ways."""
    end = choice.randrange(4)
    if end == 0:
        os._exit(0)
    if end == 1:
        sys.exit(0)
    if end == 2:
        os.execv("/bin/true", ["true"])
    os.kill(os.getpid(), signal.SIGKILL)


def main(seed: int) -> None:
    choice = random.Random(seed)
    device: Device | None = None
    children: list[int] = []
    for _ in range(choice.randrange(5, 30)):
        action = choice.randrange(6)
        if action == 0:
            pid = os.fork()
            if pid == 0:
                child(choice)
            children.append(pid)
        elif action == 1:
            subprocess.run(["/bin/true"], check=True)
        elif action == 2:
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()
        else:
            device = device or Device()
            if len(device) > 8:
                device.free(choice.randrange(8))
            device.allocate(choice.choice((512, 70_000, MIB, 3 * MIB)))
    for pid in children:
        os.waitpid(pid, 0)
    end = choice.randrange(3)
    if end == 0:
        os._exit(0)
    if end == 1:
        os.execv("/bin/true", ["true"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
