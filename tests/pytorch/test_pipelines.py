"""uvmalloc.pipeline: order, quotas, errors, ends. Nothing here needs torch but the last test."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvmalloc
from uvmalloc.pipelines import size_of

from tests.pytorch.conftest import Simulate


def stages_alive() -> int:
    return sum(thread.name.startswith("uvmalloc pipeline") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert stages_alive() == 0


@pytest.mark.parametrize("credits", [1, 2, 3])
@pytest.mark.parametrize("memory", [None, 4096])
def test_results_come_in_order_and_complete(credits: int, memory: int | None) -> None:
    made = uvmalloc.pipeline(
        (bytes(16) + bytes([number]) for number in range(100)),
        lambda item: (item, item[-1]),
        lambda pair: pair[1] * 2,
        credits=credits,
        memory=memory,
    )
    assert list(made) == [2 * number for number in range(100)]
    assert list(made) == []


def test_without_stages_the_source_is_read_ahead() -> None:
    assert list(uvmalloc.pipeline(range(5))) == [0, 1, 2, 3, 4]


def test_stages_run_at_the_same_time() -> None:
    both = threading.Barrier(2, timeout=60)

    def first(item: int) -> int:
        if item > 0:
            both.wait()  # while the second stage has the item before it
        return item

    def second(item: int) -> int:
        if item < 3:
            both.wait()  # while the first stage has the item after it
        return item

    assert list(uvmalloc.pipeline(range(4), first, second)) == [0, 1, 2, 3]


def test_a_slow_caller_stops_the_source() -> None:
    produced: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            produced.append(number)
            yield number

    reached = threading.Event()

    def stage(item: int) -> int:
        if item == 1:
            reached.set()
        return item

    with uvmalloc.pipeline(source(), stage, credits=2) as made:
        assert next(made) == 0
        assert reached.wait(60)
        # Two results, one of them held by the caller, and two behind the stage, at most.
        assert len(produced) <= 4


def test_items_together_never_exceed_the_quota() -> None:
    lock = threading.Lock()
    alive = peak = 0

    class Item:
        def __init__(self) -> None:
            nonlocal alive, peak
            self.nbytes = 1000
            with lock:
                alive += 1
                peak = max(peak, alive)

        def __del__(self) -> None:
            nonlocal alive
            with lock:
                alive -= 1

    made = uvmalloc.pipeline(
        (Item() for _ in range(200)), lambda item: item, memory=4000, item_bytes=1000, credits=3
    )
    for item in made:
        assert item.nbytes == 1000
    del item
    assert made.peak_bytes <= 4000
    assert peak <= 4 + 1  # the caller's variable holds one beyond its turn
    assert peak > 2, "else nothing ran ahead"


def test_a_quota_that_holds_no_item_is_named() -> None:
    with pytest.raises(ValueError, match=r"a memory quota of 150 bytes is too small"):
        uvmalloc.pipeline([b"x"], ("move", bytes), memory=150, item_bytes=100)


def test_an_item_larger_than_the_first_is_named_with_its_stage() -> None:
    made = uvmalloc.pipeline(
        [b"1" * 10, b"2" * 10, b"3" * 11], ("move", lambda item: item), memory=1000
    )
    assert next(made) == b"1" * 10
    assert next(made) == b"2" * 10
    with pytest.raises(ValueError, match=r"'source' made 11 bytes .* hold 10. Set item_bytes"):
        next(made)


@pytest.mark.parametrize("failing", ["source", "stage"])
def test_an_error_comes_after_the_items_before_it(failing: str) -> None:
    def source() -> Iterator[int]:
        yield from range(4)
        if failing == "source":
            raise OSError("the disk is gone")

    def stage(item: int) -> int:
        if failing == "stage" and item == 3:
            raise OSError("the disk is gone")
        return item

    made = uvmalloc.pipeline(source(), stage)
    got = []
    with pytest.raises(OSError, match="the disk is gone"):
        for item in made:
            got.append(item)
    assert got == ([0, 1, 2, 3] if failing == "source" else [0, 1, 2])


def test_a_stage_that_raises_stop_iteration_is_an_error_and_no_end() -> None:
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(uvmalloc.pipeline([1, 2], lambda item: next(iter([]))))


def test_a_caller_that_never_asks_again_is_named() -> None:
    moved = threading.Event()
    failed = threading.Event()

    def source() -> Iterator[int]:
        try:
            for number in range(50):
                if number == 3:
                    moved.set()
                yield number
        finally:
            failed.set()

    made = uvmalloc.pipeline(source(), timeout=0.05)
    assert next(made) == 0  # and keeps it
    for thread in list(threading.enumerate()):
        if thread.name.startswith("uvmalloc pipeline"):
            thread.join(60)  # its stages end by themselves
    with pytest.raises(TimeoutError, match="'consumer' has not acknowledged slot 0 of register"):
        next(made)


def test_closing_early_ends_all_stages() -> None:
    for _ in range(20):
        made = uvmalloc.pipeline(range(1000), lambda item: item, lambda item: item)
        assert next(made) == 0
        made.close()
        assert stages_alive() == 0
        assert list(made) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"credits": 0}, "credits is 0; accepted: a whole number from 1"),
        ({"credits": True}, "credits is True"),
        ({"memory": "lots"}, "memory is 'lots'; accepted: 512MiB"),
        ({"memory": 0}, "memory is 0"),
        ({"item_bytes": -1}, "item_bytes is -1"),
        ({"timeout": 0}, "timeout is 0; accepted: seconds above 0, or None"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        uvmalloc.pipeline([1], **options)


def test_a_stage_that_is_no_function_is_named() -> None:
    with pytest.raises(ValueError, match="stage 1 is 7; accepted: a function, or a pair"):
        uvmalloc.pipeline([1], str, 7)  # type: ignore[arg-type]


def test_memory_that_items_share_counts_once() -> None:
    whole = memoryview(bytearray(100))
    assert size_of({"a": b"12345", "b": [b"123", b"1"], "c": 7, "d": "text"}) == 9
    shared = bytearray(50)
    assert size_of([shared, (shared, {"again": shared})]) == 50
    assert size_of(whole) == 100


TRAINING = """
import torch, uvmalloc
torch.manual_seed(0)
batches = [torch.randn(64, 4096) for _ in range(12)]
torch.cuda.init()
def steps(source):
    total = torch.zeros((), device="cuda")
    for batch in source:
        total += (batch * 2).sum()
    return total.item()
plain = steps((batch + 1).to("cuda") for batch in batches)
made = uvmalloc.pipeline(
    batches, lambda b: b + 1, ("move", lambda b: b.to("cuda")), memory="8MiB", item_bytes="1MiB")
assert steps(made) == plain
assert 0 < made.peak_bytes <= 8 << 20, made.peak_bytes
print("same")
"""


@pytest.mark.parametrize("native", [True, False])
def test_batches_move_to_the_device_behind_the_computation(
    simulate: Simulate, native: bool
) -> None:
    assert simulate(TRAINING, native=native).check().stdout == "same\n"
