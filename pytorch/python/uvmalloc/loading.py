"""Loads safetensors files without holding their bytes twice.

Files are read with pread and never mapped. Mapped pages cannot be on a device, so they would be
copied. They would also count as this process's memory until the kernel reclaims them.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import math
import operator
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from uvmalloc.forks import ForkedLock
from uvmalloc.memory import enabled, plugin_operators, prefetch

if TYPE_CHECKING:
    import torch

INDEX_NAME = "model.safetensors.index.json"
FILE_NAME = "model.safetensors"
_METADATA = "__metadata__"
_FIELDS = ("dtype", "shape", "data_offsets")  # fields of a tensor, in the order of the format
_MOST_SIZE = (1 << 63) - 1  # the largest dimension in torch
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000  # the limit in the library safetensors
# Bytes per read, and the size of the buffer. A multiple of 2 MiB, so that whole pages can move to
# the device after each read.
_STEP_BYTES = 16 << 20
_ATTEMPTS = 3  # attempts per read
_ALIGNMENT = 16  # of tensors, in bytes: kernels load vectors of this size

# The names of the dtypes in torch. Not every version of torch has all of them.
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F4": "float4_e2m1fn_x2",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
}


@dataclass(frozen=True)
class _Entry:
    """A tensor as described in the header. `offset` is from the start of the file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    size_bytes: int


def load_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | int = "cpu",
    *,
    keep_cached: bool = False,
) -> dict[str, torch.Tensor]:
    """Reads the tensors of a safetensors file to `device`, and returns them by name.

    Each tensor has its own memory. Under uvmalloc, tensors are read into managed memory and move to
    a CUDA device without a copy: while a tensor is read, its pages follow in steps of 16 MiB.
    Without uvmalloc they are ordinary tensors, read into CPU memory or through a buffer of at most
    16 MiB to the device. Host and device together hold the bytes only once. Loading needs at most
    another 16 MiB, and 32 MiB of page cache.

    Args:
        path: a file; an index (`*.index.json`) of a model in several files; or a folder with a
            `model.safetensors.index.json` or, without that, a `model.safetensors`.
        device: the device of the tensors: "cpu", "cuda", "cuda:1", or 1 (a CUDA device).
        keep_cached: whether the file's pages stay in the kernel's page cache, for a program that
            soon reads the file again. By default, pages are dropped after they have been read.

    The current stream of a CUDA tensor's device may use the tensor at once. Another stream must
    first wait for that stream, as after `Tensor.to(device, non_blocking=True)`. Any thread may call
    this function.

    Raises:
        ValueError: there is no such device, the file is damaged or not a safetensors file, or the
            index does not fit its files. The message names the file and the fault. All headers are
            checked before any tensor is read.
        OSError: a file is missing or cannot be read.
        torch.OutOfMemoryError: there is not enough memory. Tensors loaded so far are freed.
    """
    with contextlib.closing(Checkpoint(Path(path), as_device(device), keep_cached)) as checkpoint:
        return checkpoint.load(checkpoint.sizes)


def load_as_in_files(
    path: str | os.PathLike[str], device: torch.device | str | int
) -> dict[str, torch.Tensor]:
    """Same as load_safetensors(), but all tensors of a file share one storage, which has the bytes
    of the whole file. Call it inside a group with a file, which can then sleep in the files.

    Tensors at an offset that kernels may not accept have memory of their own. If most do, the file
    is read as by load_safetensors().
    """
    with contextlib.closing(Checkpoint(Path(path), as_device(device), False)) as checkpoint:
        return checkpoint.load_as_in_files()


def as_device(device: torch.device | str | int) -> torch.device:
    import torch

    if isinstance(device, int) and not isinstance(device, bool):
        named = torch.device("cuda", device)
    else:
        named = torch.device(device)
    if named.type == "cuda" and (named.index or 0) >= (count := torch.cuda.device_count()):
        last = f" to cuda:{count - 1}" if count > 1 else ""
        others = f", or cuda:0{last}" if count else "; there is no CUDA device"
        raise ValueError(f"the device is '{named}'; accepted: cpu{others}")
    return named


class LoadEndedError(Exception):
    """The caller no longer needs the tensors."""


