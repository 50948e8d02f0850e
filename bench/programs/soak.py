"""Runs rounds of random work for hours, and checks their values, time and memory.

    python -m bench.programs.soak HOURS

Three processes run the rounds of soak_rounds.py under uvmalloc and share simulated devices that are
too small for all, so that they take turns (UVMALLOC_SHARE). One of them is killed from time to time
in the middle of a round. A fourth process runs each round with torch's own allocators and computes
the expected digest. Prints a line each minute. The exit status is 1 if a digest differs, a process
hangs or ends by itself, or the resident memory of a process that lives as long as the soak grows by
1 % or more in the last half.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from uvmalloc._cli.environment import (
    Machine,
    on_simulated_device,
    with_uvmalloc,
    without_settings,
    without_uvmalloc,
)
from uvmalloc.libraries import find_libraries

ROUNDS = [sys.executable, "-m", "bench.programs.soak_rounds"]
DEVICES = 2
CAPACITY_BYTES = 48 << 20  # of each device; a round's tensors may need more
NATIVE_CAPACITY_BYTES = 4 << 30  # torch's own allocators cannot use other memory
# A round takes about a second; the limit allows for a heavily loaded machine.
MOST_ROUND_SECONDS = float(os.environ.get("SOAK_MOST_ROUND_SECONDS", "600"))
DUMP_SECONDS = 5  # for a process to print where its threads are
KILLED_PART = 0.3  # of the victim's rounds end by a kill
LEAD = 8  # rounds by which the reference may be ahead
WARM_UP_ROUNDS = 10  # of each process, before time and memory count
FEWEST_ROUNDS = 20  # needed for a meaningful growth, even in a short time
MOST_GROWTH = 0.01
PROBLEMS = ("wrong values", "hangs", "ends")
# Without this threshold glibc's heap fragments and grows, with any allocator.
FIXED_HEAP = {"MALLOC_MMAP_THRESHOLD_": "1000000", "OMP_NUM_THREADS": "1"}


class Ended(Exception):
    """The process ended without an answer."""


class Hangs(Exception):
    """The process did not answer in time and was killed."""


class Rounds:
    """A process that runs rounds. It is restarted after it has ended. For one thread."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.was_killed = False

    def start(self) -> None:
        """Starts the process unless it is running. Raises Ended or Hangs."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self.was_killed = False
        self._lines = queue.SimpleQueue()
        self._process = subprocess.Popen(
            ROUNDS,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=_read_lines, args=(self._process, self._lines), daemon=True).start()
        self._answer(self._process)

    def run(self, seed: int) -> dict[str, Any]:
        """Returns the process's answer for the round. Raises Ended or Hangs."""
        self.start()
        assert self._process is not None and self._process.stdin is not None
        with contextlib.suppress(OSError):  # if it has ended, the missing answer shows that
            self._process.stdin.write(f"{seed}\n")
            self._process.stdin.flush()
        return json.loads(self._answer(self._process))

    def kill(self) -> None:
        """Kills the process. Any thread may call this."""
        if (process := self._process) is not None:
            self.was_killed = True
            _kill(process)

    def close(self) -> None:
        if self._process is None:
            return
        _kill(self._process)
        self._process.wait()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        self._process = None

    def _answer(self, process: subprocess.Popen[str]) -> str:
        try:
            line = self._lines.get(timeout=MOST_ROUND_SECONDS)
        except queue.Empty:
            process.send_signal(signal.SIGUSR1)  # prints where its threads are
            time.sleep(DUMP_SECONDS)
            _kill(process)
            raise Hangs from None
        if not line:
            raise Ended(f"exit code {process.wait()}")
        return line


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str]) -> None:
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its forked children too


