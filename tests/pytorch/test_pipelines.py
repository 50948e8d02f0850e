"""uvmalloc.pipeline: order, quotas, errors, ends. Only the last test needs torch."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import uvmalloc
from uvmalloc.pipelines.calls import CreditsGate
from uvmalloc.pipelines.pipeline import size_of

from tests.pytorch.conftest import Simulate


def stages_alive() -> int:
    return sum(thread.name.startswith("uvmalloc pipeline") for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("uvmalloc pipeline"):
            thread.join(60)
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


def test_the_garbage_collector_may_end_the_gate_before_its_pipeline() -> None:
    gate = CreditsGate()
    gate.__del__()
    gate.stop("the pipeline is closed")
    assert gate._handle is None, "the gate is ended once"


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
        # At most two results, one of them with the caller, and two items behind the stage.
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
    assert peak <= 4 + 1  # the caller's variable holds one item too long
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
    assert next(made) == 0  # and the caller keeps it
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
        ({"timeout": "x"}, "timeout is 'x'; accepted: seconds above 0, or None"),
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


class Stuck:
    """A stage or a source that stands still until the test ends."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.released = threading.Event()

    def __enter__(self) -> Stuck:
        return self

    def __exit__(self, *_: object) -> None:
        self.released.set()

    def __call__(self, item: Any = None) -> Any:
        self.reached.set()
        assert self.released.wait(120)
        return item

    def __iter__(self) -> Iterator[Any]:
        yield self()


@pytest.mark.parametrize("memory", [None, "1MiB"])
@pytest.mark.parametrize("stuck_in", ["source", "stage"])
def test_a_timeout_does_not_wait_for_what_is_stuck(stuck_in: str, memory: str | None) -> None:
    with Stuck() as stuck:
        source = stuck if stuck_in == "source" else [1]
        made = uvmalloc.pipeline(source, ("act", stuck), memory=memory, timeout=0.05)
        late = "'source' has not made" if stuck_in == "source" else "'act' has not acknowledged"
        with pytest.raises(TimeoutError, match=late), made:
            next(made)
        assert stages_alive() == 1
        assert list(made) == []


@pytest.mark.parametrize("memory", [None, "1MiB"])
def test_an_error_does_not_wait_for_what_is_stuck(memory: str | None) -> None:
    with Stuck() as stuck:

        def source() -> Iterator[int]:
            yield 1
            yield 2
            stuck()

        def stage(item: int) -> int:
            if item == 2:
                assert stuck.reached.wait(60)
                raise OSError("the disk is gone")
            return item

        with (
            pytest.raises(OSError, match="the disk is gone"),
            uvmalloc.pipeline(source(), stage, memory=memory) as made,
        ):
            list(made)
        assert stages_alive() == 1


SIGNALS = """
import os, signal, sys, threading, uvmalloc
stuck, waiting, released, handled = (threading.Event() for _ in range(4))
def stand(item=None):
    stuck.set()
    released.wait(120)
    print('the stage has ended first')
signal.signal(signal.SIGALRM, lambda *_: handled.set())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
last = getattr(signal, sys.argv[1])
def send():
    stuck.wait()
    waiting.wait()
    os.kill(os.getpid(), signal.SIGALRM)
    if not handled.wait(60):
        print('SIGALRM was not handled')
    os.kill(os.getpid(), last)
threading.Thread(target=send, daemon=True).start()
made = uvmalloc.pipeline([1], stand, memory='1MiB' if 'memory' in sys.argv else None)
try:
    if 'close' in sys.argv:
        found = []
        reader = threading.Thread(target=lambda: found.append(next(made, 'closed')), daemon=True)
        reader.start()
        stuck.wait()
        waiting.set()
        made.close()
    else:
        waiting.set()
        with made:
            next(made)
except KeyboardInterrupt:
    print('interrupted')
except SystemExit as end:
    print('ended with', end.code)
if 'close' in sys.argv:
    reader.join(60)
    print(*found)
"""


