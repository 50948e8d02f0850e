"""Every public function of the Python side, in every way in which a program may use it.

A use is what a program does with a function: `call` computes a value with the function, `stock`
computes the same value with torch's own functions. A row is a way to run a use: on a second device,
inside a capture, beside a thread that reads. A cell is a use in a row. Its two values must be equal
in everything that a program can see. If a row makes no sense for a use, the use gives a reason
instead.

With `names`, this program prints the public names, as the product lists them. With `table`, it
prints the functions that need no rows. With `cells`, it runs all cells except those of signals.
With `signals FUNCTION`, it runs the cells of signals of one function. test_matrix.py compares.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import itertools
import json
import os
import signal
import struct
import sys
import tempfile
import threading
import traceback
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import torch
import uvmalloc
from torch import nn
from uvmalloc import torch_names

FOLDER = Path(tempfile.mkdtemp(prefix="uvmalloc-matrix-"))
WAIT_SECONDS = 120  # for calls that end at once or never
LONG_CYCLES = 10**12  # of a simulated stream

# Public functions that change nothing and wait for nothing: they need no rows.
ONLY_ASKS = frozenset(
    [
        "uvmalloc.enabled",
        "uvmalloc.memory_summary",
        "uvmalloc.groups",
        "uvmalloc.residency",
        "uvmalloc.stats",
        "Group.figures",
        "Group.number",
        "Growing.held_bytes",
        "Growing.most",
        "Growing.size",
        "Growing.tensor",
        "Pipeline.peak_bytes",
        "StreamedCheckpoint.bytes_read",
        "StreamedCheckpoint.names",
        "PlannedProgram.arena_bytes",
        "PlannedProgram.held_bytes",
        "PlannedProgram.lower_bound_bytes",
        "PlannedProgram.to_csv",
        "torch_names.get_enabled_uvm",
        "torch_names.get_enabled_uvm_move_on_copy",
        "torch_names.is_managed",
        "ops.can_move",
        "classes.ReservedMemory.held_bytes",
        "ops.check_invariants",
        "ops.group_devices",
        "ops.group_figures",
        "ops.group_file",
        "ops.group_names",
        "ops.is_managed",
        "ops.report",
        "ops.residency",
        "ops.whole_budget",
    ]
)
# uvmalloc itself calls these functions while torch is imported. No program calls them.
WIRING = frozenset(
    f"torch_names.{name}"
    for name in [
        "add_methods",
        "follow_torch",
        "install",
        "library_function",
        "take_manage_argument",
    ]
)


# ---- what is public


def public_names() -> set[str]:
    """Returns the public names as the product lists them: in the package's list, in the results
    of its functions, and in torch's registries."""
    names = set()
    for name in uvmalloc.__all__:
        function = getattr(uvmalloc, name)
        if inspect.isclass(function):
            continue  # a result or an error: the function that returns it names its methods
        names.add(f"uvmalloc.{name}")
        result = inspect.signature(function).return_annotation
        kind = getattr(inspect.unwrap(function), "__globals__", {}).get(result)
        if inspect.isclass(kind) and kind.__module__.startswith("uvmalloc."):
            names |= {f"{kind.__name__}.{each}" for each in vars(kind) if _is_for_programs(each)}
    names |= {f"torch_names.{name}" for name in _functions_of(torch_names)}
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("uvmalloc::"):
            names.add(f"ops.{name.removeprefix('uvmalloc::')}")
    for schema in torch._C._jit_get_custom_class_schemas():
        method, arguments = str(schema).split("(", 1)
        kind = arguments.split(" ", 1)[0].rpartition(".")[2]
        if ".uvmalloc." in arguments and kind in arguments:
            names.add(f"classes.{kind}.{method}")
    return names


def _is_for_programs(name: str) -> bool:
    return not name.startswith("_") or name in ("__call__", "__enter__", "__iter__", "__next__")


