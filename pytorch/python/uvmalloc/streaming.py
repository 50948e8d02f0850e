"""Streams safetensors files: their tensors are on the file, and on the device in windows.

A checkpoint may be larger than the device, and than the host (Glow, "Device Resident and Specific
Tensors", Tensor Streaming). Files are read as `load_safetensors` reads them, so nothing of them
stays in the page cache.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from uvmalloc.loading import Checkpoint, as_device
from uvmalloc.pipelines import Pipeline, pipeline
from uvmalloc.sizes import EXAMPLES, format_size, parse_size

if TYPE_CHECKING:
    import torch


def stream_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | int = "cpu",
    *,
    window: int | str,
) -> StreamedCheckpoint:
    """Opens a checkpoint whose tensors come to `device` when they are used, and go afterwards.

        with uvmalloc.stream_safetensors("model.safetensors", "cuda", window="2GiB") as stream:
            for tensors in stream:                     # in the order of the file
                use(tensors)
        with uvmalloc.stream_safetensors("model.safetensors", "cuda", window="2GiB") as stream:
            with stream.into(model):                   # a model on the device "meta"
                y = model(x)                           # module by module

    Tensors come in pieces of at most half a window: while one is used, the next is read.

    Args:
        path: a file, an index, or a folder, as of `load_safetensors`.
        device: where the tensors are used.
        window: bytes, or a size such as "2GiB": the most that tensors of the checkpoint take on the
            device at a time, with those that are read ahead.

    Raises:
        ValueError: as from `load_safetensors`; a window that holds no piece, which names the tensor
            or the module; a file that ends early, since it has been changed meanwhile.
        OSError: a file cannot be read, after some attempts. What was given before stays as it is.
    """
    try:
        window_bytes = 0 if isinstance(window, bool) else parse_size(str(window))
    except ValueError:
        window_bytes = 0
    if window_bytes < 2:
        raise ValueError(f"stream_safetensors: the window is {window!r}; accepted: {EXAMPLES}")
    return StreamedCheckpoint(Path(path), as_device(device), window_bytes)


class StreamedCheckpoint:
    """Tensors of safetensors files, of which a window is on the device. Close it after use."""

    def __init__(self, path: Path, device: torch.device, window_bytes: int) -> None:
        self._checkpoint = Checkpoint(path, device, keep_cached=False)
        self._half_bytes = window_bytes // 2
        self._window_bytes = window_bytes

    def __enter__(self) -> StreamedCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._checkpoint.close()

    @property
    def names(self) -> list[str]:
        """Of all tensors, in the order of the files."""
        return list(self._checkpoint.sizes)

    @property
    def bytes_read(self) -> int:
        """Of tensors, so far; their headers not counted."""
        return self._checkpoint.bytes_read

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """The tensors, in pieces, in the order of the files.

        A piece is emptied when the next one is asked for. A tensor that is kept longer stays on the
        device beyond its window.
        """
        pieces: list[list[str]] = [[]]
        piece_bytes = 0
        for name, size_bytes in self._checkpoint.sizes.items():
            self._check(f"tensor '{name}'", size_bytes)
            if piece_bytes + size_bytes > self._half_bytes:
                pieces.append([])
                piece_bytes = 0
            pieces[-1].append(name)
            piece_bytes += size_bytes
        with self._pipeline([piece for piece in pieces if piece]) as stream:
            for tensors in stream:
                yield tensors
                tensors.clear()

    @contextlib.contextmanager
    def into(self, model: torch.nn.Module, prefix: str = "") -> Iterator[None]:
        """While it holds, each module of `model` has its tensors during its forward pass.

        The tensors of a module come before its forward pass, those of the module after it are read
        meanwhile, and they go afterwards. Modules are expected in the order of
        `model.named_modules()`; another order reads nothing ahead. `prefix` begins the tensors'
        names in the files. Parameters and buffers that the files do not have stay as they are.
        """
        owned = self._by_module(model, prefix)
        numbers = {module: number for number, (module, _) in enumerate(owned)}
        feed = _ModuleFeed(self, [list(names.values()) for _, names in owned])
        before: dict[Any, dict[str, Any]] = {}

        def enter(module: torch.nn.Module, _: Any) -> None:
            number = numbers[module]
            tensors = feed.piece(number)
            before[module] = {}
            for name, file_name in owned[number][1].items():
                store = _store_of(module, name)
                before[module][name] = store[name]
                store[name] = _like(store[name], tensors[file_name])

        def leave(module: torch.nn.Module, _: Any, __: Any) -> None:
            for name, tensor in before.pop(module, {}).items():
                _store_of(module, name)[name] = tensor
            feed.clear()

        with contextlib.ExitStack() as hooks:
            hooks.callback(feed.close)
            for module in numbers:
                hooks.callback(module.register_forward_pre_hook(enter).remove)
                hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
            yield

    def _by_module(
        self, model: torch.nn.Module, prefix: str
    ) -> list[tuple[torch.nn.Module, dict[str, str]]]:
        """Modules with tensors of their own in the files: own names to names in the files."""
        sizes = self._checkpoint.sizes
        owned = []
        for path, module in model.named_modules():
            begin = prefix + (f"{path}." if path else "")
            names = {
                name: begin + name
                for name in (*module._parameters, *module._buffers)
                if begin + name in sizes
            }
            if not names:
                continue
            self._check(f"module '{path}'", sum(sizes[name] for name in names.values()))
            owned.append((module, names))
        if not owned:
            raise ValueError(f"{self._checkpoint.path} has no tensor of the model")
        return owned

    def _check(self, what: str, size_bytes: int) -> None:
        if size_bytes > self._half_bytes:
            raise ValueError(
                f"{self._checkpoint.path}: {what} has {format_size(size_bytes)}; accepted in a "
                f"window of {format_size(self._window_bytes)}: half of it"
            )

    def _pipeline(self, pieces: Sequence[Sequence[str]]) -> Pipeline:
        """Reads the next piece while one is used; together they take a window at most."""
        read = (self._checkpoint.load(piece) for piece in pieces)
        return pipeline(read, memory=self._window_bytes, item_bytes=self._half_bytes, credits=2)


class _ModuleFeed:
    """Pieces for modules, read ahead as long as they are asked for in order."""

    def __init__(self, checkpoint: StreamedCheckpoint, pieces: list[list[str]]) -> None:
        self._checkpoint = checkpoint
        self._pieces = pieces
        self._stream: Pipeline | None = None
        self._next = 0
        self._given: dict[str, torch.Tensor] = {}

    def piece(self, number: int) -> Mapping[str, torch.Tensor]:
        self.clear()
        if self._stream is None or number != self._next:
            self.close()
            self._stream = self._checkpoint._pipeline(self._pieces[number:])
        self._given = next(self._stream)
        self._next = number + 1
        return self._given

    def clear(self) -> None:
        self._given.clear()

    def close(self) -> None:
        self.clear()
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _store_of(module: torch.nn.Module, name: str) -> dict[str, Any]:
    """Where the module keeps the parameter or buffer of that name."""
    return module._parameters if name in module._parameters else module._buffers


def _like(old: Any, tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if isinstance(old, torch.nn.Parameter):
        return torch.nn.Parameter(tensor, requires_grad=False)
    return tensor