@pytest.mark.parametrize("options", [(), ("memory",), ("close",)])
@pytest.mark.parametrize(("name", "said"), [("SIGINT", "interrupted"), ("SIGTERM", "ended with 7")])
def test_signals_are_handled_while_the_caller_waits(
    simulate: Simulate, name: str, said: str, options: tuple[str, ...]
) -> None:
    run = simulate(SIGNALS, name, *options, native=True).check()
    assert run.stdout.splitlines() == [said, *(["closed"] if "close" in options else [])]


STATE = """
import contextlib, contextvars, threading, torch, uvmalloc
variable = contextvars.ContextVar('variable', default=0)
torch.cuda.init()
on_a_side_stream = torch.cuda.Stream(1)
weight = torch.ones(2, 2, requires_grad=True)
thread = threading.local()
def packed():
    thread.__dict__.setdefault('count', 0)
    return thread.count
def pack(tensor):
    thread.count = packed() + 1
    return tensor
def state(item):
    before = packed()
    tensor = torch.ones(2)
    product = torch.nn.functional.linear(torch.ones(1, 2, device='cpu'), weight)
    (weight * weight).sum()  # saves tensors
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), tensor.is_inference(),
        product.requires_grad, product.dtype, torch.is_autocast_enabled('cuda'),
        torch.get_autocast_dtype('cuda'), torch.is_autocast_cache_enabled(),
        torch.cuda.current_device(), torch.cuda.current_stream(0), torch.cuda.current_stream(1),
        torch.ones(2, device='cuda').device, tensor.device, variable.get(), packed() - before)
def source():
    while True:
        yield state(None)
both = lambda item: (item, state(item))
def streams():
    return torch.cuda.device(1), torch.cuda.stream(on_a_side_stream)
hooks = lambda: torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
@contextlib.contextmanager
def context():
    token = variable.set(3)
    yield
    variable.reset(token)
CONTEXTS = {
    'none': lambda: (),
    'no_grad': lambda: (torch.no_grad(),),
    'inference': lambda: (torch.inference_mode(),),
    'enable_grad in inference': lambda: (torch.inference_mode(), torch.enable_grad()),
    'autocast': lambda: (torch.autocast('cpu', torch.bfloat16),),
    'autocast cuda': lambda: (torch.autocast('cuda', torch.bfloat16, cache_enabled=False),),
    'device': lambda: (torch.cuda.device(1),),
    'stream': streams,
    'default device': lambda: (torch.device('cuda:1'),),
    'meta': lambda: (torch.device('meta'),),
    'hooks': lambda: (hooks(),),
    'variable': lambda: (context(),),
    'all': lambda: (torch.no_grad(), torch.autocast('cpu'), *streams(), torch.device('cuda:0'),
                    hooks(), context()),
}
for name, contexts in CONTEXTS.items():
    for options in ({}, {'memory': '1MiB'}, {'credits': 1}):
        made = uvmalloc.pipeline(source(), both, **options)
        with contextlib.ExitStack() as stack:
            for entered in contexts():
                stack.enter_context(entered)
            wanted = both(state(None))
            for number in range(4):
                found = next(made)
                assert found == wanted, (name, options, number, found, wanted)
        made.close()
# The caller's casts of weights are still there afterwards.
with torch.autocast('cpu', torch.bfloat16):
    torch.autocast_increment_nesting()
    list(uvmalloc.pipeline([1, 2], state))
    assert torch.autocast_decrement_nesting() == 1
print('same')
"""


@pytest.mark.parametrize("native", [True, False])
def test_stages_run_as_if_the_caller_had_called_them(simulate: Simulate, native: bool) -> None:
    assert simulate(STATE, native=native, devices=2).check().stdout == "same\n"


