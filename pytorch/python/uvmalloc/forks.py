"""Locks that a forked child can use."""

from __future__ import annotations

import os
import threading
import weakref


class ForkedLock:
    """A reentrant lock that works in forked children.

    In a forked child the lock is free, unless the forking thread holds it: other threads, which
    could release it, do not exist in the child.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        _locks.add(self)

    def acquire(self, timeout: float = -1) -> bool:
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def after_fork_in_child(self) -> None:
        if self._lock.acquire(blocking=False):
            self._lock.release()
        else:
            self._lock = threading.RLock()


_locks: weakref.WeakSet[ForkedLock] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for lock in list(_locks):
        lock.after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
