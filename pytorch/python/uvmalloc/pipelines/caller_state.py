"""Carries torch's per-thread state from a caller to the threads that work for the caller.

A worker thread then does what the caller would have done: it uses the caller's device and streams,
and the caller's modes of gradients, inference and autocast. This module does not import torch.
Without torch in the process, only the caller's context variables are carried.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import dataclasses
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from uvmalloc.memory import enabled
from uvmalloc.torch_names import library_function

if TYPE_CHECKING:
    import torch

# The longest single wait of a caller. Between two waits, Python handles signals.
WAIT_SECONDS = 0.05
# How long an error handler, or the program at its end, waits for worker threads to end. A thread
# that hangs never ends.
GRACE_SECONDS = 0.2
_AUTOCAST_DEVICES = ("cpu", "cuda")
_PER_THREAD = 2  # the handle cudaStreamPerThread or hipStreamPerThread
_stand_ins = threading.local()


@dataclasses.dataclass(frozen=True)
class CallerState:
    """The state of the thread that called now(). States are equal if work under them is the same.

    Modes that see every operator (TorchFunctionMode, TorchDispatchMode) are not carried: they
    belong to one thread, and two threads would change them at the same time.
    """

    process: int
    gradients: bool = True
    inference: bool = False
    autocasts: tuple[tuple[str, torch.dtype], ...] = ()
    autocast_cache: bool = True
    default_device: torch.device | None = None
    saved_tensors_hooks: tuple[Any, Any] | None = None
    device: int | None = None  # None: CUDA is not initialised
    streams: tuple[torch.cuda.Stream, ...] = ()  # the current streams, by device
    host_managed: int | None = None  # the value of uvmalloc_set_host_managed()
    context: contextvars.Context = dataclasses.field(
        default_factory=contextvars.copy_context, compare=False, repr=False
    )
    regions: Any = dataclasses.field(default=None, compare=False, repr=False)

    @classmethod
    def now(cls) -> CallerState:
        torch = sys.modules.get("torch")
        if torch is None or not hasattr(torch, "cuda"):  # no torch, or its import is not complete
            return cls(os.getpid())
        autocasts = tuple(
            (kind, torch.get_autocast_dtype(kind))
            for kind in _AUTOCAST_DEVICES
            if torch.is_autocast_enabled(kind)
        )
        return dataclasses.replace(
            cls.of_load(),
            gradients=torch.is_grad_enabled(),
            autocasts=autocasts,
            autocast_cache=torch.is_autocast_cache_enabled(),
            default_device=_default_device(),
            saved_tensors_hooks=torch._C._autograd._top_saved_tensors_default_hooks(True),
        )

    @classmethod
    def of_load(cls) -> CallerState:
        """Returns the part of the state that a load from a file depends on."""
        torch = sys.modules["torch"]
        device, streams = None, ()
        if torch.cuda.is_initialized():
            device = torch.cuda.current_device()
            streams = tuple(map(torch.cuda.current_stream, range(torch.cuda.device_count())))
        return cls(
            os.getpid(),
            inference=torch.is_inference_mode_enabled(),
            device=device,
            streams=streams,
            host_managed=_host_managed(),
            regions=torch.classes.uvmalloc.ThreadRegions() if enabled() else None,
        )

    def is_of_its_thread(self) -> bool:
        """Whether a current stream is a per-thread default stream: each thread has its own."""
        return any(map(is_per_thread, self.streams))

    def elsewhere(self) -> CallerState:
        """Returns the state for another thread. A side stream replaces a per-thread default stream.

        The side stream waits for the caller's stream. The caller then calls follow() for tensors
        that were made on the side stream.
        """
        if not self.is_of_its_thread():
            return self
        return dataclasses.replace(self, streams=tuple(map(_stand_in, self.streams)))

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls the function with this state, on a worker thread."""
        return self.context.copy().run(self._run, function, *arguments)

    def _run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        with self._entered():
            return function(*arguments)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        torch: Any = sys.modules.get("torch")
        with contextlib.ExitStack() as stack:
            if torch is not None and self.inference:
                stack.enter_context(torch.inference_mode())
            if torch is not None and self.gradients != torch.is_grad_enabled():
                stack.enter_context(torch.set_grad_enabled(self.gradients))
            if self.autocasts:
                self._enter_autocast(stack)
            if self.saved_tensors_hooks is not None:
                hooks = torch.autograd.graph.saved_tensors_hooks(*self.saved_tensors_hooks)
                stack.enter_context(hooks)
            switch = _host_managed_switch()
            if self.host_managed is not None and switch is not None:
                stack.callback(switch, switch(self.host_managed))
            if self.regions is not None:
                self.regions.enter()
                stack.callback(self.regions.leave)
            for stream in self.streams:
                if stream != torch.cuda.current_stream(stream.device):
                    stack.enter_context(torch.cuda.stream(stream))
            if self.device is not None:
                stack.enter_context(torch.cuda.device(self.device))
            if self.default_device is not None:
                # Not `with` on the device: that would also set a variable for all threads.
                mode = torch.utils._device.DeviceContext(self.default_device)
                torch.overrides._push_mode(mode)
                stack.callback(torch.overrides._pop_mode)
            yield

    def _enter_autocast(self, stack: contextlib.ExitStack) -> None:
        """Does not use torch.autocast: its exit also drops the caller's cached casts of weights."""
        torch = sys.modules["torch"]
        torch.autocast_increment_nesting()
        stack.callback(torch.autocast_decrement_nesting)
        stack.callback(torch.set_autocast_cache_enabled, torch.is_autocast_cache_enabled())
        torch.set_autocast_cache_enabled(self.autocast_cache)
        for kind, dtype in self.autocasts:
            stack.callback(torch.set_autocast_enabled, kind, torch.is_autocast_enabled(kind))
            stack.callback(torch.set_autocast_dtype, kind, torch.get_autocast_dtype(kind))
            torch.set_autocast_enabled(kind, True)
            torch.set_autocast_dtype(kind, dtype)

    def follow(self, before: CallerState, tensors: Callable[[], Iterable[torch.Tensor]]) -> None:
        """Makes the streams of this state wait for `tensors`, which were made under `before`.

        The tensors' memory is not reused before these streams have finished their work. Does
        nothing if both states have the same streams.
        """
        for mine, other in zip(self.streams, before.streams, strict=False):
            if mine == other:
                continue
            mine.wait_stream(other)
            for tensor in tensors():
                if tensor.device == mine.device:
                    tensor.record_stream(mine)


