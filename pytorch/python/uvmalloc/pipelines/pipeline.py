"""Loads, prepares, moves and computes at the same time, under a fixed quota of memory.

Each stage is an actor with its own thread. A stage starts only if its item is ready and its result
has a credit (pipelines/credits/credits.hpp). So a slow stage stops the stages before it, and they
do not fill memory.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import TYPE_CHECKING, Any

from uvmalloc.pipelines.caller_state import (
    GRACE_SECONDS,
    WAIT_SECONDS,
    CallerState,
    refuse_capture,
)
from uvmalloc.pipelines.calls import CreditError, CreditsGate, CreditStopped
from uvmalloc.sizes import EXAMPLES, parse_size

if TYPE_CHECKING:
    import torch

_SOURCE = "source"
_CONSUMER = "consumer"
Stage = Callable[[Any], Any]


def pipeline(
    source: Iterable[Any],
    *stages: Stage | tuple[str, Stage],
    credits: int = 2,
    memory: int | str | None = None,
    item_bytes: int | str | None = None,
    timeout: float | None = None,
) -> Pipeline:
    """Runs items of `source` through all `stages` concurrently. Results come in order.

        batches = uvmalloc.pipeline(loader, preprocess, lambda b: b.to("cuda"), memory="512MiB")
        for batch in batches:
            train(batch)

    Args:
        source: any iterable, for example a DataLoader.
        stages: functions of one item, each on its own thread. A pair of a name and a function names
            the stage in messages; the default is the function's name.
        credits: how many results of each stage may exist at a time. 2 is double buffering.
        memory: bytes, or a size such as "512MiB", that all items together may take, from the source
            to the caller. An item counts until the caller requests the next one.
        item_bytes: the most bytes that an item takes at any stage. By default, the first item runs
            through all stages before other items start, and at each stage later items may be as
            large as the first one.
        timeout: seconds that the source, a stage or the caller may take for an item.

    The source and the stages run as if the caller had called them when it requests an item: on its
    current device and streams, with its modes of gradients, inference and autocast, its default
    device, its hooks for saved tensors and its uvmalloc.region. An item that is started ahead gets
    the state of the caller's last request so far. If the caller requests the item on another
    stream, that stream waits for the item, and the item's memory is not reused before that stream's
    work has ended.

    An error of the source or of a stage is raised when the caller requests the next item. Items
    before the error come first. A stage that is still running ends after its current item; the
    caller does not wait for the stage. Signal handlers run while the caller waits, so Ctrl-C ends
    the wait. Only one thread at a time may request items.

    Raises:
        ValueError: an argument is not a valid size or number; `memory` is too small for one item to
            pass through all stages; an item is larger than `item_bytes` or than the first item. The
            message names the stage.
        TimeoutError: the source, a stage or the caller took too long. The message names it.
        RuntimeError: another process created the pipeline; or the caller's current stream is being
            captured.
    """
    if isinstance(credits, bool) or not isinstance(credits, int) or credits < 1:
        raise ValueError(f"pipeline: credits is {credits!r}; accepted: a whole number from 1")
    if timeout is not None and not (isinstance(timeout, int | float) and timeout > 0):
        raise ValueError(f"pipeline: timeout is {timeout!r}; accepted: seconds above 0, or None")
    named = [_named(stage, number) for number, stage in enumerate(stages)]
    return Pipeline(
        source, named, credits, _size("memory", memory), _size("item_bytes", item_bytes), timeout
    )


def _named(stage: Any, number: int) -> tuple[str, Stage]:
    name, function = stage if isinstance(stage, tuple) and len(stage) == 2 else (None, stage)
    if not callable(function):
        raise ValueError(f"pipeline: stage {number} is {stage!r}; accepted: a function, or a pair")
    return str(name or getattr(function, "__name__", f"stage {number}")), function


def _size(name: str, given: int | str | None) -> int | None:
    if given is None:
        return None
    try:
        size_bytes = parse_size(str(given)) if not isinstance(given, bool) else 0
    except ValueError:
        size_bytes = 0
    if size_bytes < 1:
        raise ValueError(f"pipeline: {name} is {given!r}; accepted: {EXAMPLES}")
    return size_bytes


class Pipeline:
    """An iterator over the results; close() or the end of a `with` ends it early.

    One thread at a time may request results.
    """

    def __init__(
        self,
        source: Iterable[Any],
        stages: list[tuple[str, Stage]],
        credits: int,
        memory_bytes: int | None,
        item_bytes: int | None,
        timeout: float | None,
    ) -> None:
        iterator = iter(source)
        self._names = [_SOURCE, *(name for name, _ in stages), _CONSUMER]
        self._consumer = len(stages) + 1
        self._credits = credits
        self._timeout = timeout
        self._threads: list[threading.Thread] = []
        self._process = os.getpid()
        self._holds_item = False
        self._is_over = False
        self._rest_gate: CreditsGate | None = None
        self._shared = _Shared(
            [lambda _: next(iterator), *(function for _, function in stages)],
            [{} for _ in range(self._consumer)],
            counts_bytes=memory_bytes is not None,
        )
        self._memory_bytes = memory_bytes
        _open_pipelines.add(self)
        if memory_bytes is None or item_bytes is not None:
            self._shared.rest.set_result(None)
            self._gate = self._open(memory_bytes, credits, [item_bytes or 0] * self._consumer)
        else:
            # Run the first item alone, to measure how large items are.
            self._gate = self._open(None, 1, [0] * self._consumer)

    @property
    def peak_bytes(self) -> int:
        """The most bytes that items have held together so far."""
        return self._gate.peak_bytes

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            return self._next_item()
        except BaseException:
            self._end(GRACE_SECONDS)
            raise

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self._end(None if error is None else GRACE_SECONDS)

    def close(self) -> None:
        """Ends all stages after their current items, and waits for them. Other results are lost."""
        self._end(None)

    def __del__(self) -> None:
        if getattr(self, "_threads", None):
            self._end(GRACE_SECONDS)

    # ---- the caller's side

    def _next_item(self) -> Any:
        if os.getpid() != self._process:
            raise RuntimeError(
                "pipeline: its stages are threads of the process that has forked this one; make "
                "a pipeline of its own in each process"
            )
        refuse_capture("pipeline", "the graph would record what its threads do for later items")
        caller = CallerState.now()
        self._shared.caller = caller.elsewhere()
        self._start_threads()
        if self._holds_item:
            self._holds_item = False
            self._gate.finish(self._consumer)
        if self._rest_gate is not None:
            self._gate, self._rest_gate = self._rest_gate, None
            self._shared.rest.set_result(self._gate)
        while not self._gate.wait(self._consumer, WAIT_SECONDS):
            pass  # between two waits, the interpreter handles signals
        try:
            action = self._gate.start(self._consumer)
        except CreditStopped:  # another thread has closed the pipeline
            raise StopIteration from None
        if action is None:
            raise self._shared.failures[0] if self._shared.failures else StopIteration
        self._holds_item = True
        item, made_under = self._shared.items[-1].pop(action[0][0])
        if not self._shared.rest.done():
            sizes = self._shared.first_bytes
            self._rest_gate = self._open(self._memory_bytes, self._credits, sizes)
        caller.follow(made_under, lambda: _tensors(item))
        return item

    def _open(
        self, memory_bytes: int | None, credits: int, slot_bytes: Sequence[int]
    ) -> CreditsGate:
        gate = CreditsGate(memory_bytes)
        actors = [gate.add_actor(name) for name in self._names]
        for producer, size_bytes in zip(actors, slot_bytes, strict=False):
            register = f"items of {self._names[producer]}"
            gate.add_register(register, producer, [producer + 1], credits, size_bytes)
        gate.open(self._timeout)
        return gate

    def _end(self, most_seconds: float | None) -> None:
        """Ends all stages after their current items. Waits at most `most_seconds`, or without a
        limit if None.
        """
        self._is_over = True
        if os.getpid() != self._process:
            return
        for gate in (self._gate, self._rest_gate):
            if gate is not None:
                gate.stop("the pipeline is closed")
        with contextlib.suppress(InvalidStateError):  # already set
            self._shared.rest.set_result(None)
        end = math.inf if most_seconds is None else time.monotonic() + most_seconds
        for thread in self._threads:
            while thread is not threading.current_thread() and thread.is_alive():
                left_seconds = end - time.monotonic()
                if left_seconds <= 0:
                    break
                thread.join(min(left_seconds, WAIT_SECONDS))
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        for items in self._shared.items:
            items.clear()

    def _start_threads(self) -> None:
        if self._threads:
            return
        for actor, name in enumerate(self._names[:-1]):
            thread = threading.Thread(
                target=_run_stage,
                args=(self._shared, actor, self._gate),
                name=f"uvmalloc pipeline: {name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()


_open_pipelines: weakref.WeakSet[Pipeline] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Ends the stages before the interpreter stops their threads anywhere, even inside a kernel."""
    for pipeline in list(_open_pipelines):
        pipeline._end(GRACE_SECONDS)


