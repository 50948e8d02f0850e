"""Loads, prepares, moves and computes at the same time, under a fixed quota of memory.

Each stage is an actor with a thread of its own. A stage starts only if its item is ready and its
result has a credit (hints/credits.hpp), so a slow stage stops those before it instead of filling
memory.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from uvmalloc.sizes import EXAMPLES, parse_size
from uvmalloc.storage_calls import CreditError, CreditsGate, CreditStopped

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
    """Runs the items of `source` through `stages`, all at the same time. Results come in order.

        batches = uvmalloc.pipeline(loader, preprocess, lambda b: b.to("cuda"), memory="512MiB")
        for batch in batches:
            train(batch)

    Args:
        source: any iterable, for example a DataLoader.
        stages: functions of one item, each on a thread of its own. A pair gives one a name for
            messages; otherwise it is the function's.
        credits: how many results of each stage may exist at a time. 2 is double buffering.
        memory: bytes, or a size such as "512MiB", that all items together may take, from the source
            to the caller. An item counts until the caller asks for the next one.
        item_bytes: the most that an item takes, at any stage. By default the first item is run
            through all stages alone, and each stage's items may be as large as its first one.
        timeout: seconds within which a stage, or the caller, has to be done with an item.

    An error of the source or of a stage is raised where the caller asks for the next item. Items
    before it come first.

    Raises:
        ValueError: no such size or number; `memory` does not hold one item on its way through all
            stages; an item is larger than `item_bytes` or than the first one. The message names the
            stage.
        TimeoutError: a stage or the caller was not done in time; the message names it.
    """
    if isinstance(credits, bool) or not isinstance(credits, int) or credits < 1:
        raise ValueError(f"pipeline: credits is {credits!r}; accepted: a whole number from 1")
    if timeout is not None and not timeout > 0:
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
    """An iterator over the results; close() or the end of a `with` ends it early."""

    def __init__(
        self,
        source: Iterable[Any],
        stages: list[tuple[str, Stage]],
        credits: int,
        memory_bytes: int | None,
        item_bytes: int | None,
        timeout: float | None,
    ) -> None:
        self._source = iter(source)
        self._stages = stages
        self._credits = credits
        self._memory_bytes = memory_bytes
        self._item_bytes = item_bytes
        self._timeout = timeout
        self._gate: CreditsGate | None = None
        self._threads: list[threading.Thread] = []
        self._items: list[dict[int, Any]] = []  # by register: what its slots hold
        self._holds_item = False
        self._is_over = False
        self._failures: list[BaseException] = []  # of stages, the first one first
        if memory_bytes is None or item_bytes is not None:
            self._open([item_bytes or 0] * (len(stages) + 1))

    @property
    def peak_bytes(self) -> int:
        """The most that items have taken together, and were granted, so far."""
        return 0 if self._gate is None else self._gate.peak_bytes

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._is_over:
            raise StopIteration
        try:
            if self._gate is None:
                return self._first_item()
            return self._next_item(self._gate)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all stages after their current items. Results that were not given are lost."""
        self._is_over = True
        if self._gate is not None:
            self._gate.stop("the pipeline is closed")
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        self._threads.clear()
        self._items.clear()

    def __del__(self) -> None:
        if getattr(self, "_threads", None):
            self.close()

    # ---- the caller's side

    def _first_item(self) -> Any:
        """Runs alone, and shows how large items are. The threads start when it is done with."""
        item = next(self._source)
        sizes = [size_of(item)]
        for _, function in self._stages:
            item = function(item)
            sizes.append(size_of(item))
        self._open(sizes)
        return item

    def _next_item(self, gate: CreditsGate) -> Any:
        self._start_threads(gate)
        consumer = len(self._stages) + 1
        if self._holds_item:
            self._holds_item = False
            gate.finish(consumer)
        action = gate.start(consumer)
        if action is None:
            raise self._failures[0] if self._failures else StopIteration
        self._holds_item = True
        return self._items[-1].pop(action[0][0])

    def _open(self, slot_bytes: list[int]) -> None:
        gate = CreditsGate(self._memory_bytes)
        names = [_SOURCE, *(name for name, _ in self._stages), _CONSUMER]
        actors = [gate.add_actor(name) for name in names]
        for producer, size_bytes in zip(actors, slot_bytes, strict=False):
            gate.add_register(
                f"items of {names[producer]}", producer, [producer + 1], self._credits, size_bytes
            )
            self._items.append({})
        gate.open(self._timeout)
        self._gate = gate

    # ---- the stages' side

    def _start_threads(self, gate: CreditsGate) -> None:
        if self._threads:
            return
        for actor, name in enumerate([_SOURCE, *(name for name, _ in self._stages)]):
            thread = threading.Thread(
                target=_run_actor,
                args=(gate, actor, self._function(actor), self._items, self._failures),
                kwargs={"counts": self._memory_bytes is not None},
                name=f"uvmalloc pipeline: {name}",
                daemon=True,
            )
            self._threads.append(thread)
            thread.start()

    def _function(self, actor: int) -> Stage:
        source = self._source
        return (lambda _: next(source)) if actor == 0 else self._stages[actor - 1][1]


def _run_actor(
    gate: CreditsGate,
    actor: int,
    function: Stage,
    items: list[dict[int, Any]],
    failures: list[BaseException],
    *,
    counts: bool,
) -> None:
    """A thread of one stage. It holds no reference to the Pipeline, whose end must end it."""
    try:
        while (action := gate.start(actor)) is not None:
            item = items[actor - 1].pop(action[0][0]) if actor else None
            try:
                result = function(item)
            except StopIteration:
                if actor:
                    raise RuntimeError("a stage of the pipeline raised StopIteration") from None
                break
            del item
            if counts:
                gate.set_output_bytes(actor, size_of(result))
            items[actor][action[1][0]] = result
            del result
            gate.finish(actor)
    except CreditStopped:
        return
    except CreditError as error:
        failures.append(ValueError(f"pipeline: {error}. Set item_bytes to the most that one takes"))
    except BaseException as error:
        failures.append(error)
    # What it made before goes on to the caller.
    gate.abandon(actor)


def size_of(item: Any) -> int:
    """Bytes of the tensors, arrays and bytes in an item; memory that several share counts once."""
    storages: dict[int, int] = {}
    _add_storages(item, storages, set())
    return sum(storages.values())


def _add_storages(item: Any, storages: dict[int, int], seen: set[int]) -> None:
    if isinstance(item, str | int | float | bool | None) or id(item) in seen:
        return
    seen.add(id(item))
    if hasattr(item, "untyped_storage"):
        storage = item.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    elif isinstance(item, bytes | bytearray):
        storages[id(item)] = len(item)
    elif isinstance(getattr(item, "nbytes", None), int):
        owner = item
        while hasattr(getattr(owner, "base", None), "nbytes"):
            owner = owner.base
        storages[id(owner)] = owner.nbytes
    elif isinstance(item, Mapping):
        for value in item.values():
            _add_storages(value, storages, seen)
    elif isinstance(item, list | tuple | set | frozenset):
        for value in item:
            _add_storages(value, storages, seen)
    elif dataclasses.is_dataclass(item) and not isinstance(item, type):
        for field in dataclasses.fields(item):
            _add_storages(getattr(item, field.name), storages, seen)
