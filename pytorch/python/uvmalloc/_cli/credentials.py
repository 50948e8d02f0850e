"""Runs work with the rights of another process's user, in a child that cannot hang this process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvmalloc.errors import CommandError

_AT_SECURE = 23  # AT_SECURE in elf.h
_MOST_BYTES = 64 << 20  # the largest answer


@dataclass(frozen=True)
class Credentials:
    """A user and groups: their rights decide which files may be opened."""

    user: int
    group: int
    groups: tuple[int, ...]

    def take(self) -> None:
        """Gives this process these credentials for good. Only root can take another user's."""
        if self.user == os.geteuid():
            return
        os.setgroups(self.groups)
        os.setresgid(self.group, self.group, self.group)
        os.setresuid(self.user, self.user, self.user)


def credentials_of(pid: int) -> Credentials | None:
    """Returns a process's credentials, or None if it has ended or this user may not act for it.

    Also returns None for a process with raised rights: the user who started it chose its
    environment, and uvmalloc ignores that environment.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        users = {int(user) for user in fields["Uid"].split()}
        groups = {int(group) for group in fields["Gid"].split()}
        if len(users) != 1 or len(groups) != 1 or os.geteuid() not in (0, *users):
            return None
        if _has_raised_rights(Path(f"/proc/{pid}/auxv").read_bytes()):
            return None
        more = tuple(int(group) for group in fields["Groups"].split())
    except (OSError, ValueError, KeyError):
        return None
    return Credentials(users.pop(), groups.pop(), more)


def _has_raised_rights(auxiliary_vector: bytes) -> bool:
    whole = len(auxiliary_vector) // 16 * 16
    entries = struct.iter_unpack("@LL", auxiliary_vector[:whole])
    return any(kind == _AT_SECURE and value != 0 for kind, value in entries)


class Answer:
    """Runs `work` in a child with `credentials`. The result must be a value that JSON can hold."""

    def __init__(self, credentials: Credentials, work: Callable[[], Any]) -> None:
        self._user = credentials.user
        self._reader, writer = os.pipe()
        self._child = os.fork()
        if self._child == 0:
            try:
                os.close(self._reader)
                credentials.take()
                with os.fdopen(writer, "wb") as stream:  # binary, as codec files may be unreadable
                    stream.write(json.dumps(work()).encode())
            finally:
                os._exit(0)
        os.close(writer)

    def read(self, deadline: float) -> Any:
        """Waits for the result until `deadline`, a time of time.monotonic(), and returns it. Raises
        CommandError if there is none.
        """
        try:
            content = self._content(deadline)
        finally:
            os.close(self._reader)
            # The user's file system may keep the child from ending, so do not wait for it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._child, os.WNOHANG)
        try:
            return json.loads(content)
        except (ValueError, RecursionError):
            raise CommandError(f"files of user {self._user} could not be read") from None

    def _content(self, deadline: float) -> bytes:
        content = b""
        while len(content) <= _MOST_BYTES:
            ready, _, _ = select.select([self._reader], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise CommandError(f"reading files of user {self._user} takes too long")
            more = os.read(self._reader, 1 << 16)
            if not more:
                return content
            content += more
        raise CommandError(f"files of user {self._user} hold too much")
