"""Starts programs in a process that has already imported torch.

A server imports torch once, and forks for each program, so a program starts in a tenth of the time.
The program finds `__main__`, `sys.argv`, `sys.path`, its streams and its variables as after `python
-c TEXT` or `python FILE`, and is the first in its process to use the device. There are two
differences: `torch` is imported, and the variables that libraries read when they are loaded are the
server's. READ_LATE names the variables that a program may set itself.

Tests use `ForkServer`. This file is also the program that the server runs.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

READ_LATE = frozenset(
    {
        "UVMSIM_CAPACITY",
        "UVMSIM_DEVICES",
        "UVMSIM_DRIVER_VERSION",
        "UVMSIM_PROFILE",
        "UVMSIM_REPORT",
    }
)

_LENGTH = struct.Struct("!I")
_PID_AND_STATUS = struct.Struct("!q")


class Ended(NamedTuple):
    pid: int
    returncode: int
    stdout: str
    stderr: str


class ForkServer:
    """Runs programs, one at a time. `environment` is the environment of the server."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )

    def close(self) -> None:
        self._socket.close()
        self._server.wait(timeout=60)

    def run(
        self,
        program: str | Path,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        timeout_seconds: float,
    ) -> Ended:
        """Runs a program, until it has ended and no process writes to its output any more.

        `program` is a text or a file; `variables` is its whole environment. After a timeout,
        kills the program and its children, and raises TimeoutError with the output so far.
        """
        request = json.dumps(
            {
                "file": str(program) if isinstance(program, Path) else None,
                "text": None if isinstance(program, Path) else program,
                "arguments": list(arguments),
                "variables": dict(variables),
                "folder": str(Path.cwd()),
            }
        ).encode()
        output, errors = os.pipe(), os.pipe()
        socket.send_fds(self._socket, [_LENGTH.pack(len(request))], [output[1], errors[1]])
        self._socket.sendall(request)
        os.close(output[1])
        os.close(errors[1])
        pid = self._receive()
        texts = {output[0]: b"", errors[0]: b""}
        in_time = _read_to_the_end(texts, time.monotonic() + timeout_seconds)
        if not in_time:
            os.killpg(pid, signal.SIGKILL)
            _read_to_the_end(texts, time.monotonic() + timeout_seconds)
        ended = Ended(
            pid,
            os.waitstatus_to_exitcode(self._receive()),
            texts[output[0]].decode(),
            texts[errors[0]].decode(),
        )
        os.close(output[0])
        os.close(errors[0])
        if not in_time:
            raise TimeoutError(f"{ended.stdout}\n{ended.stderr}")
        return ended

    def _receive(self) -> int:
        answer = self._socket.recv(_PID_AND_STATUS.size, socket.MSG_WAITALL)
        if len(answer) < _PID_AND_STATUS.size:
            raise RuntimeError(f"the server has ended with exit code {self._server.wait()}")
        number: int
        (number,) = _PID_AND_STATUS.unpack(answer)
        return number


def _read_to_the_end(texts: dict[int, bytes], deadline: float) -> bool:
    """Adds what arrives to each descriptor's text. Returns False if an end comes too late."""
    with selectors.DefaultSelector() as selector:
        for descriptor in texts:
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                return False
            for key, _ in ready:
                piece = os.read(key.fd, 1 << 16)
                texts[key.fd] += piece
                if not piece:
                    selector.unregister(key.fd)
    return True


def _serve(connection: socket.socket) -> dict[str, object]:
    """Forks for each request until the tests end; returns the request in the child."""
    while True:
        header, descriptors, _, _ = socket.recv_fds(connection, _LENGTH.size, 2)
        if not header:
            os._exit(0)
        (size,) = _LENGTH.unpack(header)
        request = json.loads(connection.recv(size, socket.MSG_WAITALL))
        pid = os.fork()
        if pid == 0:
            connection.close()
            for source, target in zip(descriptors, (1, 2), strict=True):
                os.dup2(source, target)
                os.close(source)
            result: dict[str, object] = request
            return result
        for descriptor in descriptors:
            os.close(descriptor)
        connection.sendall(_PID_AND_STATUS.pack(pid))
        _, status = os.waitpid(pid, 0)
        connection.sendall(_PID_AND_STATUS.pack(status))


def _become(request: dict[str, object]) -> None:
    """Runs the requested program in this process."""
    os.setsid()
    os.chdir(str(request["folder"]))
    os.environ.clear()
    os.environ.update(request["variables"])  # type: ignore[call-overload]
    file, text = request["file"], request["text"]
    main = types.ModuleType("__main__")
    if file is None:
        sys.argv = ["-c"]
        sys.path.insert(0, "")
        code = compile(str(text), "<string>", "exec")
    else:
        sys.argv = [str(file)]
        sys.path.insert(0, str(Path(str(file)).resolve().parent))
        main.__file__ = str(file)
        code = compile(Path(str(file)).read_bytes(), str(file), "exec")
    sys.argv += request["arguments"]  # type: ignore[operator]
    sys.modules["__main__"] = main
    try:
        exec(code, vars(main))
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


if __name__ == "__main__":
    import gc

    import torch  # noqa: F401

    del sys.path[0]  # this file's folder
    gc.freeze()
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))))