# ---- the stages' side


@dataclasses.dataclass
class _Shared:
    """State that the caller and all stages share.

    It does not refer to the Pipeline: stages must not keep the Pipeline alive, because its deletion
    ends them. Lists are indexed by register, that is, by the actor that fills the register.
    """

    functions: list[Stage]
    items: list[dict[int, tuple[Any, CallerState]]]  # by slot, with the item's state
    counts_bytes: bool
    first_bytes: list[int] = dataclasses.field(init=False)  # sizes of the first item
    caller: CallerState = dataclasses.field(init=False)  # state at the caller's last request
    failures: list[BaseException] = dataclasses.field(default_factory=list)
    # The gate for all items after the first, if the first ran alone; None: no such gate.
    rest: Future[CreditsGate | None] = dataclasses.field(default_factory=Future)

    def __post_init__(self) -> None:
        self.first_bytes = [0] * len(self.functions)


def _run_stage(shared: _Shared, actor: int, gate: CreditsGate) -> None:
    if shared.rest.done():
        _run_actor(shared, actor, gate, shared.counts_bytes)
        return
    if _run_actor(shared, actor, gate, counts_bytes=False, only_first=True):
        rest = shared.rest.result()
        if rest is not None:
            _run_actor(shared, actor, rest, counts_bytes=True)


