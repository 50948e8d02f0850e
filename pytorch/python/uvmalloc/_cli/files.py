"""Files in folders that other users may write to (docs/internals/security.md)."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from uvmalloc.errors import CommandError

MOST_BYTES = 64 << 20  # the largest file that is read if others may have written it


def open_found(file: Path) -> BinaryIO:
    """Opens a file that a process has left in a folder that other users may write to.

    Raises OSError for a link, for a file that is not regular (a pipe would wait for its writer),
    and for a file that is larger than any that uvmalloc writes.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(file, flags)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        if found.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, "it is larger than any report", str(file))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(file: Path) -> bytes:
    """Reads a whole file.

    Raises OSError if it is not a regular file: a device or a pipe may never end.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(file))
        return stream.read()


def refuse_same(written: Path, *read: Path) -> None:
    """Raises CommandError if writing to the one file would destroy the other."""
    for file in read:
        try:
            is_same = written.samefile(file)
        except OSError:  # one of them does not exist
            is_same = False
        if is_same:
            raise CommandError(f"{written} and {file} are the same file: name another one to write")


def open_own(file: Path) -> int:
    """Opens `file` to write a report to it, empties it, and returns the descriptor.

    A new file is readable only by this user. In a folder that everybody may write to, raises
    OSError for a link, and for a file that another user owns or that has a second name.
    """
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC
    try:
        return os.open(file, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    if file.is_fifo():
        raise OSError(errno.EINVAL, "it is a pipe, which may never be read", str(file))
    if not file.parent.stat().st_mode & stat.S_IWOTH:
        return os.open(file, flags | os.O_CREAT | os.O_TRUNC, 0o600)
    descriptor = os.open(file, flags | os.O_NOFOLLOW)
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise OSError(errno.EPERM, "it belongs to another user or has a second name", str(file))
    if stat.S_ISREG(found.st_mode):
        os.ftruncate(descriptor, 0)
    return descriptor


def write_own(file: Path, content: bytes) -> None:
    """Writes `content` to `file`, under the rules of open_own()."""
    with os.fdopen(open_own(file), "wb") as stream:
        stream.write(content)