def _functions_of(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        if not name.startswith("_") and getattr(value, "__module__", "") == module.__name__:
            yield name


# ---- values


def ramp(device: str) -> torch.Tensor:
    """Returns a whole 2 MiB page. autocast casts its matrix product, which has a gradient."""
    return (torch.arange(1 << 19, device=device) % 251).float().reshape(64, 8192).requires_grad_()


def product(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.linear(x, x[:8]) + 1


def digest(value: Any) -> Any:
    """Returns everything that a program can see of `value`."""
    if isinstance(value, dict):
        return {key: digest(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [digest(each) for each in value]
    if not isinstance(value, torch.Tensor):
        return value
    seen = [str(value.dtype), str(value.device), tuple(value.shape), value.stride()]
    seen += [value.requires_grad, value.is_inference()]
    if value.is_meta:
        return seen
    plain = value.detach().to("cpu", copy=True).contiguous().view(-1).view(torch.uint8)
    return [*seen, zlib.crc32(bytes(plain.tolist()) if plain.numel() < 64 else plain.numpy())]


class Tied(nn.Module):
    """A language model with one weight for its input and its output."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 50)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(self.layers(self.embedding(tokens)))
        return logits


def tied(device: str) -> Tied:
    torch.manual_seed(3)
    return Tied().requires_grad_(False).to(device)


def tokens(device: str) -> torch.Tensor:
    return (torch.arange(24, device=device) * 7 % 50).reshape(2, 12)


def save_file(tensors: dict[str, torch.Tensor], name: str) -> Path:
    """Writes a safetensors file. Newer torches are tested without the format's own library."""
    header, end = {}, 0
    pieces = []
    for key, tensor in tensors.items():
        piece = tensor.detach().cpu().contiguous().numpy().tobytes()
        shape = list(tensor.shape)
        offsets = [end, end + len(piece)]
        header[key] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
        end += len(piece)
        pieces.append(piece)
    text = json.dumps(header).encode()
    file = FOLDER / name
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(pieces))
    return file


def numbered() -> dict[str, torch.Tensor]:
    return {f"t{n}": torch.full((1 << 17,), float(n)) for n in range(6)}  # 512 KiB each


# ---- uses

TABLE: dict[str, Use] = {}


def use(*names: str) -> Callable[[type[Use]], type[Use]]:
    """Adds the class to the table for all these functions, which a program uses together."""

    def add(kind: type[Use]) -> type[Use]:
        TABLE.update(dict.fromkeys(names, kind()))
        return kind

    return add


NOTHING_TO_CLOSE = "it leaves nothing behind that could be closed"
UNPINNED = (RuntimeError, "during CUDA graph capture unless the CPU tensor is pinned")  # by torch
FORKED = (RuntimeError, "this is a forked child")
DOES_NOT_WAIT = "it never waits: a signal is handled before it or after it"
WAITS_IN_THE_DRIVER = "one call of the driver waits: the signal is handled after it, as torch does"


class Use:
    """One use of a function; the docstring of this file explains uses."""

    without: ClassVar[dict[str, str]] = {}  # reasons, by row
    refuses: ClassVar[dict[str, tuple[type[Exception], str]]] = {}  # the expected error, by row
    pending_cycles = 0  # cycles of device work that a thread of uvmalloc has queued

    def make(self, device: str) -> Any:
        """Returns what `call` gets."""
        raise NotImplementedError

    def call(self, given: Any) -> Any:
        raise NotImplementedError

    def stock(self, given: Any) -> Any:
        raise NotImplementedError

    def begun(self, device: str) -> tuple[Any, Callable[[], Any]]:
        """Returns what a call gets, and the call, which a forked child ends."""
        given = self.make(device)
        return given, lambda: self.call(given)

    def read(self, given: Any) -> Any:
        """Does what another thread may do at the same time with the same memory or file."""
        return digest(given)

    def model(self, model: Tied) -> torch.Tensor:
        """Returns logits of `tokens` once the function got all parameters; may change `model`."""
        raise NotImplementedError

    def closed(self, given: Any) -> None:
        """Asserts what must hold after the end of an object that the function made."""
        raise NotImplementedError

    @contextlib.contextmanager
    def stuck(self, given: Any, stand: Callable[[], None]) -> Iterator[Callable[[], Any]]:
        """Yields a call that waits until `stand`, which does not return, has ended in any
        thread."""
        raise NotImplementedError
        yield


class OfATensor(Use):
    """Uses of functions that take a tensor and return a tensor; `touch` calls the function."""

    without: ClassVar = {
        "after close": NOTHING_TO_CLOSE,
        "SIGINT": DOES_NOT_WAIT,
        "SIGTERM": DOES_NOT_WAIT,
    }

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError

    def make(self, device: str) -> Any:
        return ramp(device)

    def call(self, given: Any) -> Any:
        return product(self.touch(given))

    def stock(self, given: Any) -> Any:
        return product(given)

    def model(self, model: Tied) -> torch.Tensor:
        for parameter in model.parameters():
            parameter.data = self.touch(parameter.data)
        logits: torch.Tensor = model(tokens("cuda"))
        return logits


@use("uvmalloc.prefetch")
class Prefetch(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        uvmalloc.prefetch(x, "cpu")
        uvmalloc.prefetch(x, x.device)
        return x


@use("ops.prefetch")
class PrefetchByOperator(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.uvmalloc.prefetch(x, torch.device("cpu"))
        torch.ops.uvmalloc.prefetch(x, x.device)
        return x


@use("uvmalloc.advise")
class Advise(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        uvmalloc.advise(x, preferred="cpu", accessed_by=x.device, read_mostly=True)
        uvmalloc.advise(x, preferred=x.device, read_mostly=False)
        return x


@use("ops.advise")
class AdviseByOperator(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        torch.ops.uvmalloc.advise(x, torch.device("cpu"), None, True)
        torch.ops.uvmalloc.advise(x, x.device, None, False)
        return x


@use("uvmalloc.mark")
class Mark(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        uvmalloc.mark("a step")
        return x


@use("uvmalloc.set_budget", "ops.set_budget")
class SetBudget(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        for device in (None, x.device):
            uvmalloc.set_budget("1GiB", device)
            uvmalloc.set_budget(None, device)
        return x


@use("torch_names.set_enabled_uvm")
class SetEnabled(OfATensor):
    refuses: ClassVar = {"after fork": FORKED}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_enabled_uvm(True)
        return x


@use("torch_names.manage_memory")
class Manage(OfATensor):
    refuses: ClassVar = {"after fork": FORKED}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return x.manage_memory()


@use("torch_names.unmanage_memory")
class Unmanage(OfATensor):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return x.unmanage_memory()


@use("ops.manage_memory", "ops.unmanage_memory")
class ManageByOperator(OfATensor):
    refuses: ClassVar = {"after fork": FORKED}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.uvmalloc.manage_memory(torch.ops.uvmalloc.unmanage_memory(x))


@use("torch_names.to_managed")
class ToManaged(OfATensor):
    """Tensor.to calls this function for its argument `manage`."""

    refuses: ClassVar = {"after fork": FORKED}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(x.device, manage=False).to(x.device, manage=True)


class Moves(OfATensor):
    without: ClassVar = {
        "after close": NOTHING_TO_CLOSE,
        "SIGINT": WAITS_IN_THE_DRIVER,
        "SIGTERM": WAITS_IN_THE_DRIVER,
    }
    refuses: ClassVar = {"inside a capture": UNPINNED}


@use("torch.Tensor.to")
class To(Moves):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return x.to("cpu").to(x.device)


@use("torch_names.uvm_to")
class UvmTo(Moves):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        return x.uvm_to("cpu").uvm_to(x.device)


@use("torch_names.set_enabled_uvm_move_on_copy")
class SetMoveOnCopy(Moves):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        torch.cuda.set_enabled_uvm_move_on_copy(True)
        try:
            return x.to("cpu").to(x.device)
        finally:
            torch.cuda.set_enabled_uvm_move_on_copy(False)


@use("torch.Tensor.pin_memory")
class Pin(Moves):
    def touch(self, x: torch.Tensor) -> torch.Tensor:
        host = x.to("cpu")
        return (host.pin_memory() if x.is_cuda else host).to(x.device, non_blocking=True)


@use("torch_names.restore_on_device")
class Load(OfATensor):
    """torch.load calls this function for each storage of a file."""

    refuses: ClassVar = {"inside a capture": UNPINNED}
    without: ClassVar = {
        **OfATensor.without,
        "SIGINT": "torch reads the file: it waits in torch's own code",
        "SIGTERM": "torch reads the file: it waits in torch's own code",
    }

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        file = io.BytesIO()
        torch.save(x, file)
        file.seek(0)
        loaded: torch.Tensor = torch.load(file, map_location=x.device)
        return loaded


class Inside(OfATensor):
    """Uses of contexts: tensors are made inside a context."""

    def holds(self) -> contextlib.AbstractContextManager[Any]:
        raise NotImplementedError

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        with self.holds():
            return x + 0


@use("uvmalloc.region")
class Region(Inside):
    without: ClassVar = {"SIGINT": DOES_NOT_WAIT, "SIGTERM": DOES_NOT_WAIT}

    def holds(self) -> contextlib.AbstractContextManager[Any]:
        return uvmalloc.region(managed=True, policy="driver", budget="64MiB")

    def closed(self, given: Any) -> None:
        region = uvmalloc.region(budget="1MiB")
        with region:
            assert_raises(torch.OutOfMemoryError, "region", ramp, "cuda")
        ramp("cuda")
        assert_raises(AttributeError, "", region.__enter__)


@use("uvmalloc.MemPool")
class Pool(OfATensor):
    refuses: ClassVar = {"after fork": (RuntimeError, "in forked subprocess")}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        with torch.cuda.use_mem_pool(uvmalloc.MemPool(), x.device):
            return x + 0


@use("classes.Region.__init__", "classes.Region.close")
class RegionObject(Inside):
    without: ClassVar = Region.without

    def holds(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.closing(torch.classes.uvmalloc.Region("driver", 64 << 20, 0, False))

    def closed(self, given: Any) -> None:
        region = torch.classes.uvmalloc.Region("", 1 << 20, 0, False)
        assert_raises(torch.OutOfMemoryError, "", ramp, "cuda")
        region.close()
        ramp("cuda")
        region.close()
        ramp("cuda")


@use("classes.ThreadRegions.__init__", "classes.ThreadRegions.enter", "classes.ThreadRegions.leave")
class ThreadRegions(Inside):
    @contextlib.contextmanager
    def holds(self) -> Iterator[None]:
        with uvmalloc.region(budget="64MiB"):
            regions = torch.classes.uvmalloc.ThreadRegions()
        regions.enter()
        try:
            yield
        finally:
            regions.leave()


@use(
    "uvmalloc.group",
    "uvmalloc.group_of",
    "Group.__enter__",
    "Group.add",
    "Group.configure",
    "Group.remove",
    "Group.sleep",
    "Group.wake",
    "ops.group_configure",
    "ops.group_open",
    "ops.group_put",
    "ops.group_put_address",
    "ops.group_sleep",
    "ops.group_wake",
)
class Grouped(OfATensor):
    refuses: ClassVar = {
        "inside a capture": (RuntimeError, "while a stream is being captured"),
        "after fork": (RuntimeError, "a device cannot be used in a forked child"),
    }

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        group = uvmalloc.group_of(x, name="matrix").configure(copies="none")
        with group:
            inside = x + 0
        group.sleep()
        group.wake()
        group.remove(x)
        return inside


@use("uvmalloc.offload_hooks")
class Offloaded(OfATensor):
    refuses: ClassVar = {"inside a capture": (RuntimeError, "while a stream is being captured")}

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        from accelerate import cpu_offload_with_hook

        uvmalloc.offload_hooks()
        module = nn.Module()
        module.register_buffer("held", x)
        module.register_parameter("first", nn.Parameter(torch.ones(1, device=x.device)))
        module.forward = lambda: module.held + 0
        module, hook = cpu_offload_with_hook(module, x.device)
        out: torch.Tensor = module()
        hook.offload()
        hook.remove()
        return out


@use(
    "uvmalloc.growing",
    "Growing.append",
    "Growing.resize",
    "classes.ReservedMemory.__init__",
    "classes.ReservedMemory.first",
    "classes.ReservedMemory.resize",
)
class Grown(OfATensor):
    refuses: ClassVar = {"after fork": (ValueError, "accepted: cuda")}
    without: ClassVar = {
        **OfATensor.without,
        **dict.fromkeys(
            ("side stream", "legacy default stream", "per-thread default stream"),
            "the end of its memory waits for the device, as its help says",
        ),
    }

    def touch(self, x: torch.Tensor) -> torch.Tensor:
        values = x.detach()
        shape, most = (0, *x.shape[1:]), max(len(x), 1)
        growing = uvmalloc.growing(shape, most, dtype=x.dtype, device=x.device)
        growing.append(values)
        growing.resize(most)
        return x + (growing.tensor - values)


class OfAFile(Use):
    """Uses of functions that read a safetensors file."""

    reads_itself = False
    refuses: ClassVar = {"inside a capture": UNPINNED}

    def make(self, device: str) -> Any:
        file = FOLDER / "numbered.safetensors"
        return (file if file.exists() else save_file(numbered(), file.name)), device

    def stock(self, given: Any) -> Any:
        _, device = given
        return {name: tensor.to(device) for name, tensor in numbered().items()}

    def read(self, given: Any) -> Any:
        return zlib.crc32(given[0].read_bytes())

    @contextlib.contextmanager
    def stuck(self, given: Any, stand: Callable[[], None]) -> Iterator[Callable[[], Any]]:
        """The disk does not answer the thread that reads ahead, or the caller if there is none."""
        read, count, callers = os.preadv, itertools.count(), []

        def preadv(*arguments: Any) -> int:
            is_callers = threading.get_ident() in callers
            if is_callers == self.reads_itself and next(count) == 1:
                stand()
            return read(*arguments)

        def call() -> Any:
            callers.append(threading.get_ident())
            return self.call(given)

        with mock.patch.object(os, "preadv", preadv):
            yield call


@use("uvmalloc.load_safetensors")
class LoadFile(OfAFile):
    reads_itself = True
    without: ClassVar = {"after close": NOTHING_TO_CLOSE}

    def call(self, given: Any) -> Any:
        return uvmalloc.load_safetensors(*given)

    def model(self, model: Tied) -> torch.Tensor:
        tensors = once(model)
        loaded = self.call((save_file(tensors, "tied.safetensors"), "cuda"))
        with torch.device("meta"):
            empty = Tied().requires_grad_(False)
        loaded.setdefault("head.weight", loaded["embedding.weight"])
        empty.load_state_dict(loaded, assign=True)
        logits: torch.Tensor = empty(tokens("cuda"))
        return logits


@use("Group.load", "ops.group_note_file")
class LoadIntoGroup(LoadFile):
    refuses: ClassVar = {
        **LoadFile.refuses,
        "after fork": (RuntimeError, "a device cannot be used in a forked child"),
    }

    def call(self, given: Any) -> Any:
        found = uvmalloc.group("loaded").load(*given)
        with given[0].open("rb") as file:
            changed_ns = os.fstat(file.fileno()).st_ctime_ns
            for tensor in filter(lambda each: each.is_cuda, found.values()):
                # Tensors of a group without a file sleep in none.
                noted = torch.ops.uvmalloc.group_note_file(
                    tensor, file.fileno(), file.name, changed_ns
                )
                assert noted == 0
        return found


def once(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns the model's tensors. A shared tensor appears under its first name only."""
    return {name: tensor.cpu() for name, tensor in model.named_parameters()}


@use(
    "uvmalloc.stream_safetensors",
    "StreamedCheckpoint.__enter__",
    "StreamedCheckpoint.__iter__",
    "StreamedCheckpoint.close",
)
class Stream(OfAFile):
    refuses: ClassVar = {
        "inside a capture": (RuntimeError, "stream_safetensors cannot be used inside a capture"),
    }
    without: ClassVar = {
        "tied weights": "tensors come by name alone; into() gives them to a model",
    }

    def call(self, given: Any) -> Any:
        found = {}
        with uvmalloc.stream_safetensors(*given, window="2MiB") as stream:
            for piece in stream:
                found |= {name: tensor.clone() for name, tensor in piece.items()}
        return found

    def begun(self, device: str) -> tuple[Any, Callable[[], Any]]:
        given = self.make(device)
        stream = uvmalloc.stream_safetensors(*given, window="2MiB")
        pieces = iter(stream)
        first = dict(next(pieces))

        def rest() -> Any:
            for piece in pieces:
                first.update(piece)
            return first

        return given, rest

    def closed(self, given: Any) -> None:
        stream = uvmalloc.stream_safetensors(*given, window="2MiB")
        begun = iter(stream)
        first = next(begun)["t0"]
        stream.close()
        stream.close()
        with save_file({"t0": torch.zeros(1 << 20)}, "other").open("rb"):  # reuses the descriptor
            assert_raises(ValueError, "closed", list, begun)
            assert_raises(ValueError, "closed", list, stream)
        assert digest(first) == digest(self.stock(given)["t0"]), "what was given stays"


@use("StreamedCheckpoint.into")
class Into(OfAFile):
    refuses: ClassVar = Stream.refuses

    def make(self, device: str) -> Any:
        file = FOLDER / "model.safetensors"
        return (file if file.exists() else save_file(once(tied("cpu")), file.name)), device

    def call(self, given: Any) -> Any:
        file, device = given
        with torch.device("meta"):
            model = Tied().requires_grad_(False)
        with uvmalloc.stream_safetensors(file, device, window="1MiB") as stream, stream.into(model):
            return [model(tokens(device)) for _ in range(2)]

    def stock(self, given: Any) -> Any:
        _, device = given
        model = tied(device)
        return [model(tokens(device)) for _ in range(2)]

    def model(self, model: Tied) -> torch.Tensor:
        logits: torch.Tensor = self.call((save_file(once(model), "tied"), "cuda"))[0]
        return logits

    def begun(self, device: str) -> tuple[Any, Callable[[], Any]]:
        given = file, device = self.make(device)
        with torch.device("meta"):
            model = Tied().requires_grad_(False)
        stream = uvmalloc.stream_safetensors(file, device, window="1MiB")
        held = stream.into(model)
        held.__enter__()
        first = model(tokens(device))

        def rest() -> Any:
            try:
                return [first, model(tokens(device))]
            finally:
                held.__exit__(None, None, None)

        return given, rest

    def closed(self, given: Any) -> None:
        file, device = given
        with torch.device("meta"):
            model = Tied().requires_grad_(False)
        with uvmalloc.stream_safetensors(file, device, window="1MiB") as stream:
            with stream.into(model):
                model(tokens(device))
            assert all(parameter.is_meta for parameter in model.parameters())
            with stream.into(model):
                stream.close()
                assert_raises(ValueError, "closed", model, tokens(device))
        assert all(parameter.is_meta for parameter in model.parameters())


@use(
    "uvmalloc.pipeline",
    "Pipeline.__enter__",
    "Pipeline.__iter__",
    "Pipeline.__next__",
    "Pipeline.close",
)
class Pipeline(Use):
    pending_cycles = 10**8
    refuses: ClassVar = {
        "inside a capture": (RuntimeError, "pipeline cannot be used inside a capture"),
    }

    def make(self, device: str) -> Any:
        return [ramp(device) for _ in range(3)]

    def call(self, given: Any) -> Any:
        device = given[0].device

        def slow(x: torch.Tensor) -> torch.Tensor:
            if x.is_cuda:
                torch.cuda._sleep(self.pending_cycles)
            return product(x)

        stages = [lambda x: x.to("cpu") + 1, lambda x: x.to(device), slow]
        with uvmalloc.pipeline(given, *stages) as made:
            return [item.clone() for item in made]

    def stock(self, given: Any) -> Any:
        return [product((x.to("cpu") + 1).to(x.device)).clone() for x in given]

    def model(self, model: Tied) -> torch.Tensor:
        with uvmalloc.pipeline([tokens("cpu")] * 2, lambda x: x.to("cuda"), model) as made:
            *_, last = made
        logits: torch.Tensor = last
        return logits

    def begun(self, device: str) -> tuple[Any, Callable[[], Any]]:
        given = self.make(device)
        made = uvmalloc.pipeline(given, product)
        next(made)

        def rest() -> Any:
            assert_raises(RuntimeError, "threads of the process that has forked", next, made)
            made.close()
            return self.call(given)

        return given, rest

    def closed(self, given: Any) -> None:
        made = uvmalloc.pipeline(given, product)
        next(made)
        made.close()
        made.close()
        assert list(made) == []
        with made:
            assert next(made, None) is None

    @contextlib.contextmanager
    def stuck(self, given: Any, stand: Callable[[], None]) -> Iterator[Callable[[], Any]]:
        yield lambda: list(uvmalloc.pipeline(given, lambda _: stand()))


class Computation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = torch.sin(x * 3) + 1
        return nn.functional.linear(x, x[:8]) + 1


@use("uvmalloc.plan_storage", "PlannedProgram.__call__")
class Plan(Use):
    without: ClassVar = {"after close": NOTHING_TO_CLOSE}
    _planned: ClassVar[dict[str, Any]] = {}

    def make(self, device: str) -> Any:
        x = ramp(device)
        key = str(x.device)
        if key not in self._planned:
            with torch.inference_mode(False), torch.autocast("cuda", enabled=False):
                program = self.program(torch.randn(64, 8192, device=key))
                self._planned[key] = program, uvmalloc.plan_storage(program)
        return x

    def call(self, given: Any) -> Any:
        return self._planned[str(given.device)][1](given)

    def stock(self, given: Any) -> Any:
        with torch.no_grad():
            return self._planned[str(given.device)][0].module()(given)

    def program(self, x: torch.Tensor) -> torch.export.ExportedProgram:
        return torch.export.export(Computation(), (x,))

    def model(self, model: Tied) -> torch.Tensor:
        program = torch.export.export(model, (tokens("cuda"),))
        planned = uvmalloc.plan_storage(program)
        planned(tokens("cuda"))
        logits: torch.Tensor = planned(tokens("cuda"))
        return logits

    @contextlib.contextmanager
    def stuck(self, given: Any, stand: Callable[[], None]) -> Iterator[Callable[[], Any]]:
        """The run of another thread does not end."""
        _, planned = self._planned[str(given.device)]
        begun = threading.Event()

        def hold() -> None:
            with planned._arena.turn():
                begun.set()
                stand()

        threading.Thread(target=hold, daemon=True).start()
        begun.wait()
        yield lambda: self.call(given)


@use("classes.ReservedMemory.back")
class PlanOfSizesThatVary(Plan):
    _planned: ClassVar[dict[str, Any]] = {}

    def program(self, x: torch.Tensor) -> torch.export.ExportedProgram:
        sizes = {"x": {0: torch.export.Dim("rows", min=8, max=4096)}}
        return torch.export.export(Computation(), (x,), dynamic_shapes=sizes)


@use("PlannedProgram.release")
class ReleasedPlan(PlanOfSizesThatVary):
    _planned: ClassVar[dict[str, Any]] = {}
    refuses: ClassVar = {"inside a capture": (RuntimeError, "accepted: no capture")}
    without: ClassVar = {
        **Plan.without,
        **dict.fromkeys(
            ("side stream", "legacy default stream", "per-thread default stream"),
            "it waits for the device, as its help says",
        ),
    }

    def call(self, given: Any) -> Any:
        self._planned[str(given.device)][1].release()
        return super().call(given)


# ---- rows

ROWS: dict[str, Callable[[Use], None]] = {}


def row(name: str) -> Callable[[Callable[[Use], None]], Callable[[Use], None]]:
    def add(run: Callable[[Use], None]) -> Callable[[Use], None]:
        ROWS[name] = run
        return run

    return add


def assert_raises(kind: type[BaseException], words: str, function: Any, *arguments: Any) -> None:
    try:
        result = function(*arguments)
    except kind as error:
        assert words in str(error), f"the error says '{error}', and not '{words}'"
    else:
        raise AssertionError(f"gave {result!r:.80}, and not {kind.__name__}")


def check(each: Use, device: str = "cuda") -> None:
    """Runs a use in the plain way. Most rows call this function in a special situation."""
    given = each.make(device)
    found, wanted = each.call(given), each.stock(given)
    assert digest(found) == digest(wanted), f"gave {digest(found)}, and not {digest(wanted)}"


def check_on(each: Use, stream: torch.cuda.Stream, other: torch.cuda.Stream) -> None:
    """Checks a use while the other stream is busy for long. The use must put no work on the
    other stream, and must not wait for that stream."""
    is_per_thread = stream.cuda_stream == 2  # cudaStreamPerThread
    with torch.cuda.stream(stream):
        given = each.make("cuda")
        wanted = digest(each.stock(given))
        begin, end, before, after = (torch.cuda.Event(enable_timing=True) for _ in range(4))
        begin.record(stream)
        with torch.cuda.stream(other):
            torch.cuda._sleep(LONG_CYCLES)
        before.record(other)
        found = each.call(given)
        end.record(stream)
        after.record(other)
        assert digest(found) == wanted
        torch.cuda.synchronize()
        cycles = LONG_CYCLES * begin.elapsed_time(end) / begin.elapsed_time(before)
        assert cycles >= each.pending_cycles, "the caller's stream has not waited for the result"
        if is_per_thread and each.pending_cycles:
            return  # uvmalloc's threads then wait for the whole device (docs/internals/design.md)
        assert cycles < LONG_CYCLES / 2, "it has waited for another stream"
        assert before.elapsed_time(after) == 0, "it has put work on another stream"


@row("second device")
def _(each: Use) -> None:
    with torch.cuda.device(1):
        check(each)


@row("side stream")
def _(each: Use) -> None:
    check_on(each, torch.cuda.Stream(), torch.cuda.default_stream())


@row("legacy default stream")
def _(each: Use) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        check_on(each, torch.cuda.default_stream(), side)


@row("per-thread default stream")
def _(each: Use) -> None:
    check_on(each, torch.cuda.ExternalStream(2), torch.cuda.Stream())  # cudaStreamPerThread


@row("no_grad")
def _(each: Use) -> None:
    with torch.no_grad():
        check(each)


@row("inference_mode")
def _(each: Use) -> None:
    with torch.inference_mode():
        check(each)


@row("autocast")
def _(each: Use) -> None:
    with torch.autocast("cuda", torch.bfloat16):
        check(each)


@row("inside a capture")
def _(each: Use) -> None:
    given = each.make("cuda")
    each.call(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    refusal = each.refuses.get("inside a capture")
    with torch.cuda.graph(graph):
        if refusal is not None:
            assert_raises(*refusal, each.call, given)
        else:
            found = each.call(given)
    graph.replay()
    torch.cuda.synchronize()
    if refusal is None:
        assert digest(found) == digest(each.stock(given))
    check(each)


def beside(*functions: Callable[[], None]) -> None:
    """Runs the functions at the same time, each on its own thread."""
    errors: list[BaseException] = []
    start = threading.Barrier(len(functions))

    def run(function: Callable[[], None]) -> None:
        start.wait()
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


@row("another thread reads")
def _(each: Use) -> None:
    given = each.make("cuda")
    value = each.read(given)
    wanted = digest(each.stock(given))
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            assert each.read(given) == value, "the reader saw another value"

    def call() -> None:
        try:
            for _ in range(3):
                assert digest(each.call(given)) == wanted
        finally:
            is_over.set()

    beside(read, call)


@row("two at once")
def _(each: Use) -> None:
    given = each.make("cuda")
    wanted = digest(each.stock(given))

    def call() -> None:
        for _ in range(3):
            assert digest(each.call(given)) == wanted

    beside(call, call)


@row("after close")
def _(each: Use) -> None:
    each.closed(each.make("cuda"))
    check(each)


@row("after fork")
def _(each: Use) -> None:
    """A child has no device, so it computes on the host. What needs the device raises an error.

    Another thread may be inside the function at the moment of the fork.
    """
    on_the_device = each.make("cuda")
    each.call(on_the_device)
    torch.cuda.synchronize()
    given, go_on = each.begun("cpu")
    wanted = digest(each.stock(given))

    def child() -> None:
        refusal = each.refuses.get("after fork")
        if refusal is not None:
            assert_raises(*refusal, check, each, "cpu")
        else:
            assert digest(go_on()) == wanted
            check(each, "cpu")
        assert_raises(RuntimeError, "", each.call, on_the_device)

    in_a_child(child)
    if "SIGINT" not in each.without:
        (reached, reach), (released, release) = os.pipe(), os.pipe()
        with each.stuck(given, stand_on(reach, released)) as call:
            inside = threading.Thread(target=call)
            inside.start()
            os.read(reached, 1)
            in_a_child(child)
            os.close(release)
            inside.join()
    check(each)


def in_a_child(function: Callable[[], None]) -> None:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            signal.alarm(WAIT_SECONDS)
            function()
        except BaseException:
            said = traceback.format_exc()
        finally:
            os.write(send, said.encode()[-60_000:])
            os._exit(0)
    os.close(send)
    with os.fdopen(receive) as answer:
        said = answer.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert (status, said) == (0, ""), f"the child's exit code is {status}: {said}"


@row("tied weights")
def _(each: Use) -> None:
    model = tied("cuda")
    wanted = digest(model(tokens("cuda")))
    assert digest(each.model(model)) == wanted


SIGNALS = ("SIGINT", "SIGTERM")


def stand_on(reached: int, released: int) -> Callable[[], None]:
    """Returns a function that writes to one pipe, and returns when the other pipe is closed.
    Signals may interrupt that function."""

    def stand() -> None:
        os.write(reached, b"x")
        os.read(released, 1)

    return stand


def signals(each: Use) -> None:
    """Sends each signal while the use waits. Ends by SystemExit(7), from the handler of SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    given = each.make("cuda")
    for name in SIGNALS:
        (reached, reach), (released, release) = os.pipe(), os.pipe()

        def send(reached: int = reached, number: int = getattr(signal, name)) -> None:
            os.read(reached, 1)
            os.kill(os.getpid(), number)

        threading.Thread(target=send, daemon=True).start()
        try:
            with each.stuck(given, stand_on(reach, released)) as call:
                call()
            print(name, "was not handled", flush=True)
        except KeyboardInterrupt:
            os.close(release)
            check(each)
            print("right after", name, flush=True)


# ---- the program


def main() -> None:
    sys.setswitchinterval(1e-4)
    torch.set_num_threads(1)
    torch.cuda.init()
    what, *rest = sys.argv[1:]
    if what == "names":
        print(*sorted(public_names()), sep="\n")
    elif what == "table":
        print(*sorted(ONLY_ASKS | WIRING), sep="\n")
    elif what == "signals":
        signals(TABLE[rest[0]])
    else:
        run_cells(rest)
    if hasattr(torch.ops.uvmalloc, "check_invariants"):
        torch.ops.uvmalloc.check_invariants()


def run_cells(wanted: list[str]) -> None:
    """Prints a line for each cell: "right", "wrong", a reason, or the arguments to run it alone."""
    for name, each in TABLE.items():
        if not wanted or name in wanted:
            for title in (*ROWS, *SIGNALS):
                print(name, title, outcome_of(each, title), sep="|", flush=True)


@functools.cache
def outcome_of(each: Use, title: str) -> str:
    if title in each.without:
        return each.without[title]
    if title in SIGNALS:
        return "signals " + next(name for name, other in TABLE.items() if other is each)
    try:
        ROWS[title](each)
    except Exception:
        traceback.print_exc()
        return "wrong"
    return "right"


if __name__ == "__main__":
    main()
