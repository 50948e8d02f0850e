"""A measuring program that keeps running and answers one request at a time."""

from __future__ import annotations

import json
import selectors
import subprocess
import tempfile
from collections.abc import Mapping

from bench.allocators.engines import Program

Figures = dict[str, float | str]


class RequestError(Exception):
    """The allocator could not run the request; the text gives the reason."""


class Server:
    """Owns the process. The first request starts it, and so does the next one after a timeout.

    Not thread-safe. Use it in a `with` statement, so that the process ends.
    """

    def __init__(self, program: Program, more_environment: Mapping[str, str] | None = None) -> None:
        self._program = program
        self._environment = {**program.environment, **(more_environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  # until close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: str, timeout_seconds: float) -> Figures:
        """Sends one request and waits for its answer. Raises RequestError if no answer comes."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(request + "\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise RequestError(f"the program has ended: {self._end()}") from None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout_seconds):
                self._end(kill=True)
                raise RequestError(f"no answer in {timeout_seconds:.0f} s")
        line = process.stdout.readline()
        if not line:
            raise RequestError(f"the program has ended: {self._end()}")
        answer = json.loads(line)
        if "error" in answer:
            raise RequestError(str(answer["error"]).splitlines()[0])
        return answer["values"]

    def close(self) -> None:
        """Ends the process, if any."""
        if self._process is not None:
            self._end()
        self._said.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._program.command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
            )
        return self._process

    def _end(self, kill: bool = False) -> str:
        """Ends the process. Returns its exit status and the last line of its output."""
        process, self._process = self._process, None
        assert process is not None
        if kill:
            process.kill()
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        self._said.seek(0)
        last = self._said.read().strip().splitlines()[-1:] or ["nothing on stderr"]
        return f"exit code {process.returncode}, {last[0]}"