class Checkpoint:
    """Open safetensors files with checked headers. load() loads any of their tensors.

    Several threads may load at the same time. close() does not interrupt loads that are running.
    """

    def __init__(self, path: Path, device: torch.device, keep_cached: bool) -> None:
        import torch

        self.path = path
        self.bytes_read = 0
        self._device = device
        self._keep_cached = keep_cached
        self._entries: dict[str, tuple[_File, _Entry]] = {}
        self._lock = ForkedLock()  # guards bytes_read, _is_closed and _loads
        self._is_closed = False
        self._loads = 0  # number of running loads
        with contextlib.ExitStack() as files:
            for file_path, wanted in _files_of(path):
                file = files.enter_context(_open(file_path))
                for entry in file.select(wanted):
                    self._entries[entry.name] = (file, entry)
            self._files = files.pop_all()
        self.sizes = {name: entry.size_bytes for name, (_, entry) in self._entries.items()}
        self.shapes = {name: entry.shape for name, (_, entry) in self._entries.items()}
        if device.type == "cuda" and enabled():
            # Use the device first, because CPU tensors are managed only after that.
            torch.empty(1, dtype=torch.uint8, device=device)

    def load(
        self, names: Iterable[str], has_ended: Callable[[], bool] = lambda: False
    ) -> dict[str, torch.Tensor]:
        """Returns these tensors on the device. Each tensor has its own memory.

        Raises ValueError after close(), and LoadEndedError once `has_ended()` is true.
        """
        tensors: dict[str, torch.Tensor] = {}
        readers: dict[Path, _Reader] = {}
        buffer = _Buffer()
        with self._open_files():
            for name in names:
                file, entry = self._entries[name]
                if file.path not in readers:
                    readers[file.path] = _Reader(file, self._keep_cached, has_ended)
                tensors[name] = _load(readers[file.path], entry, self._device, buffer)
                with self._lock:
                    self.bytes_read += entry.size_bytes
            for reader in readers.values():
                reader.give_up_cache()
        return tensors

    def load_as_in_files(self) -> dict[str, torch.Tensor]:
        by_file: dict[Path, tuple[_File, list[_Entry]]] = {}
        for file, entry in self._entries.values():
            by_file.setdefault(file.path, (file, []))[1].append(entry)
        tensors: dict[str, torch.Tensor] = {}
        with self._open_files():
            for file, entries in by_file.values():
                apart = {entry.name for entry in entries if entry.offset % _ALIGNMENT}
                apart_bytes = sum(self.sizes[name] for name in apart)
                if 2 * apart_bytes > file.size_bytes:
                    tensors.update(self.load(entry.name for entry in entries))
                    continue
                whole = self._whole(file)
                for entry in entries:
                    part = whole[entry.offset : entry.offset + entry.size_bytes]
                    if entry.name in apart:
                        part = part.clone()
                    tensors[entry.name] = part.view(entry.dtype).view(entry.shape)
        return tensors

    def _whole(self, file: _File) -> torch.Tensor:
        """Returns the bytes of the file on the device, which has to reach ordinary memory."""
        import torch

        page_bytes = os.sysconf("SC_PAGESIZE")
        memory = torch.empty(file.size_bytes + page_bytes, dtype=torch.uint8, device=self._device)
        begin = -memory.data_ptr() % page_bytes
        whole = memory[begin : begin + file.size_bytes]
        # The block's last user may still be running.
        torch.cuda.current_stream(self._device).synchronize()
        reader = _Reader(file, self._keep_cached, lambda: False)
        with _memory(whole) as view:
            for first, last in _steps(file.size_bytes):
                reader.read_into(view[first:last], first)
        reader.give_up_cache()
        plugin_operators().group_note_file(whole, file.descriptor, str(file.path), file.changed_ns)
        prefetch(whole, self._device)
        return whole

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self._loads == 0:
                self._files.close()

    def check_open(self) -> None:
        """Raises ValueError after close()."""
        if self._is_closed:
            raise ValueError(f"{self.path}: the checkpoint is closed; open it again to read it")

    @contextlib.contextmanager
    def _open_files(self) -> Iterator[None]:
        """Keeps the descriptors open: another file may reuse a closed descriptor's number."""
        with self._lock:
            self.check_open()
            self._loads += 1
        try:
            yield
        finally:
            with self._lock:
                self._loads -= 1
                if self._is_closed and self._loads == 0:
                    self._files.close()


# ---- files --------------------------------------------------------------------------------------