def _run_actor(
    shared: _Shared, actor: int, gate: CreditsGate, counts_bytes: bool, only_first: bool = False
) -> bool:
    """Runs the actor's items, or only the first one. Returns whether there may be more."""
    try:
        while (action := gate.start(actor)) is not None:
            caller = shared.caller
            entry = shared.items[actor - 1].pop(action[0][0]) if actor else (None, caller)
            try:
                result = caller.run(_act, caller, shared.functions[actor], *entry)
            except StopIteration:
                if actor:
                    raise RuntimeError("a stage of the pipeline raised StopIteration") from None
                break
            del entry
            if counts_bytes:
                gate.set_output_bytes(actor, size_of(result))
            if only_first:
                shared.first_bytes[actor] = size_of(result)
            shared.items[actor][action[1][0]] = (result, caller)
            del result
            gate.finish(actor)
            if only_first:
                return True
    except CreditStopped:
        return False
    except CreditError as error:
        message = f"pipeline: {error}. Set item_bytes to the size of the largest item"
        shared.failures.append(ValueError(message))
    except BaseException as error:
        shared.failures.append(error)
    # Items that the actor made before the failure still reach the caller.
    gate.abandon(actor)
    return False


def _act(caller: CallerState, function: Stage, item: Any, made_under: CallerState) -> Any:
    caller.follow(made_under, lambda: _tensors(item))
    return function(item)


# ---- what items hold


def size_of(item: Any) -> int:
    """Returns the bytes of tensors, arrays and `bytes` in an item. Shared memory counts once."""
    sizes: dict[int, int] = {}
    for part in _parts(item, set()):
        if hasattr(part, "untyped_storage"):
            storage = part.untyped_storage()
            sizes[storage._cdata] = storage.nbytes()
        elif isinstance(part, bytes | bytearray):
            sizes[id(part)] = len(part)
        else:
            owner = part
            while hasattr(getattr(owner, "base", None), "nbytes"):
                owner = owner.base
            sizes[id(owner)] = owner.nbytes
    return sum(sizes.values())


def _tensors(item: Any) -> Iterator[torch.Tensor]:
    return (part for part in _parts(item, set()) if hasattr(part, "untyped_storage"))


def _parts(item: Any, seen: set[int]) -> Iterator[Any]:
    """Yields the tensors, arrays and `bytes` in an item, each once."""
    if isinstance(item, str | int | float | bool | None) or id(item) in seen:
        return
    seen.add(id(item))
    inner: Iterable[Any] = ()
    if (
        hasattr(item, "untyped_storage")
        or isinstance(item, bytes | bytearray)
        or isinstance(getattr(item, "nbytes", None), int)
    ):
        yield item
    elif isinstance(item, Mapping):
        inner = item.values()
    elif isinstance(item, list | tuple | set | frozenset):
        inner = item
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        inner = [getattr(item, field.name) for field in dataclasses.fields(item)]
    for part in inner:
        yield from _parts(part, seen)
