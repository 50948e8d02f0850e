"""Queues between processes cannot carry CUDA tensors in managed memory.

A queue pickles in a thread of its own. An error in that thread reaches neither the caller of `put`
nor the process that waits in `get`. This file raises the error in both at once. uvmalloc
contains the text of this file between those of after_import.py and torch_names.py. So this file
imports only the standard library and after_import.
"""

from __future__ import annotations

import collections
import functools
import sys
import threading
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from uvmalloc.after_import import after_import


def watch_queues() -> None:
    """Makes `put` of a CUDA tensor raise in both processes: now, or when queues are imported.

    Classes of queues that handle errors of their thread themselves are not changed.
    """
    after_import({"multiprocessing.queues": _watch})


class _Refusal:
    """Sent in place of the object. Unpickling it raises an error, even without uvmalloc."""

    def __init__(self, reason: str) -> None:
        self.reason = f"the process that put a CUDA tensor into this queue got an error: {reason}"

    def __reduce__(self) -> Any:
        return exec, (f"raise NotImplementedError({self.reason!r})",)


def _watch(queues: ModuleType) -> None:
    queue = queues.Queue
    if hasattr(queue.put, "__wrapped__"):
        return
    in_thread = queue._on_queue_feeder_error

    def on_error(self: Any, error: Exception, sent: object) -> None:
        in_thread(error, sent)
        if _is_refusal(error):
            _put_instead(self, _Refusal(str(error)))

    queue._on_queue_feeder_error = on_error
    for kind in (queue, queues.JoinableQueue):
        kind.put = _refusing(kind.put, on_error)


def _put_instead(queue: Any, refusal: _Refusal) -> None:
    """Replaces the object that the queue's thread failed to pickle. Called by that thread.

    If a caller of `put` has taken the free place by then, the refusal waits for another place.
    """
    if queue._sem.acquire(block=False):
        queue._buffer.appendleft(refusal)
    else:
        put = type(queue).put
        threading.Thread(target=put, args=(queue, refusal), daemon=True).start()


def _refusing(put: Callable[..., None], on_error: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(put)
    def refusing(self: Any, obj: Any, block: bool = True, timeout: float | None = None) -> None:
        reports = type(self)._on_queue_feeder_error is on_error
        reason = _reason_to_refuse(obj) if reports else None
        if reason is None:
            return put(self, obj, block, timeout)
        put(self, _Refusal(reason), block, timeout)
        raise NotImplementedError(reason)

    return refusing


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, NotImplementedError) and "uvmalloc" in str(error)


def _reason_to_refuse(sent: object) -> str | None:
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return None
    for tensor in _tensors_in(sent, torch):
        if tensor.is_cuda and torch.ops.uvmalloc.is_managed(tensor):
            try:
                tensor.untyped_storage()._share_cuda_()
            except NotImplementedError as error:
                return str(error)
    return None


_CONTAINERS = (list, tuple, set, frozenset, collections.deque)


def _tensors_in(sent: object, torch: ModuleType) -> Iterable[Any]:
    """Yields the tensors that pickling certainly reaches: in containers and in objects' attributes.

    Objects of a class that chooses what is pickled are left to the queue's thread.
    """
    ordinary = [_state_of(object), _state_of(torch.nn.Module)]
    seen = set()
    rest = [sent]
    while rest:
        item = rest.pop()
        if isinstance(item, torch.Tensor):
            yield item
            continue
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dict):
            rest.extend(item.values())
        elif isinstance(item, _CONTAINERS):
            rest.extend(item)
        elif _state_of(type(item)) in ordinary and _has_attributes(type(item)):
            rest.extend(vars(item).values())


def _state_of(kind: type) -> Any:
    """Returns the method that chooses what to pickle of an object, or None before Python 3.11."""
    return getattr(kind, "__getstate__", None)


def _has_attributes(kind: type) -> bool:
    return (
        kind.__dictoffset__ != 0
        and kind.__module__ != "builtins"
        and not issubclass(kind, type)
        and kind.__reduce_ex__ is object.__reduce_ex__
        and kind.__reduce__ is object.__reduce__
    )