def is_per_thread(stream: torch.cuda.Stream) -> bool:
    return stream.cuda_stream == _PER_THREAD


def _stand_in(stream: torch.cuda.Stream) -> torch.cuda.Stream:
    if not is_per_thread(stream):
        return stream
    by_device: dict[str, torch.cuda.Stream] = _stand_ins.__dict__  # one dictionary per thread
    key = str(stream.device)
    if key not in by_device:
        by_device[key] = type(stream)(stream.device)
    by_device[key].wait_stream(stream)
    return by_device[key]


def refuse_capture(function: str, reason: str) -> None:
    """Raises RuntimeError if this thread's current stream is being captured."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{function} cannot be used inside a capture: {reason}")


def _default_device() -> torch.device | None:
    """Returns the device of `with torch.device(...)` or set_default_device(), or None."""
    overrides, utils = sys.modules["torch"].overrides, sys.modules["torch"].utils
    for mode in overrides._get_current_function_mode_stack():
        if isinstance(mode, utils._device.DeviceContext):
            device: torch.device = mode.device
            return device
    return None


def _host_managed_switch() -> Callable[[int], int] | None:
    return library_function("uvmalloc_set_host_managed", ctypes.c_int, ctypes.c_int)


def _host_managed() -> int | None:
    switch = _host_managed_switch()
    if switch is None:
        return None
    value = switch(1)
    switch(value)
    return value
