"""Sends requests to examples/model_server.py, in random order and by several clients at once.

Some clients go away in the middle of a request, and some send what is not accepted. An answer is
right if it equals the one of a server whose device holds all models.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
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


@dataclass
class Outcome:
    """`wrong`: answers that differ. `ended`: the residency that the server printed at its end."""

    answered: int = 0
    refused: int = 0
    gone: int = 0
    wrong: list[Any] = field(default_factory=list)
    ended: dict[str, Any] = field(default_factory=dict)


@contextmanager
def _serving(capacity: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "uvmalloc", "sim", "--no-report", "--capacity", capacity]
    server = subprocess.Popen(
        [*command, "--", sys.executable, str(_ROOT / "examples" / "model_server.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **clean_environment(),
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


def _ask(port: int, name: str, body: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("POST", f"/{name}", body)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def _go_away(port: int, name: str, body: str) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        head = f"POST /{name} HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body[: len(body) // 2].encode())


def _end(server: subprocess.Popen[str]) -> dict[str, Any]:
    server.send_signal(signal.SIGTERM)
    out, errors = server.communicate(timeout=120)
    if server.returncode != 0 or "Traceback" in errors:
        raise RuntimeError(f"the server ended with {server.returncode}:\n{errors}")
    ended: dict[str, Any] = json.loads(out.splitlines()[-1])
    return ended


def run(clients: int, requests: int) -> Outcome:
    """Returns the outcome of this many requests of each client."""
    outcome = Outcome()
    lock = threading.Lock()
    with _serving(_ENOUGH) as (port, server):
        right = [_ask(port, name, json.dumps(body)) for name, body in _REQUESTS]
        _end(server)
    if any(status != 200 for status, _ in right):
        raise RuntimeError(f"the server does not answer: {right}")

    def client(seed: int, port: int) -> None:
        chosen = random.Random(seed)
        for _ in range(requests):
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

    with _serving(_FOR_THE_LARGEST) as (port, server):
        threads = [threading.Thread(target=client, args=(seed, port)) for seed in range(clients)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        outcome.ended = _end(server)
    return outcome
