"""Provides the modules of a model with tensors of a streamed checkpoint while the modules run."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from uvmalloc.forks import ForkedLock
from uvmalloc.pipelines.caller_state import WAIT_SECONDS, is_per_thread
from uvmalloc.pipelines.stream_window import Feed, Piece, Window
from uvmalloc.sizes import format_size

if TYPE_CHECKING:
    import torch

_MISSING_NAMED = 4  # number of missing tensors that an error names


class StreamedModules:
    """A model in which modules get their tensors when they are called, until close().

    A call of a module is a frame. A frame holds the tensors of its module, and tensors of other
    modules that are read in the frame. It releases the tensors at its end.
    """

    def __init__(self, window: Window, model: torch.nn.Module, prefix: str) -> None:
        self._window = window
        self._model = model
        self._units = _units_of(window, model, prefix)
        _AfterStream.end(model)
        self._numbers = {id(unit.module): number for number, unit in enumerate(self._units)}
        self._feed = Feed(window, [unit.piece(window.checkpoint.sizes) for unit in self._units])
        self._turn = ForkedLock()  # held by the thread that is inside the model
        self._thread = threading.local()
        self._undo = contextlib.ExitStack()
        self._undo.callback(self._feed.close)
        for module in model.modules():
            # Wrap both: a program may call forward() itself; _call_impl runs hooks around it.
            for name in ("forward", "_call_impl"):
                self._wrap(module, name)
        for number, unit in enumerate(self._units):
            for store in ("_parameters", "_buffers"):
                self._watch(unit.module, store, number)

    def close(self) -> None:
        self._undo.close()
        on_meta = [unit for unit in self._units if _names_on_meta(unit.module)]
        for unit in on_meta:
            _AfterStream.watch(unit.path, unit.module)
        if on_meta:
            _AfterStream.watch("", self._model)

    # ---- the model's side

    def _wrap(self, module: torch.nn.Module, name: str) -> None:
        function = getattr(module, name)
        if name in vars(module):
            self._undo.callback(vars(module).__setitem__, name, function)
        else:
            self._undo.callback(vars(module).pop, name, None)
        vars(module)[name] = _Framed(function, functools.partial(self._frame, module))

    def _watch(self, module: torch.nn.Module, store: str, number: int) -> None:
        before = vars(module)[store]
        watched = _Watched(before, functools.partial(self._use, number))

        def undo() -> None:
            before.clear()
            before.update(watched)
            vars(module)[store] = before

        self._undo.callback(undo)
        vars(module)[store] = watched

    # ---- frames

    @contextlib.contextmanager
    def _frame(self, module: torch.nn.Module) -> Iterator[None]:
        import torch

        # A forward pass may wait for a backward pass, so backward threads must not wait here.
        is_backward = torch._C._current_graph_task_id() != -1
        with contextlib.ExitStack() as stack:
            while not (has_turn := self._turn.acquire(timeout=WAIT_SECONDS)) and not is_backward:
                pass
            if has_turn:
                stack.callback(self._turn.release)
            held: list[int] = []
            frames = self._frames()
            frames.append(held)
            stack.callback(self._end_frame, frames, held)
            number = self._numbers.get(id(module))
            if number is not None:
                self._use(number)
            yield

    def _frames(self) -> list[list[int]]:
        """Returns the numbers of the units that each frame of this thread holds, innermost last."""
        frames: list[list[int]] = self._thread.__dict__.setdefault("frames", [])
        return frames

    def _end_frame(self, frames: list[list[int]], held: list[int]) -> None:
        for number in held:
            self._release(number)
        frames.pop()

    def _use(self, number: int) -> None:
        """Holds the unit's tensors until this thread's innermost frame ends."""
        frames = self._frames()
        if not frames:
            return
        unit = self._units[number]
        if not any(number in held for held in frames):
            frames[-1].append(number)  # before _install(), because setting an attribute reads it
            with self._window.lock:
                try:
                    if unit.holders == 0:
                        self._install(unit, number)
                except BaseException:
                    frames[-1].remove(number)
                    raise
                unit.holders += 1
        unit.order()

    def _install(self, unit: _Unit, number: int) -> None:
        import torch

        if unit.drop_what_the_program_has_set():
            self._feed.replace(number, unit.piece(self._window.checkpoint.sizes))
        # Not in inference mode: versions of inference tensors do not show that they were written.
        with torch.inference_mode(False):
            tensors = self._feed.take(number)
            try:
                unit.install(tensors)
            except BaseException:
                unit.uninstall()
                self._feed.give_back(number)
                raise
            finally:
                tensors.clear()

    def _release(self, number: int) -> None:
        with self._window.lock:
            unit = self._units[number]
            unit.holders -= 1
            if unit.holders == 0:
                has_changed = unit.uninstall()
                self._feed.give_back(number)
                if has_changed:
                    self._feed.replace(number, unit.piece(self._window.checkpoint.sizes))


class _BoundToModule:
    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        # A copy would call the original module.
        raise TypeError("a model cannot be copied or saved while its tensors are streamed into it")


class _Framed(_BoundToModule):
    """A method of a module. Each call of the method is a frame."""

    def __init__(self, function: Callable[..., Any], frame: Callable[[], Any]) -> None:
        self._function = function
        self._frame = frame
        functools.update_wrapper(self, function)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self._frame():
            return self._function(*arguments, **keywords)


class _Watched(_BoundToModule, dict[str, Any]):
    """A module's parameters or buffers. Calls `before_reading` before one is read by name."""

    def __init__(self, values: dict[str, Any], before_reading: Callable[[], None]) -> None:
        super().__init__(values)
        self._before_reading = before_reading

    def __getitem__(self, name: str) -> Any:
        self._before_reading()
        return super().__getitem__(name)


