"""Sends requests to examples/model_server.py, in random order and by several clients at once.

Some clients go away in the middle of a request, and some send what is not accepted. An answer is
right if it equals the one of a server whose device holds all models. With a folder, models that
wait sleep in files there; at first the disk is full.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.environment import clean_environment

_ROOT = Path(__file__).resolve().parents[2]
_REQUESTS = [
    ("llm", {"tokens": [1, 2, 3], "count": 3}),
    ("llm", {"tokens": [9] * 8, "count": 1}),
    ("image", {"seed": 7}),
    ("image", {"seed": 8}),
    ("embed", {"tokens": [4, 5, 6]}),
]
_BAD = [
    ("llm", "not JSON"),
    ("llm", "[]"),
    ("llm", '{"tokens": [1000]}'),
    ("llm", '{"tokens": [1], "count": -1}'),
    ("image", '{"seed": "x"}'),
    ("embed", "{}"),
    ("embed", "[" * 100_000),
]
_ENOUGH, _FOR_THE_LARGEST = "1GiB", "96MiB"
FILE_MACHINE = "gh200"  # its device reaches ordinary memory
_SERVER = str(_ROOT / "examples" / "model_server.py")
# Starts the server on a full disk: no file may become larger than 1 MiB.
_ON_A_FULL_DISK = """
import resource, runpy, sys, torch
torch.cuda.init()
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass
class Outcome:
    """`wrong`: answers that differ. `ended`: the residency that the server printed at its end.
    `grown_bytes`: by how much the server's own memory grew in the second half. `filed_bytes`: the
    most bytes of models that were in files; `unfiled`: how often a model did not get there."""

    answered: int = 0
    refused: int = 0
    gone: int = 0
    wrong: list[Any] = field(default_factory=list)
    ended: dict[str, Any] = field(default_factory=dict)
    grown_bytes: int = 0
    filed_bytes: int = 0
    unfiled: int = 0


@contextmanager
def _serving(
    capacity: str, folder: Path | None = None
) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--capacity", capacity]
    program, settings = [_SERVER], {}
    if folder is not None:
        command += ["--machine", FILE_MACHINE]
        each = f"idle=0.05s,file={folder}"
        settings["UVMALLOC_GROUPS"] = f"llm:{each};image:{each};embed:{each}"
        program = ["-c", _ON_A_FULL_DISK, _SERVER]
    server = subprocess.Popen(
        [*command, "--", sys.executable, *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **clean_environment(),
            **settings,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(_ROOT), *sys.path[1:]]),
        },
    )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        if not line.startswith("listening on port "):
            raise RuntimeError(f"the server has not started:\n{server.communicate()[1]}")
        yield int(line.split()[-1]), server
    finally:
        if server.poll() is None:
            server.kill()
        server.communicate()


def _ask(port: int, name: str, body: str | None = None) -> tuple[int, Any]:
    """Returns the status and the content of the answer. Without a body the request is a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET" if body is None else "POST", f"/{name}", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def _go_away(port: int, name: str, body: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /{name} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[: len(body) // 2].encode())


def _end(server: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    server.send_signal(signal.SIGTERM)
    out, errors = server.communicate(timeout=120)
    if server.returncode != 0 or "Traceback" in errors:
        raise RuntimeError(f"the server ended with {server.returncode}:\n{errors}")
    ended: dict[str, Any] = json.loads(out.splitlines()[-1])
    return ended, errors


def _process(server: subprocess.Popen[str]) -> int:
    """Returns the process that serves, which `uvmalloc sim` has started."""
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return int(children[0]) if children else server.pid


def _own_bytes(server: subprocess.Popen[str]) -> int:
    lines = Path(f"/proc/{_process(server)}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) << 10


def _filed_bytes(port: int) -> int:
    """Waits until idle models are in files, and returns their bytes."""
    most = 0
    for _ in range(100):
        _, models = _ask(port, "residency")
        most = max(most, sum(each["file_bytes"] for each in models.values()))
        if all(each["file_bytes"] > 0 for each in models.values()):
            break
        time.sleep(0.1)
    return most


def run(clients: int, requests: int, folder: Path | None = None) -> Outcome:
    """Returns the outcome of this many requests of each client."""
    outcome = Outcome()
    lock = threading.Lock()
    with _serving(_ENOUGH) as (port, server):
        right = [_ask(port, name, json.dumps(body)) for name, body in _REQUESTS]
        _end(server)
    if any(status != 200 for status, _ in right):
        raise RuntimeError(f"the server does not answer: {right}")

    def client(seed: int, port: int, count: int) -> None:
        chosen = random.Random(seed)
        for _ in range(count):
            index, kind = chosen.randrange(len(_REQUESTS)), chosen.random()
            name, body = _REQUESTS[index]
            if kind < 0.1:
                _go_away(port, name, json.dumps(body))
                with lock:
                    outcome.gone += 1
                continue
            bad = kind < 0.2
            try:
                got = (
                    _ask(port, *chosen.choice(_BAD)) if bad else _ask(port, name, json.dumps(body))
                )
            except (OSError, http.client.HTTPException) as error:
                got = 0, {"error": repr(error)}
            is_right = (
                got[0] == 400 and "accepted: " in got[1]["error"] if bad else got == right[index]
            )
            with lock:
                outcome.refused += bad
                outcome.answered += not bad
                if not is_right:
                    outcome.wrong.append((name, got))

    def all_clients(port: int, count: int, first_seed: int) -> None:
        threads = [
            threading.Thread(target=client, args=(first_seed + number, port, count))
            for number in range(clients)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    with _serving(_FOR_THE_LARGEST, folder) as (port, server):
        all_clients(port, requests // 2, 0)
        before = _own_bytes(server)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.prlimit(_process(server), resource.RLIMIT_FSIZE, limit)  # the disk has room
        all_clients(port, requests - requests // 2, clients)
        outcome.grown_bytes = _own_bytes(server) - before
        if folder is not None:
            outcome.filed_bytes = _filed_bytes(port)
        outcome.ended, errors = _end(server)
        outcome.unfiled = errors.count("stays where it is")
    return outcome
