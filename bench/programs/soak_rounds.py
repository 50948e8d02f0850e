"""Runs rounds of random work: threads, streams, moves, graphs, forks. soak.py drives this program.

Reads a seed per line, runs its round, and prints one line of JSON: the seed, a digest of all
values, counts of the actions, and the process's resident memory. A seed gives the same digest with
torch's own allocators and under uvmalloc. SIGUSR1 prints where each thread is.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable

import torch
import uvmalloc

from bench.programs import random_moves
from bench.programs.random_loops import resident_bytes

ELEMENTS = (1 << 18, (1 << 18) + 24, 1 << 19)  # of float32; from 1 MiB on moves do not copy
MOVES = 12
BATCHES = 6
REPLAYS = 3
LANES = 3
# Torch requires that graphs are captured one at a time.
capturing = threading.Lock()
# By lane and device: its main stream, a second one, and one to capture. Torch hands out its 32
# streams of a device in rotation, but a capturing stream must have no other user.
streams: dict[tuple[int, int], list[torch.cuda.Stream]] = {}
# An injected fault, which soak.py must find: "wrong", "leak", "hang" or "crash".
PLANTED = os.environ.get("SOAK_PLANTED")
_leaked: list[torch.Tensor] = []


class Lane:
    """The work of one thread of a round, with its own random numbers, stream and tensors."""

    def __init__(self, seed: int, number: int) -> None:
        self.number = number
        self.choose = random.Random(f"{seed} {number}")
        self.seen: list[str] = []
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        torch.set_num_threads(1)
        device = self.choose.randrange(torch.cuda.device_count())
        own, self.side, self.captured = streams[self.number, device]
        with torch.cuda.device(device), torch.cuda.stream(own):
            kinds: list[Callable[[], None]] = [self.moves, self.batches, self.graph, self.fork]
            for kind in self.choose.sample(kinds, len(kinds)):
                kind()
                self.counts[kind.__name__] += 1

    def note(self, *values: object) -> None:
        self.seen.append(" ".join(map(str, values)))

    def moves(self) -> None:
        tensors = [random_moves.fresh(self.choose) for _ in range(random_moves.TENSORS)]
        for _ in range(MOVES):
            action = random_moves.step(self.choose, tensors)
            totals = [f"{tensor.device}:{random_moves.total(tensor)}" for tensor in tensors]
            self.note(action, *totals)

    def batches(self) -> None:
        """Moves and uses batches on another stream than the stream of their allocation."""
        pinned = self.choose.random() < 0.5
        kept: list[torch.Tensor] = []
        for step in range(BATCHES):
            batch = torch.full((self.choose.choice(ELEMENTS),), float(step), pin_memory=pinned)
            with torch.cuda.stream(self.side):
                moved = batch.to("cuda", non_blocking=True)
                moved += 1
                result = moved * 2
            torch.cuda.current_stream().wait_stream(self.side)
            result.record_stream(torch.cuda.current_stream())
            kept.append(result + 1)
            self.note(batch[-1].item(), kept[-1][-1].item())
            if step % 3 == 2:
                self.note(*(random_moves.total(each.cpu()) for each in kept))
                kept.clear()

    def graph(self) -> None:
        size = self.choose.choice(ELEMENTS)
        x = torch.full((size,), float(self.choose.randrange(9)), device="cuda")
        torch.cuda.current_stream().synchronize()
        graph = torch.cuda.CUDAGraph()
        with capturing, torch.cuda.stream(self.captured):
            graph.capture_begin(capture_error_mode="thread_local")
            inside = x * 2
            out = inside + x
            del inside
            graph.capture_end()
        others = [torch.full((size,), 5.0, device="cuda") for _ in range(2)]
        for replay in range(REPLAYS):
            x.fill_(replay)
            graph.replay()
            self.note(random_moves.total(out), *map(random_moves.total, others))
        torch.cuda.current_stream().synchronize()
        graph.reset()

    def fork(self) -> None:
        """Checks that a child keeps the host's tensors as they are now, whatever the parent does
        next.
        """
        size = self.choose.choice(ELEMENTS)
        host = torch.full((size,), float(self.choose.randrange(9)))
        moved = host.to("cuda")
        moved += 1
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            host += 1
            os.write(write, f"{host[0].item()} {host[-1].item()}".encode())
            os._exit(0)
        os.close(write)
        host += 7
        with os.fdopen(read) as pipe:
            said = pipe.read()
        _, status = os.waitpid(child, 0)
        self.note(said, status, random_moves.total(host), random_moves.total(moved))


def run_round(seed: int) -> tuple[str, Counter[str]]:
    """Returns the digest of all values that the round's threads have seen, and action counts."""
    lanes = [Lane(seed, number) for number in range(random.Random(seed).randint(1, LANES))]
    failed: list[BaseException] = []

    def run(lane: Lane) -> None:
        try:
            lane.run()
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=run, args=(lane,)) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    seen = "\n".join(line for lane in lanes for line in lane.seen)
    counts = sum((lane.counts for lane in lanes), Counter())
    return hashlib.sha256(seen.encode()).hexdigest(), counts


def give_back() -> None:
    """Releases caches. Remaining memory is in use or leaked."""
    gc.collect()
    for device in range(torch.cuda.device_count()):
        torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()


def turns() -> int:
    """Returns the number of turns of this process, over all devices."""
    return sum(device["turns"] for device in uvmalloc.stats().get("shared_devices", []))


def plant(seed: int, digest: str) -> str:
    if PLANTED == "leak":
        _leaked.append(torch.ones(ELEMENTS[0] * 8))
    if PLANTED == "hang" and seed == 3:
        time.sleep(3600)
    if PLANTED == "crash" and seed == 3:
        os.abort()
    return "planted" if PLANTED == "wrong" and seed == 3 else digest


def main() -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    warnings.simplefilter("ignore")  # rounds do things that torch and Python warn about
    torch.cuda.init()
    for device in range(torch.cuda.device_count()):
        for lane in range(LANES):
            streams[lane, device] = [torch.cuda.Stream(device) for _ in range(3)]
    print("ready", flush=True)
    for line in sys.stdin:
        seed = int(line)
        digest, counts = run_round(seed)
        give_back()
        answer = {
            "seed": seed,
            "digest": plant(seed, digest),
            "counts": counts,
            "resident_bytes": resident_bytes(),
            "turns": turns(),
        }
        print(json.dumps(answer), flush=True)
    os._exit(0)  # torch's autograd threads may take the interpreter lock while it ends


if __name__ == "__main__":
    main()