REGION = """
import torch, uvmalloc
torch.cuda.init()
def managed(_):
    return torch.ops.uvmalloc.is_managed(torch.empty(1 << 20))
def too_much(_):
    try:
        torch.empty(1 << 20, device='cuda')
    except torch.OutOfMemoryError as error:
        return 'budget' in str(error)
for options in ({}, {'memory': '1MiB'}):
    with uvmalloc.region(managed=False, budget='1MiB'):
        print(list(uvmalloc.pipeline([1, 2], managed, **options)),
              list(uvmalloc.pipeline([1, 2], too_much, **options)))
    print(list(uvmalloc.pipeline([1, 2], managed, **options)),
          list(uvmalloc.pipeline([1, 2], too_much, **options)))
"""


def test_a_region_of_the_caller_holds_in_stages(simulate: Simulate) -> None:
    inside, outside = "[False, False] [True, True]\n", "[True, True] [None, None]\n"
    assert simulate(REGION).check().stdout == (inside + outside) * 2


HAND_OVER = """
import threading, torch, uvmalloc
torch.cuda.init()
side = torch.cuda.Stream()
order = []
begun = threading.Event()
def make(number):
    if number == 1:
        begun.set()  # under the state of the first request
    return {'x': [torch.full((4,), number, device='cuda')]}
wait, record = torch.cuda.Stream.wait_stream, torch.Tensor.record_stream
torch.cuda.Stream.wait_stream = lambda self, other: (
    order.append(('wait', self == side)), wait(self, other))[1]
torch.Tensor.record_stream = lambda self, stream: (
    order.append(('record', stream == side)), record(self, stream))[1]
made = uvmalloc.pipeline(range(2), make)
next(made)
assert begun.wait(60) and order == []
with torch.cuda.stream(side):
    next(made)
assert order == [('wait', True), ('record', True)], order
assert list(made) == []
print('ordered')
"""


def test_an_item_made_on_another_stream_is_waited_for(simulate: Simulate) -> None:
    assert simulate(HAND_OVER).check().stdout == "ordered\n"


PER_THREAD = """
import torch, uvmalloc
torch.cuda.init()
begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
def slow(number):
    torch.cuda._sleep(10**9)
    return number
with torch.cuda.stream(torch.cuda.ExternalStream(2)):  # cudaStreamPerThread
    begin.record()
    slow(0)
    middle.record()
    assert list(uvmalloc.pipeline([1], slow)) == [1]
    end.record()
torch.cuda.synchronize()
assert begin.elapsed_time(middle) > 0
assert middle.elapsed_time(end) >= begin.elapsed_time(middle) * 0.999
print('ordered')
"""


def test_the_callers_per_thread_stream_waits_for_the_stages(simulate: Simulate) -> None:
    """The stream has one name in all threads, but is another stream in each thread."""
    assert simulate(PER_THREAD).check().stdout == "ordered\n"


OPEN_AT_THE_END = """
import itertools, torch, uvmalloc
made = uvmalloc.pipeline(itertools.count(), lambda number: torch.full((1 << 16,), 1.0).cuda().sum())
print(next(made).item(), flush=True)
if 'error' in __import__('sys').argv:
    raise SystemExit(3)
"""


@pytest.mark.fresh_start
@pytest.mark.parametrize(("options", "code"), [((), 0), (("error",), 3)])
def test_a_program_may_end_while_stages_run(
    simulate: Simulate, options: tuple[str, ...], code: int
) -> None:
    for _ in range(3):
        run = simulate(OPEN_AT_THE_END, *options)
        assert (run.returncode, run.stdout, run.stderr) == (code, "65536.0\n", "")


FORKED = """
import os, uvmalloc
made = uvmalloc.pipeline(range(100))
next(made)
child = os.fork()
if child == 0:
    try:
        next(made)
    except RuntimeError as error:
        print(error, flush=True)
    made.close()
    del made
    print(list(uvmalloc.pipeline(range(3))), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], next(made))
"""


def test_a_forked_child_gets_an_error_and_no_hang(simulate: Simulate) -> None:
    lines = simulate(FORKED, native=True).check().stdout.splitlines()
    assert lines[0].startswith("pipeline: its stages are threads of the process that has forked")
    assert lines[1:] == ["[0, 1, 2]", "0 1"]


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