def _files_of(path: Path) -> list[tuple[Path, set[str] | None]]:
    """Returns the files to read, each with the names of its wanted tensors, or None for all."""
    if path.is_dir():
        found = [path / name for name in (INDEX_NAME, FILE_NAME) if (path / name).is_file()]
        if not found:
            raise ValueError(f"{path} is a folder without {INDEX_NAME} and {FILE_NAME}")
        path = found[0]
    if not path.name.endswith(".index.json"):
        return [(path, None)]
    index_map = _parse(path.read_bytes(), path, "the index")
    weight_map = index_map.get("weight_map") if isinstance(index_map, dict) else None
    if not isinstance(weight_map, dict):
        raise ValueError(f"{path}: the index has no 'weight_map' of names to files")
    wanted: dict[str, set[str]] = {}
    for name, file in weight_map.items():
        parts = PurePosixPath(file).parts if isinstance(file, str) else ()
        if not parts or parts[0] == "/" or ".." in parts:
            raise ValueError(
                f"{path}: '{name}' is said to be in {file!r}; accepted: a file below the index's "
                "folder"
            )
        wanted.setdefault(file, set()).add(name)
    return [(path.parent / file, names) for file, names in wanted.items()]


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_File]:
    # Without O_NONBLOCK, opening a pipe would wait for its writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield _File(path, descriptor)
    finally:
        os.close(descriptor)


