"""Streams safetensors files: tensors stay in the file, except a window of them on the device.

A checkpoint may be larger than the device, and than the host (Glow, "Device Resident and Specific
Tensors", Tensor Streaming). Files are read like in `load_safetensors`, so nothing stays in the page
cache. streamed_modules.py provides the modules of a model with the tensors.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from uvmalloc.loading import Checkpoint, as_device
from uvmalloc.pipelines.stream_window import Feed, Piece, Window
from uvmalloc.pipelines.streamed_modules import StreamedModules
from uvmalloc.sizes import EXAMPLES, parse_size

if TYPE_CHECKING:
    import torch


def stream_safetensors(
    path: str | os.PathLike[str],
    device: torch.device | str | int = "cpu",
    *,
    window: int | str,
) -> StreamedCheckpoint:
    """Opens a checkpoint. Its tensors are loaded to `device` when used, and dropped afterwards.

        with uvmalloc.stream_safetensors("model.safetensors", "cuda", window="2GiB") as stream:
            for tensors in stream:                     # in the order of the file
                use(tensors)
        with uvmalloc.stream_safetensors("model.safetensors", "cuda", window="2GiB") as stream:
            with stream.into(model):                   # a model on the device "meta"
                y = model(x)                           # module by module

    Tensors are loaded in pieces of at most half a window. While one piece is used, the next one is
    read if the window has room. All iterations and models of one stream share its window.

    Tensors are loaded as if the caller had called `load_safetensors` when it needs them: "cuda" is
    the caller's current device, and the caller's current stream may use the tensors.

    Args:
        path: a file, an index, or a folder, as in `load_safetensors`.
        device: the device that uses the tensors.
        window: bytes, or a size such as "2GiB": the most that tensors of the checkpoint take on the
            device at a time, including tensors that are read ahead.

    Raises:
        ValueError: as in `load_safetensors`; the window has no room for a piece, and the message
            names the tensor or the module; a file has become shorter; the stream is closed.
        OSError: a file cannot be read in three attempts. Tensors returned before are not affected.
        RuntimeError: tensors are needed while the caller's current stream is being captured.
    """
    try:
        window_bytes = 0 if isinstance(window, bool) else parse_size(str(window))
    except ValueError:
        window_bytes = 0
    if window_bytes < 2:
        raise ValueError(f"stream_safetensors: the window is {window!r}; accepted: {EXAMPLES}")
    return StreamedCheckpoint(Path(path), as_device(device), window_bytes)


class StreamedCheckpoint:
    """Open safetensors files with a window of their tensors on the device. Close it after use.

    Any threads may use it at the same time.
    """

    def __init__(self, path: Path, device: torch.device, window_bytes: int) -> None:
        self._checkpoint = Checkpoint(path, device, keep_cached=False)
        self._window = Window(self._checkpoint, window_bytes)

    def __enter__(self) -> StreamedCheckpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the files. Tensors that were returned stay valid."""
        self._checkpoint.close()
        self._window.close()

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of the files."""
        return list(self._checkpoint.sizes)

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors read so far, without headers."""
        return self._checkpoint.bytes_read

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        """Yields the tensors by name, in pieces, in the order of the files.

        A piece is emptied when the next one is requested. If the caller keeps a tensor longer, the
        tensor takes device memory beyond the window.
        """
        pieces: list[Piece] = []
        for name, size_bytes in self._checkpoint.sizes.items():
            piece = Piece(f"tensor '{name}'", (name,), size_bytes)
            self._window.check(piece)
            if pieces and pieces[-1].size_bytes + size_bytes <= self._window.half_bytes:
                piece = pieces.pop().with_more(piece)
            pieces.append(piece)
        with contextlib.closing(Feed(self._window, pieces)) as feed:
            for number in range(len(pieces)):
                tensors = feed.take(number)
                try:
                    yield tensors
                finally:
                    tensors.clear()
                    feed.give_back(number)

    @contextlib.contextmanager
    def into(self, model: torch.nn.Module, prefix: str = "") -> Iterator[None]:
        """In this context, each module of `model` has its tensors during its forward pass.

        The tensors of a module are loaded before its forward pass and dropped after it. Meanwhile,
        the tensors of the next module are read, in the order of `model.named_modules()`; in another
        order nothing is read ahead. Tensors that another module uses in its own forward pass stay
        until that pass ends. `prefix` is the start of the tensors' names in the files.

        All modules that share a tensor get it, under any of its names in the files. Parameters and
        buffers that are not in the files are not changed. Values that a forward pass has written,
        or the program has set, stay in the model. Parameters from the files have the files' types,
        and require no gradients. Between forward passes they are on "meta", in a state_dict() too.

        Several threads may call the model. Only one is inside the model at a time, so that the
        window is large enough. A recomputation in a backward pass does not wait for other threads.

        After the context has closed, a call of a module that is on "meta" again raises
        RuntimeError, which names the tensor, unless the module's inputs are on "meta" too.

        Raises ValueError in four cases: the files have no tensor of the model, or one with another
        shape; a parameter or buffer would stay on "meta"; the window cannot hold a module's tensors
        twice, or together with those of enclosing modules; the stream is closed.
        """
        self._checkpoint.check_open()
        modules = StreamedModules(self._window, model, prefix)
        with contextlib.closing(modules):
            yield
