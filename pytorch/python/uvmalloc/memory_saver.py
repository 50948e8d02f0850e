"""The calls of torch_memory_saver (0.0.10), made by groups: programs that pause memory by tags run
unchanged with `from uvmalloc.memory_saver import torch_memory_saver`, or after install().

A paused region without a backup gives its contents up, and one with a backup keeps them. Unlike in
torch_memory_saver, a kernel that uses paused memory brings its pages back. Importing this module
imports neither torch nor a native library.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvmalloc.groups import Group, group
from uvmalloc.memory import enabled, plugin_operators

if TYPE_CHECKING:
    import torch

_DEFAULT_TAG = "default"
_KEPT, _IN_FILES, _DISCARDED = "", "/disk", "/discarded"  # ends of the groups' names
_NO_GROUP = -1


class TorchMemorySaver:
    """Each tag is a group for memory with a backup, one for memory with a backup on disk, and one
    for memory whose contents a pause gives up.

    A backup is the host's part of managed memory, or a file in the folder TMS_DISK_BACKUP_DIR if
    the devices reach ordinary memory of the host. Any thread may call it. Settings of how
    torch_memory_saver is built into a program (`hook_mode`, `memory_margin_bytes`,
    `retain_cpu_backup`, `cpu_backup_backend`) have no effect.
    """

    hook_mode: Any = None
    memory_margin_bytes: int = 0
    retain_cpu_backup: bool = False

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], Group] = {}
        self._folder = os.environ.get("TMS_DISK_BACKUP_DIR", "")

    @property
    def enabled(self) -> bool:
        """Whether uvmalloc is on, so that pauses have an effect."""
        return enabled()

    @contextlib.contextmanager
    def region(
        self,
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        enable_disk_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """Tensors that the thread creates inside belong to the tag."""
        if enable_cpu_backup and enable_disk_backup:
            raise ValueError("region: enable_cpu_backup and enable_disk_backup exclude each other")
        if cpu_backup_backend is not None and not enable_cpu_backup:
            raise ValueError("region: cpu_backup_backend requires enable_cpu_backup=True")
        kind = _KEPT if enable_cpu_backup else _IN_FILES if enable_disk_backup else _DISCARDED
        each = self._group(tag, kind)
        with _inside(each.number):
            yield

    @contextlib.contextmanager
    def cuda_graph(
        self,
        cuda_graph: torch.cuda.CUDAGraph,
        pool: Any = None,
        stream: torch.cuda.Stream | None = None,
        capture_error_mode: str = "global",
        tag: str = _DEFAULT_TAG,
        enable_cpu_backup: bool = False,
        cpu_backup_backend: str | None = None,
    ) -> Iterator[None]:
        """As torch.cuda.graph; the graph's memory belongs to the tag."""
        import torch

        capture = torch.cuda.graph(
            cuda_graph, pool=pool, stream=stream, capture_error_mode=capture_error_mode
        )
        with self.region(tag, enable_cpu_backup, cpu_backup_backend=cpu_backup_backend), capture:
            yield

    @contextlib.contextmanager
    def disable(self) -> Iterator[None]:
        """Tensors that the thread creates inside belong to no tag."""
        with _inside(_NO_GROUP):
            yield

    def pause(self, tag: str | None = None) -> None:
        """Takes the memory of the tag, or of all tags, off the device."""
        for (own, kind), each in list(self._groups.items()):
            if tag in (None, own):
                each.sleep(discard=kind == _DISCARDED)

    def resume(self, tag: str | None = None) -> None:
        """Brings the memory of the tag, or of all tags, back to the device."""
        for (own, _), each in list(self._groups.items()):
            if tag in (None, own):
                each.wake()

    def get_cpu_backup(self, x: torch.Tensor, zero_copy: bool = False) -> torch.Tensor:
        """Returns a copy of the tensor on the CPU, paused or not. `zero_copy` has no effect."""
        return x.detach().cpu()

    def set_disk_backup_dir(self, path: str) -> None:
        """The folder for backups on disk, which is made if it does not exist; "": none. Memory that
        already has such a backup uses the folder too.

        Backups are in host memory without a folder, and where devices do not reach ordinary memory
        of the host. A warning says so. Raises OSError if the folder cannot be made.
        """
        if path:
            Path(path).mkdir(parents=True, exist_ok=True)
        self._folder = path
        for (_, kind), each in list(self._groups.items()):
            if kind == _IN_FILES:
                self._use_folder(each, stacklevel=3)

    def _group(self, tag: str, kind: str) -> Group:
        known = self._groups.get((tag, kind))
        if known is None:
            word = re.sub(r"[^A-Za-z0-9_.:-]", "_", tag)[:32]
            name = f"saver/{word}" if word == tag else f"saver/{word}-{zlib.crc32(tag.encode()):x}"
            known = group(name + kind)
            if kind == _IN_FILES:
                self._use_folder(known, stacklevel=5)
            self._groups[tag, kind] = known
        return known

    def _use_folder(self, each: Group, stacklevel: int) -> None:
        if plugin_operators() is None:
            return
        try:
            if self._folder:
                Path(self._folder).mkdir(parents=True, exist_ok=True)
            each.configure(file=self._folder)
            reason = "" if self._folder else "no folder is set (TMS_DISK_BACKUP_DIR)"
        except (OSError, ValueError) as error:
            each.configure(file="")
            reason = str(error)
        if reason:
            warnings.warn(
                f"memory_saver: backups on disk are in host memory: {reason}", stacklevel=stacklevel
            )


@contextlib.contextmanager
def _inside(number: int) -> Iterator[None]:
    """The thread's device memory joins the group; a CPU tensor does not, even if it moves later."""
    if plugin_operators() is None or number == 0:
        yield
        return
    region = sys.modules["torch"].classes.uvmalloc.Region("", 0, number, True)
    try:
        yield
    finally:
        region.close()


@contextlib.contextmanager
def configure_subprocess() -> Iterator[None]:
    """Has no effect: `uvmalloc run` prepares the environment of child processes."""
    yield


torch_memory_saver = TorchMemorySaver()


def install() -> None:
    """Makes `import torch_memory_saver` give this module, for the rest of the process."""
    sys.modules["torch_memory_saver"] = sys.modules[__name__]