class Expected:
    """The digests of the reference, by seed, for the processes that compare with it."""

    def __init__(self, followers: int) -> None:
        self._changed = threading.Condition()
        self._digests: dict[int, str] = {}
        self._next = [0] * followers
        self.has_ended = False

    def wait_for_room(self, seed: int) -> bool:
        """Waits until the reference may run that seed. Returns False if the soak ends."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or seed < min(self._next) + LEAD)
            return not self.has_ended

    def add(self, seed: int, digest: str) -> None:
        with self._changed:
            self._digests[seed] = digest
            for old in [each for each in self._digests if each < min(self._next)]:
                del self._digests[old]
            self._changed.notify_all()

    def of(self, follower: int, seed: int) -> str | None:
        """Waits for the digest. Returns None if the soak ends."""
        with self._changed:
            self._next[follower] = seed
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.has_ended or seed in self._digests)
            return None if self.has_ended else self._digests[seed]

    def newest(self) -> tuple[int, str] | None:
        """Returns the latest seed and its digest, or None if the soak ends."""
        with self._changed:
            self._changed.wait_for(lambda: self.has_ended or self._digests)
            return None if self.has_ended else max(self._digests.items())

    def end(self) -> None:
        with self._changed:
            self.has_ended = True
            self._changed.notify_all()


class Soak:
    STEADY = ("first", "second")  # these live as long as the soak

    def __init__(self, folder: str) -> None:
        libraries = find_libraries()
        plain = {**without_settings(os.environ, "CUDA_", "LD_"), **FIXED_HEAP}
        plain["XDG_RUNTIME_DIR"] = folder  # the folder of programs that share a device
        if "UVMALLOC_LIB_DIR" in os.environ:
            plain["UVMALLOC_LIB_DIR"] = os.environ["UVMALLOC_LIB_DIR"]
        small, large = (Machine(DEVICES, size) for size in (CAPACITY_BYTES, NATIVE_CAPACITY_BYTES))
        self._native = without_uvmalloc(on_simulated_device(plain, libraries, large, None))
        self._native.pop("SOAK_PLANTED", None)
        self._ours = with_uvmalloc(
            on_simulated_device(plain, libraries, small, None),
            libraries,
            {"UVMALLOC_SHARE": "1", "UVMALLOC_LOG": "error"},
            None,
        )
        self._expected = Expected(len(self.STEADY))
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()  # of rounds, kills, and actions of rounds
        self.problems: Counter[str] = Counter()
        self.resident: dict[str, list[tuple[float, int]]] = {name: [] for name in self.STEADY}
        self._threads = [
            threading.Thread(target=self._run_reference),
            threading.Thread(target=self._run_victim),
            *(threading.Thread(target=self._run_steady, args=at) for at in enumerate(self.STEADY)),
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Lets processes finish their rounds, then stops them."""
        self._expected.end()
        for thread in self._threads:
            thread.join()

    @property
    def has_ended(self) -> bool:
        """Whether the soak has ended. True also if the reference has failed."""
        return self._expected.has_ended

    def needs_rounds(self, number: int) -> bool:
        """Whether a process has run fewer than `number` rounds. False after a failure."""
        rounds = min(len(samples) for samples in self.resident.values())
        return rounds < number and not self.problems

    def resident_bytes(self) -> int:
        return sum(samples[-1][1] for samples in self.resident.values() if samples)

    def _run_reference(self) -> None:
        with contextlib.closing(Rounds(self._native)) as rounds:
            for seed in itertools.count():
                if not self._expected.wait_for_room(seed):
                    break
                answer = self._answer("the reference", rounds, seed)
                if answer is None:
                    break
                self._expected.add(seed, answer["digest"])
        self._expected.end()

    def _run_steady(self, number: int, name: str) -> None:
        turns = 0
        with contextlib.closing(Rounds(self._ours)) as rounds:
            for seed in itertools.count():
                if (digest := self._expected.of(number, seed)) is None:
                    return
                if (answer := self._answer(name, rounds, seed)) is None:
                    continue
                self._compare(name, answer, digest)
                with self._lock:
                    self.resident[name].append((time.monotonic(), answer["resident_bytes"]))
                    self.counts["turns"] += answer["turns"] - turns
                turns = answer["turns"]

    def _run_victim(self) -> None:
        choose = random.Random(0)
        round_seconds = 1.0
        with contextlib.closing(Rounds(self._ours)) as rounds:
            while (newest := self._expected.newest()) is not None:
                seed, digest = newest
                death = threading.Timer(choose.uniform(0, round_seconds), rounds.kill)
                if choose.random() < KILLED_PART:
                    death.start()
                began = time.monotonic()
                answer = self._answer("victim", rounds, seed)
                death.cancel()
                if answer is not None:
                    round_seconds = time.monotonic() - began
                    self._compare("victim", answer, digest)

    def _answer(self, name: str, rounds: Rounds, seed: int) -> dict | None:
        try:
            return rounds.run(seed)
        except Hangs:
            self._note("hangs", f"{name} hangs in the round of seed {seed}")
        except Ended as ended:
            if rounds.was_killed:
                self._count({"kills": 1})
            else:
                self._note("ends", f"{name} ended in the round of seed {seed}: {ended}")
        return None

    def _compare(self, name: str, answer: dict, digest: str) -> None:
        self._count({"rounds": 1, **answer["counts"]})
        if answer["digest"] != digest:
            self._note("wrong values", f"{name} has other values in the round of {answer['seed']}")

    def _count(self, more: Mapping[str, int]) -> None:
        with self._lock:
            self.counts.update(more)

    def _note(self, kind: str, what: str) -> None:
        with self._lock:
            self.problems[kind] += 1
        print(f"soak: {what}", flush=True)


def growth(samples: list[tuple[float, int]]) -> float:
    """Returns the relative growth of memory in the last half of the time, by linear regression."""
    if len(samples) < FEWEST_ROUNDS:
        return 0.0  # another failure is reported instead
    middle = (samples[0][0] + samples[-1][0]) / 2
    times, sizes = zip(*(each for each in samples if each[0] >= middle), strict=True)
    slope = statistics.linear_regression(times, sizes).slope
    return slope * (times[-1] - times[0]) / statistics.fmean(sizes)


def describe(soak: Soak) -> str:
    counts, problems = soak.counts, soak.problems
    done = [f"{counts['rounds']:,} rounds"]
    done += [f"{problems[kind]} {kind}" for kind in PROBLEMS]
    done += [f"{counts[kind]} {kind}" for kind in ("kills", "fork", "graph", "turns")]
    return f"{', '.join(done)}; {soak.resident_bytes() >> 20} MiB resident"


def main(hours: float) -> int:
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(folder)
        try:
            while soak.needs_rounds(WARM_UP_ROUNDS):
                time.sleep(0.1)
            warm = {name: len(samples) for name, samples in soak.resident.items()}
            began = time.monotonic()
            minute = 1
            while not soak.has_ended and (
                time.monotonic() < began + hours * 3600
                or soak.needs_rounds(WARM_UP_ROUNDS + FEWEST_ROUNDS)
            ):
                time.sleep(0.1)
                if time.monotonic() >= began + 60 * minute:
                    print(f"minute {minute}: {describe(soak)}", flush=True)
                    minute += 1
        finally:
            soak.end()
    grown = max(growth(samples[warm[name] :]) for name, samples in soak.resident.items())
    print(f"soak: {describe(soak)}, {100 * grown:+.2f} % in the last half", flush=True)
    return 1 if soak.problems or grown >= MOST_GROWTH else 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1])))