class _File:
    """An open safetensors file with a checked header."""

    def __init__(self, path: Path, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is not a regular file")
        self.path = path
        self.descriptor = descriptor
        self.size_bytes = status.st_size
        self.changed_ns = status.st_ctime_ns
        self.entries = self._entries()

    def _entries(self) -> list[_Entry]:
        """Returns the header's tensors in the order of the file. Checks that they cover every byte
        after the header.
        """
        text = self._header()
        header = _parse(text, self.path, "the header", _Pairs)
        if not isinstance(header, _Pairs):
            raise ValueError(f"{self.path}: the header is not a JSON object")
        end = _LENGTH_BYTES + len(text)
        times = Counter(name for name, _ in header)
        _check_metadata(self.path, [value for name, value in header if name == _METADATA])
        # If a name occurs twice, the last entry counts.
        named = {
            name: _entry(self.path, name, value, end, times[name] > 1)
            for name, value in header
            if name != _METADATA
        }
        entries = list(named.values())
        entries.sort(key=lambda entry: (entry.offset, entry.size_bytes))
        for entry in entries:
            if entry.offset != end:
                wrong = "overlaps the one before" if entry.offset < end else "leaves a gap"
                raise ValueError(
                    f"{self.path}: tensor '{entry.name}' {wrong}: it begins at byte "
                    f"{entry.offset}, not {end}"
                )
            end += entry.size_bytes
        if end != self.size_bytes:
            raise ValueError(
                f"{self.path}: the file has {self.size_bytes} bytes, its tensors end at {end}"
            )
        return entries

    def select(self, names: set[str] | None) -> list[_Entry]:
        missing = set(names or ()) - {entry.name for entry in self.entries}
        if missing:
            raise ValueError(
                f"{self.path} has no tensor '{min(missing)}', although the index says so"
            )
        return [entry for entry in self.entries if names is None or entry.name in names]

    def _header(self) -> bytes:
        length_bytes = os.pread(self.descriptor, _LENGTH_BYTES, 0)
        if len(length_bytes) < _LENGTH_BYTES:
            raise ValueError(
                f"{self.path}: not a safetensors file: it has {len(length_bytes)} bytes, and "
                f"the header's length takes {_LENGTH_BYTES}"
            )
        length = int.from_bytes(length_bytes, "little")
        if length > _MOST_HEADER_BYTES:
            raise ValueError(
                f"{self.path}: not a safetensors file: its first 8 bytes give a header of {length} "
                f"bytes; accepted: up to {_MOST_HEADER_BYTES}"
            )
        if _LENGTH_BYTES + length > self.size_bytes:
            raise ValueError(
                f"{self.path}: the file ends within its header: {self.size_bytes} bytes, "
                f"the header takes {length}"
            )
        return os.pread(self.descriptor, length, _LENGTH_BYTES)


class _Reader:
    """Reads parts of a file from front to back, for one load."""

    def __init__(self, file: _File, keep_cached: bool, has_ended: Callable[[], bool]) -> None:
        self._file = file
        self._has_ended = has_ended
        self._keep_cached = keep_cached
        self._asked_bytes = 0  # read-ahead has been requested up to here
        self._read_bytes = 0
        self._given_up_bytes = 0

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills `buffer`. Makes the kernel read ahead, and drop pages that have been read."""
        if self._has_ended():
            raise LoadEndedError
        ahead = offset + len(buffer) + _STEP_BYTES
        if ahead - self._asked_bytes >= _STEP_BYTES:
            begin = max(self._asked_bytes, offset)
            os.posix_fadvise(self._file.descriptor, begin, ahead - begin, os.POSIX_FADV_WILLNEED)
            self._asked_bytes = ahead
        done = 0
        while done < len(buffer):
            count = self._read(buffer[done:], offset + done)
            if count == 0:
                end = offset + done
                raise ValueError(
                    f"{self._file.path} ended early, at byte {end}: it was truncated while it was "
                    "read"
                )
            done += count
        self._read_bytes = offset + done
        if self._read_bytes - self._given_up_bytes >= _STEP_BYTES:
            self.give_up_cache()

    def _read(self, buffer: memoryview, offset: int) -> int:
        """Returns the number of bytes read. Retries a failed read; the final error names the
        position.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return os.preadv(self._file.descriptor, [buffer], offset)
            except OSError as error:
                if attempt == _ATTEMPTS:
                    reason = f"{error.strerror}, at byte {offset}, in {_ATTEMPTS} attempts"
                    raise OSError(error.errno, reason, str(self._file.path)) from None
        raise AssertionError

    def give_up_cache(self) -> None:
        """Drops from the page cache the whole pages that have been read, unless `keep_cached` is
        set.
        """
        end = self._read_bytes
        if end < self._file.size_bytes:
            end -= end % os.sysconf("SC_PAGESIZE")
        if not self._keep_cached:
            # Always from 0, because the kernel keeps a folio if a call covers only a part of it.
            os.posix_fadvise(self._file.descriptor, 0, end, os.POSIX_FADV_DONTNEED)
        self._given_up_bytes = end


# ---- the header ---------------------------------------------------------------------------------


class _Pairs(list[tuple[str, Any]]):
    """A JSON object as a list of pairs, because safetensors accepts some names twice."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        super().__init__(pairs)
        for text in itertools.chain.from_iterable(pairs):
            if isinstance(text, str):
                text.encode()  # raises an error for an unpaired surrogate


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"the key '{name}' occurs twice")
        found[name] = value
    return found


def _parse(
    text: bytes, path: Path, what: str, objects: Callable[[list[tuple[str, Any]]], Any] = _unique
) -> Any:
    """Parses JSON like safetensors, which is stricter than Python."""

    def no_number(constant: str) -> Any:
        raise ValueError(f"{constant} is not JSON")

    def number(digits: str) -> int | float:
        value = float(digits)
        if math.isinf(value):
            raise ValueError("a number is too large")
        return value if digits == "-0" or not digits.lstrip("-").isdecimal() else int(digits)

    try:
        return json.loads(
            text.decode("utf-8"),
            object_pairs_hook=objects,
            parse_constant=no_number,
            parse_int=number,
            parse_float=number,
        )
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {what} cannot be understood: {error}") from None


def _check_metadata(path: Path, found: list[Any]) -> None:
    if len(found) > 1:
        raise ValueError(f"{path}: the header has {_METADATA} twice")
    for metadata in found:
        texts = isinstance(metadata, _Pairs) and all(isinstance(text, str) for _, text in metadata)
        if metadata is not None and not texts:
            raise ValueError(f"{path}: the header's {_METADATA} is not a map of strings")


def _entry(path: Path, name: str, value: Any, data_begin: int, twice: bool) -> _Entry:
    def wrong(what: str) -> ValueError:
        more = f"; the header lists '{name}' twice" if twice else ""
        return ValueError(f"{path}: tensor '{name}' {what}{more}")

    # An object may have other keys too. An array holds the values in the order of the fields.
    pairs = zip(_FIELDS, value, strict=False) if type(value) is list else value
    fields = [pair for pair in pairs if pair[0] in _FIELDS] if isinstance(value, list) else []
    if sorted(key for key, _ in fields) != sorted(_FIELDS):
        raise wrong("must have exactly dtype, shape and data_offsets")
    if type(value) is list and len(value) != len(_FIELDS):
        raise wrong("must have exactly dtype, shape and data_offsets")
    import torch

    kind, shape, offsets = (dict(fields)[key] for key in _FIELDS)
    if isinstance(kind, _Pairs) and [empty for _, empty in kind] == [None]:
        kind = kind[0][0]  # for {"F32": null}
    dtype = getattr(torch, _DTYPES.get(str(kind), ""), None)
    if dtype is None:
        raise wrong(f"has the dtype {kind!r}; accepted: {', '.join(_DTYPES)}")
    if not _are_sizes(shape):
        raise wrong(f"has the shape {shape!r}; accepted: a list of whole numbers from 0")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"has the data_offsets {offsets!r}; accepted: [begin, end] in bytes")
    if kind == "F4":  # two elements per byte, which torch counts as one element
        if not shape or shape[-1] % 2 != 0:
            raise wrong(f"has the shape {shape!r}; accepted for F4: an even last dimension")
        shape = [*shape[:-1], shape[-1] // 2]
    size_bytes = math.prod(shape) * dtype.itemsize
    if offsets[1] - offsets[0] != size_bytes:
        raise wrong(f"has {offsets[1] - offsets[0]} bytes; its dtype and shape need {size_bytes}")
    if any(count > _MOST_SIZE for count in itertools.accumulate(shape, operator.mul)):
        raise wrong(
            f"has the shape {shape!r}: its sizes before the 0 multiply to more than 2^63 - 1"
        )
    return _Entry(name, dtype, tuple(shape), data_begin + offsets[0], size_bytes)


def _are_sizes(value: Any) -> bool:
    return type(value) is list and all(
        type(item) is int and 0 <= item <= _MOST_SIZE for item in value
    )


# ---- tensors ------------------------------------------------------------------------------------


class _Buffer:
    """CPU memory as a buffer for bytes that are copied to a device."""

    def __init__(self) -> None:
        self.memory: torch.Tensor | None = None

    def of(self, size_bytes: int) -> torch.Tensor:
        import torch

        if self.memory is None or self.memory.numel() < size_bytes:
            self.memory = None
            self.memory = torch.empty(size_bytes, dtype=torch.uint8, device="cpu")
        return self.memory[:size_bytes]


def _load(reader: _Reader, entry: _Entry, device: torch.device, buffer: _Buffer) -> torch.Tensor:
    import torch

    if entry.size_bytes == 0:
        # One dimension is 0. The others may be larger than torch.empty() accepts.
        return torch.empty(0, dtype=entry.dtype, device=device).view(entry.shape)
    if device.type == "cpu" or (device.type == "cuda" and enabled()):
        host = torch.empty(entry.shape, dtype=entry.dtype, device="cpu")
        if device.type == "cpu":
            _fill(reader, entry, host, None)
            return host
        if torch.ops.uvmalloc.is_managed(host):
            _fill(reader, entry, host, device)
            return host.to(device, non_blocking=True)
        del host
    result = torch.empty(entry.shape, dtype=entry.dtype, device=device)
    whole = _bytes_of(result)
    for begin, end in _steps(entry.size_bytes):
        part = buffer.of(end - begin)
        with _memory(part) as memory:
            reader.read_into(memory, entry.offset + begin)
        whole[begin:end].copy_(part)
    return result


def _fill(reader: _Reader, entry: _Entry, host: torch.Tensor, device: torch.device | None) -> None:
    """Reads the tensor's bytes. After each step, prefetches the bytes to the device."""
    whole = _bytes_of(host)
    follows = device is not None and entry.size_bytes > _STEP_BYTES
    with _memory(host) as memory:
        for begin, end in _steps(entry.size_bytes):
            reader.read_into(memory[begin:end], entry.offset + begin)
            if follows and device is not None:
                prefetch(whole[begin:end], device)


def _steps(size_bytes: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, size_bytes, _STEP_BYTES):
        yield begin, min(begin + _STEP_BYTES, size_bytes)


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor's storage as uint8, whatever the tensor's dtype."""
    import torch

    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage())


@contextlib.contextmanager
def _memory(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yields the bytes of a tensor in memory that the host reaches.

    The plugin treats this module as one that keeps no addresses (pytorch/plugin/export_hooks.cpp).
    """
    size_bytes = tensor.numel() * tensor.element_size()
    array = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr() if size_bytes else 0)
    with memoryview(array) as memory, memory.cast("B") as unsigned:
        yield unsigned