@dataclass(frozen=True)
class _AfterStream:
    """A hook that makes a module's calls fail if it has no values because its stream has ended.

    Without the hook, torch would compute on "meta" without an error.
    """

    path: str

    @classmethod
    def watch(cls, path: str, module: torch.nn.Module) -> None:
        if not any(isinstance(hook, cls) for hook in module._forward_pre_hooks.values()):
            module.register_forward_pre_hook(cls(path))

    @classmethod
    def end(cls, model: torch.nn.Module) -> None:
        """Removes the hooks of all modules, because torch calls modules without hooks faster."""
        for module in model.modules():
            hooks = module._forward_pre_hooks
            for key in [key for key, hook in hooks.items() if isinstance(hook, cls)]:
                del hooks[key]

    def __call__(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        import torch

        on_meta = _names_on_meta(module)
        if on_meta and any(
            isinstance(value, torch.Tensor) and not value.is_meta for value in inputs
        ):
            name = f"{self.path}.{on_meta[0]}" if self.path else on_meta[0]
            raise RuntimeError(
                f"'{name}' has no values, because the model's stream has ended; call the model "
                "inside stream.into(model), or load its tensors"
            )
        if not any(map(_names_on_meta, module.modules())):
            self.end(module)


# ---- units --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Where a module's tensor is in the files: a tensor there, or a view of one."""

    name: str
    view: tuple[tuple[int, ...], tuple[int, ...], int] | None = None  # sizes, strides, offset

    def of(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        whole = tensors[self.name]
        return whole if self.view is None else whole.as_strided(*self.view)


@dataclass(frozen=True)
class _Installed:
    before: Any
    value: torch.Tensor
    version: int

    def is_written(self, now: Any) -> bool:
        return now is not self.value or now._version != self.version


@dataclass(eq=False)
class _Unit:
    """A module's own tensors that are in the files. Guarded by the window's lock."""

    path: str
    module: torch.nn.Module
    sources: dict[str, _Source]  # by name in the module
    replaced: dict[str, torch.Tensor]  # the module's original tensors, mostly on "meta"
    holders: int = 0  # number of frames that hold the unit
    installed: dict[str, _Installed] = field(default_factory=dict)
    loaded: torch.cuda.Event | None = None  # when loaded; None: on the host
    streams: list[torch.cuda.Stream] = field(default_factory=list)  # may use the tensors

    def piece(self, sizes: dict[str, int]) -> Piece:
        names = tuple(dict.fromkeys(source.name for source in self.sources.values()))
        return Piece(f"module '{self.path}'", names, sum(sizes[name] for name in names))

    def store(self, name: str) -> dict[str, Any]:
        """Returns the dictionary of the module's parameters or buffers that has that name."""
        module = self.module
        return module._parameters if name in module._parameters else module._buffers

    def drop_what_the_program_has_set(self) -> bool:
        """Stops streaming the tensors that the program has set. Returns whether there are any."""
        own = []
        for name in self.sources:
            now = self.store(name).get(name)
            if now is not self.replaced[name] and (now is None or not now.is_meta):
                own.append(name)
        for name in own:
            del self.sources[name]
        return bool(own)

    def install(self, tensors: dict[str, torch.Tensor]) -> None:
        import torch

        made: dict[tuple[_Source, bool], torch.Tensor] = {}  # shared tensors stay shared
        for name, source in self.sources.items():
            before = self.store(name).get(name)
            key = source, isinstance(before, torch.nn.Parameter)
            if key not in made:
                value = source.of(tensors)
                made[key] = torch.nn.Parameter(value, False) if key[1] else value
            self.installed[name] = _Installed(before, made[key], made[key]._version)
            # Use setattr, not the store: nn.LSTM and others track attributes that are set.
            setattr(self.module, name, made[key])
        devices = {tensor.device for tensor in made.values() if tensor.is_cuda}
        self.streams = [torch.cuda.current_stream(device) for device in devices]
        self.loaded = self.streams[0].record_event() if self.streams else None

    def uninstall(self) -> bool:
        """Restores the tensors from before install(). Tensors that the module has written stay.

        Returns whether the module has written any.
        """
        import torch

        written = {
            name
            for name, installed in self.installed.items()
            if installed.is_written(self.store(name).get(name))
        }
        # A batch norm writes its averages without a version change. Only its counter's version
        # changes, so one written buffer counts for all buffers.
        if any(name in self.module._buffers for name in written):
            written |= self.installed.keys() & self.module._buffers.keys()
        with torch.inference_mode(False):
            for name, installed in self.installed.items():
                if name in written:
                    del self.sources[name]
                else:
                    setattr(self.module, name, installed.before)
        self.installed.clear()
        self.streams.clear()
        self.loaded = None
        return bool(written)

    def order(self) -> None:
        """Allows the current stream to use the tensors: it waits for the load, and the tensors'
        memory is not reused before its work ends.
        """
        if self.loaded is None:
            return
        import torch

        current = torch.cuda.current_stream(self.streams[0].device)
        if current in self.streams and not is_per_thread(current):
            return
        current.wait_event(self.loaded)
        for installed in self.installed.values():
            installed.value.record_stream(current)
        self.streams.append(current)


def _units_of(window: Window, model: torch.nn.Module, prefix: str) -> list[_Unit]:
    """Returns the modules with tensors in the files, in the model's order."""
    checkpoint = window.checkpoint
    try:
        sources = _Sources(checkpoint.shapes, model, prefix)
    except ValueError as error:
        raise ValueError(f"{checkpoint.path}: {error}") from None
    units = []
    missing = []
    for path, module in model.named_modules():
        found = {}
        for name, tensor in _own_tensors(module):
            source = sources.of(tensor)
            if source is not None:
                found[name] = source
            elif tensor.is_meta:
                missing.append(f"{path}.{name}" if path else name)
        if found:
            own = dict(_own_tensors(module))
            units.append(_Unit(path, module, found, {name: own[name] for name in found}))
    if not units:
        raise ValueError(f"{checkpoint.path} has no tensor of the model")
    if missing:
        named = ", ".join(f"'{name}'" for name in missing[:_MISSING_NAMED])
        more = f" and {len(missing) - _MISSING_NAMED} more" if missing[_MISSING_NAMED:] else ""
        raise ValueError(
            f"{checkpoint.path} has no tensor for {named}{more} of the model, on the device meta; "
            "give them values, or tie them to what the file has"
        )
    _check_sizes(window, model, units)
    return units


def _check_sizes(window: Window, model: torch.nn.Module, units: list[_Unit]) -> None:
    """Raises ValueError if the window cannot hold a module's tensors together with those of the
    modules around it.
    """
    sizes = window.checkpoint.sizes
    pieces = {id(unit.module): unit.piece(sizes) for unit in units}
    for piece in pieces.values():
        window.check(piece)
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, module in modules.items():
        if id(module) not in pieces:
            continue
        parts = path.split(".") if path else []
        around = {id(modules[".".join(parts[:depth])]) for depth in range(len(parts))}
        around_bytes = sum(pieces[key].size_bytes for key in around if key in pieces)
        own_bytes = pieces[id(module)].size_bytes
        if around_bytes + own_bytes > window.limit_bytes:
            raise ValueError(
                f"{window.checkpoint.path}: module '{path}' has {format_size(own_bytes)} and the "
                f"modules around it {format_size(around_bytes)}; accepted together in a window of "
                f"{format_size(window.limit_bytes)}: all of it"
            )


class _Sources:
    """Finds a model's tensors in files. The files may hold a shared tensor once, under any name."""

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], model: torch.nn.Module, prefix: str
    ) -> None:
        self._found: dict[int, _Source] = {}  # by the tensor's id
        self._by_storage: dict[Any, list[tuple[torch.Tensor, str]]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            begin = prefix + (f"{path}." if path else "")
            for own_name, tensor in _own_tensors(module):
                name = begin + own_name
                if name not in shapes or id(tensor) in self._found:
                    continue
                _check_shape(name, shapes[name], tensor)
                self._found[id(tensor)] = _Source(name)
                self._by_storage.setdefault(_storage(tensor), []).append((tensor, name))

    def of(self, tensor: torch.Tensor) -> _Source | None:
        found = self._found.get(id(tensor))
        if found is not None:
            return found
        for whole, name in self._by_storage.get(_storage(tensor), ()):
            offset = int(tensor.storage_offset() - whole.storage_offset())
            last = offset + sum(
                (size - 1) * stride
                for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
            )
            is_inside = offset >= 0 and last < whole.numel() and tensor.numel() > 0
            if is_inside and whole.is_contiguous() and whole.dtype == tensor.dtype:
                return _Source(name, (tuple(tensor.shape), tensor.stride(), offset))
        return None


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for store in (module._parameters, module._buffers):
        yield from ((name, tensor) for name, tensor in store.items() if tensor is not None)


def _names_on_meta(module: torch.nn.Module) -> list[str]:
    return [name for name, tensor in _own_tensors(module) if tensor.is_meta]


def _storage(tensor: torch.Tensor) -> Any:
    """Returns a key that is equal for tensors that share memory, also on the device "meta"."""
    import torch

    if torch.nn.parameter.is_lazy(tensor) or tensor.layout != torch.strided:
        return id(tensor)
    return tensor.untyped_storage()._cdata


def _check_shape(name: str, shape: tuple[int, ...], tensor: torch.Tensor) -> None:
    import torch

    if torch.nn.parameter.is_lazy(tensor):
        raise ValueError(f"the model has no shape for '{name}' yet; call it once before")
    if tuple(tensor.shape) != shape:
        raise ValueError(
            f"tensor '{name}' has the shape {list(shape)}, and the model's {list(tensor.shape)}"
        )
