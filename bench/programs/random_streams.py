"""Compares streamed checkpoints, load_safetensors and pipelines with PyTorch and safetensors.

    uvmalloc sim --devices 2 -- python -m bench.programs.random_streams --cases 60 --seed 0
    uvmalloc sim --devices 2 -- python -m bench.programs.random_streams --seconds 600 --seed 1000

Each case has a seed: a random model, a random file of it, a random device, stream, mode and window.
The reference is a whole model with the tensors of `safetensors.torch.load_file`. Some headers of
each file are also changed, and must be accepted or refused as by safetensors. To run a differing
case alone, use --cases 1 --seed N. The exit code is 1 if any differs. `--planted` injects a fault,
which must be found.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import uvmalloc
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

WIDTH = 8
FLOATS = (torch.float32, torch.float64, torch.bfloat16)
OTHERS = (torch.int64, torch.uint8, torch.bool, torch.float16, torch.float8_e4m3fn, torch.complex64)
HEADERS_EACH = 12
# Large enough for any case, so no window is too small.
MOST_WINDOW_BYTES = 1 << 24


class Difference(Exception):
    """The result of a case differs from the reference."""


def require(is_same: bool, *what: Any) -> None:
    if not is_same:
        raise Difference(" ".join(map(str, what)))


# ---- models -------------------------------------------------------------------------------------


class Scale(nn.Module):
    """Parameters and buffers of several types, and one that no file holds."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("shift", torch.rand(WIDTH))
        self.register_buffer("order", torch.randperm(WIDTH, device="cpu").to(self.shift.device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale + self.shift).index_select(-1, self.order)


class Counter(nn.Module):
    """Writes its buffers: one in place, one by assignment."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(WIDTH))
        self.register_buffer("total", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.detach().sum(0)
        self.total = self.total + 1
        return x + self.seen / self.total


class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scales = nn.ParameterList(torch.rand(WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for scale in self.scales:
            x = x * scale
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[:, None])[0][:, 0]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x[:, None])[:, 0]


class Around(nn.Module):
    """Uses its own parameters before and after its children."""

    def __init__(self, children: list[nn.Module]) -> None:
        super().__init__()
        self.begin = nn.Parameter(torch.rand(WIDTH))
        self.inner = nn.ModuleList(children)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.begin
        for child in self.inner:
            x = child(x)
        return x + self.begin


class Residual(nn.Module):
    def __init__(self, children: list[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.Sequential(*children)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.inner(x))


class Backwards(nn.Module):
    """Calls its children in another order, and the first one twice."""

    def __init__(self, children: list[nn.Module]) -> None:
        super().__init__()
        self.inner = nn.ModuleList(children)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for child in [*reversed(self.inner), self.inner[0]]:
            x = torch.tanh(child(x))
        return x


class Borrows(nn.Module):
    """Uses its child's weight itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(self.inner(x), self.inner.weight)


def build(seed: int) -> nn.Module:
    """Returns the model of a seed. Its values come from torch's default generator."""
    source = random.Random(seed)

    def leaf() -> nn.Module:
        kind = source.randrange(9)
        if kind == 0:
            return nn.LayerNorm(WIDTH)
        if kind == 1:
            return nn.BatchNorm1d(WIDTH)
        if kind == 2:
            return nn.Linear(WIDTH, WIDTH, bias=source.random() < 0.5)
        plain = (Scale, Counter, Lists, Recurrent, Attention, Borrows)
        return plain[kind - 3]()

    def tree(depth: int) -> nn.Module:
        if depth == 0 or source.random() < 0.3:
            return leaf()
        children = [tree(depth - 1) for _ in range(source.randrange(1, 4))]
        if source.random() < 0.2:
            children.append(children[0])  # one module twice
        kind = source.choice((Around, Residual, Backwards, None))
        return nn.Sequential(*children) if kind is None else kind(children)

    model = nn.Sequential(tree(2), tree(2), nn.Linear(WIDTH, WIDTH))
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    squares = [linear for linear in linears if linear.weight.shape == (WIDTH, WIDTH)]
    for tied in squares[1:]:
        if source.random() < 0.4:
            other = source.choice(squares[: squares.index(tied)])
            if source.random() < 0.3 and other.weight.is_contiguous():
                tied.weight = nn.Parameter(other.weight.detach().t())
            else:
                tied.weight = other.weight
    scales = [module for module in model.modules() if isinstance(module, Scale)]
    for scale in scales[1:]:
        if source.random() < 0.5:
            scale.shift = scales[0].shift
    return model.train(source.random() < 0.5).requires_grad_(False)


# ---- files --------------------------------------------------------------------------------------


def saved(model: nn.Module, source: random.Random) -> dict[str, torch.Tensor]:
    """Returns the model's tensors. Shared memory appears once, under one of its names at random."""
    by_memory: dict[Any, list[str]] = {}
    state = model.state_dict()
    for name, tensor in state.items():
        if tensor.is_contiguous():  # never under the name of a transposed view
            by_memory.setdefault(tensor.untyped_storage()._cdata, []).append(name)
    return {name: state[name].clone() for name in map(source.choice, by_memory.values())}


def write(
    folder: Path, tensors: dict[str, torch.Tensor], source: random.Random
) -> tuple[Path, dict[str, torch.Tensor]]:
    """Writes one file, or two with an index. Also returns the tensors that safetensors reads."""
    names = list(tensors)
    source.shuffle(names)
    if source.random() < 0.6:
        path = folder / "model.safetensors"
        save_file(tensors, path, metadata=source.choice((None, {"format": "pt"})))
        return path, load_file(path)
    index, read = {}, {}
    cut = source.randrange(len(names) + 1)
    for number, part in enumerate((names[:cut], names[cut:])):
        file = f"part{number}.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
        read |= load_file(folder / file)
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    return path, read


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b""


def require_same(found: torch.Tensor, wanted: torch.Tensor, *what: Any) -> None:
    for aspect in ("dtype", "shape", "requires_grad"):
        mine, other = getattr(found, aspect), getattr(wanted, aspect)
        require(mine == other, *what, aspect, mine, "instead of", other)
    require(bits(found) == bits(wanted), *what, "has other values")


# ---- one case -----------------------------------------------------------------------------------


def modes(source: random.Random, kind: str) -> Callable[[], Iterator[None]]:
    """Returns the caller's modes, to be entered on each call."""
    mode = source.choice(("none", "no_grad", "inference", "autocast"))
    current, side = source.randrange(2), source.random() < 0.5
    stream = torch.cuda.Stream(current) if side else torch.cuda.default_stream(current)

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.cuda.device(current))
            stack.enter_context(torch.cuda.stream(stream))
            if mode == "no_grad":
                stack.enter_context(torch.no_grad())
            elif mode == "inference":
                stack.enter_context(torch.inference_mode())
            elif mode == "autocast":
                stack.enter_context(torch.autocast(kind, torch.bfloat16))
            yield

    return entered


def check_tensors(
    path: Path, wanted: dict[str, torch.Tensor], device: str, source: random.Random
) -> None:
    """Checks load_safetensors and one iteration over a stream, or two at once."""
    place = torch.empty(0, device=device).device
    found = uvmalloc.load_safetensors(path, device, keep_cached=source.random() < 0.5)
    require(found.keys() == wanted.keys(), "load_safetensors gives", *found)
    for name, tensor in found.items():
        require(tensor.device == place, name, "is on", tensor.device)
        require(tensor.is_inference() == torch.is_inference_mode_enabled(), name, "is_inference")
        require_same(tensor, wanted[name], "load_safetensors:", name)
    largest = max(tensor.nbytes for tensor in wanted.values())
    window = max(2, 2 * largest + source.randrange(4096)) * 2
    with uvmalloc.stream_safetensors(path, device, window=window) as stream:
        several = [stream] if source.random() < 0.5 else [stream, stream]
        seen = 0
        for pieces in zip(*several, strict=True):
            for tensors in pieces:
                for name, tensor in tensors.items():
                    require(tensor.device == place, name, "streams to", tensor.device)
                    require_same(tensor, wanted[name], "stream:", name)
                    seen += 1
        require(seen == len(wanted) * len(several), seen, "tensors")


class Streamed:
    """A whole model, and one on the device meta that streams the same tensors."""

    def __init__(self, seed: int, prefix: str, source: random.Random) -> None:
        self.seed, self.prefix = seed, prefix
        self.tensors = {prefix + name: t for name, t in saved(build(seed), source).items()}

    def make(self, read: dict[str, torch.Tensor], device: str) -> None:
        self.whole = build(self.seed)  # with its own values
        begin = len(self.prefix)
        state = {name[begin:]: t for name, t in read.items() if name.startswith(self.prefix)}
        self.whole.load_state_dict(state, strict=False)
        self.whole.to(device)
        with torch.device("meta"):
            self.empty = build(self.seed)

    def check_after(self, read: dict[str, torch.Tensor]) -> None:
        for name, parameter in self.empty.named_parameters():
            require(parameter.is_meta, name, "has not gone")
        buffers = dict(self.empty.named_buffers(remove_duplicate=False))
        for name, wanted in self.whole.named_buffers(remove_duplicate=False):
            if not buffers[name].is_meta:
                require_same(buffers[name], wanted, "buffer", name)
            elif self.prefix + name in read:
                require_same(read[self.prefix + name], wanted, "unwritten buffer", name)


def check_models(
    path: Path,
    read: dict[str, torch.Tensor],
    models: list[Streamed],
    device: str,
    source: random.Random,
    window: int,
) -> None:
    way = source.choice(("calls", "calls", "turns", "threads", "pipeline"))
    inputs = [torch.randn(4, WIDTH, device=device) for _ in range(source.randrange(1, 4))]
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context(uvmalloc.stream_safetensors(path, device, window=window))
        for model in models:
            stack.enter_context(stream.into(model.empty, model.prefix))

        def run(model: Streamed, x: torch.Tensor) -> None:
            wanted = result(model.whole, x)
            require_same_result(result(model.empty, x), wanted, way, f"'{model.prefix}'")

        if way == "turns":
            for x in inputs:
                outputs = [(x, x)] * len(models)
                for number in range(3):
                    outputs = [
                        (result(model.empty[number], a), result(model.whole[number], b))
                        for model, (a, b) in zip(models, outputs, strict=True)
                    ]
                    for found, wanted in outputs:
                        require_same_result(found, wanted, way, number)
        elif way == "pipeline":
            for model in models:
                stage = functools.partial(result, model.empty)
                found = list(uvmalloc.pipeline(inputs, stage, memory="16MiB"))
                for mine, x in zip(found, inputs, strict=True):
                    require_same_result(mine, result(model.whole, x), way)
        elif way == "threads" and window == MOST_WINDOW_BYTES:
            run_in_threads([lambda m=model: [run(m, x) for x in inputs] for model in models])
        else:
            for x in inputs:
                for model in models:
                    run(model, x)
        if source.random() < 0.3:  # out of order
            model, number = source.choice(models), source.randrange(3)
            wanted = result(model.whole[number], inputs[0])
            require_same_result(result(model.empty[number], inputs[0]), wanted, "alone", number)
    for model in models:
        model.check_after(read)


def result(module: nn.Module, x: torch.Tensor | str) -> torch.Tensor | str:
    """Returns the result, or the error's message: kernels do not support every mixture of types."""
    try:
        return x if isinstance(x, str) else module(x)
    except RuntimeError as error:
        return str(error)


def require_same_result(found: Any, wanted: Any, *what: Any) -> None:
    if isinstance(found, str) or isinstance(wanted, str):
        require(isinstance(wanted, str) and found == wanted, *what, found, "instead of", wanted)
    else:
        require_same(found, wanted, *what)


def run_in_threads(functions: list[Callable[[], Any]]) -> None:
    """Runs each function in a thread, under this thread's state."""
    state = uvmalloc.pipelines.caller_state.CallerState.now()
    failures: list[BaseException] = []

    def run(function: Callable[[], Any]) -> None:
        try:
            state.run(function)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def run_case(seed: int, folder: Path) -> None:
    source = random.Random(seed)
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float32 if source.random() < 0.5 else source.choice(FLOATS))
    device = source.choice(("cpu", "cuda", "cuda:0", "cuda:1"))
    prefixes = source.choice((("",), ("enc.",), ("model.inner.",), ("enc.", "dec.")))
    models = [Streamed(source.randrange(1 << 30), prefix, source) for prefix in prefixes]
    tensors = {name: tensor for model in models for name, tensor in model.tensors.items()}
    for number in range(source.randrange(3)):
        shape = [source.randrange(5) for _ in range(source.randrange(3))]
        dtype = source.choice(OTHERS)
        tensors[f"other.{number}"] = torch.randint(0, 2, shape, device="cpu").to(dtype)
    path, read = write(folder, tensors, source)
    entered = modes(source, "cpu" if device == "cpu" else "cuda")
    with entered():
        check_tensors(path, read, device, source)
    window = 64
    while True:
        for model in models:
            model.make(read, device if device != "cuda" else "cpu")
        random_state, torch_state = source.getstate(), torch.get_rng_state()
        try:
            with entered():
                for model in models:
                    model.whole.to(device)
                check_models(path, read, models, device, source, window)
            break
        except ValueError as error:
            # The smallest accepted windows find most faults.
            if "window of" not in str(error) or window >= MOST_WINDOW_BYTES:
                raise
            window *= 2
            source.setstate(random_state)
            torch.set_rng_state(torch_state)
    check_headers(folder, read, source)


# ---- headers ------------------------------------------------------------------------------------

PIECES = (
    '"', "{", "}", "[", "]", ",", ":", " ", "\n", "0", "1", "-", ".", "e1", "null", "true", "NaN",
    '"F32"', '"U8"', '"__metadata__":null,', '"__metadata__":{},', '"__metadata__":{"a":"b"},',
    '"more":1,', '"more":{"a":[1.5,null]},', '"dtype":"F32",', '"shape":[],', "\\", "\\u0041",
    "\\ud800", "\u00fc", '"other":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},', "00", "1e999",
)  # fmt: skip


def check_headers(folder: Path, read: dict[str, torch.Tensor], source: random.Random) -> None:
    tensors = dict(list(read.items())[: source.randrange(4)])
    file = folder / "changed.safetensors"
    save_file(tensors, file)
    content = file.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    for _ in range(HEADERS_EACH):
        text = changed(content[8:end].decode(), source).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[end:])
        mine, other = outcome(uvmalloc.load_safetensors, file), outcome(load_file, file)
        if isinstance(mine, dict) and isinstance(other, dict):
            require(mine.keys() == other.keys(), text, "gives", *mine)
            for name, tensor in mine.items():
                require_same(tensor, other[name], text, name)
        else:
            both = isinstance(mine, dict) == isinstance(other, dict)
            require(both, text, "gives", mine, "instead of", other)
            require(isinstance(mine, ValueError), text, "gives", repr(mine))


def changed(text: str, source: random.Random) -> str:
    """Changes the text, mostly at places where JSON allows more, sometimes anywhere."""
    for _ in range(source.randrange(1, 3)):
        places = [0, *(at + 1 for at, letter in enumerate(text) if letter in "{[,:")]
        at = source.choice(places) if source.random() < 0.7 else source.randrange(len(text) + 1)
        cut = at + (source.randrange(1, 4) if source.random() < 0.2 else 0)
        text = text[:at] + source.choice(PIECES) + text[cut:]
    return text


def outcome(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of Rust is no Exception
        return error


# ---- faults that must be found ------------------------------------------------------------------


def plant(fault: str) -> None:
    from uvmalloc import loading
    from uvmalloc.pipelines import caller_state, stream_window, streamed_modules

    if fault == "tied":
        units_of = streamed_modules._units_of

        def without_others(window: Any, model: Any, prefix: str) -> Any:
            units = units_of(window, model, prefix)
            for unit in units:
                for name, found in list(unit.sources.items()):
                    if found.name != prefix + f"{unit.path}.{name}":
                        del unit.sources[name]
            return units

        streamed_modules._units_of = without_others
    elif fault == "device":
        state = caller_state.CallerState
        state.of_load = classmethod(lambda cls: state(os.getpid()))
    elif fault == "ahead":
        take = stream_window.Feed.take

        def take_what_is_ahead(self: Any, number: int) -> Any:
            if self._ahead is not None:
                self._ahead.number = number
            return take(self, number)

        stream_window.Feed.take = take_what_is_ahead
    elif fault == "modes":
        state = caller_state.CallerState
        state.now = state.of_load
    elif fault == "written":
        streamed_modules._Installed.is_written = lambda self, now: False
    elif fault == "header":
        loading._METADATA = "__other__"
    else:
        raise ValueError(f"there is no fault '{fault}'")


FAULTS = ("tied", "device", "ahead", "modes", "written", "header")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}'; accepted: a number from 1 on")
    return int(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=_positive, metavar="N", help="how many; default: 100")
    parser.add_argument("--seconds", type=_positive, metavar="N", help="or for how long")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first case")
    parser.add_argument("--planted", choices=FAULTS, help="ends at the first difference")
    options = parser.parse_args()
    if options.planted:
        plant(options.planted)
    torch.set_num_threads(1)
    torch.cuda.init()
    cases = None if options.seconds else options.cases or 100
    end = time.monotonic() + (options.seconds or 0)
    seed, different = options.seed, 0
    while seed - options.seed < cases if cases else time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            try:
                run_case(seed, Path(folder))
            except Difference as difference:
                print(f"seed {seed}: {difference}", flush=True)
                different += 1
            except Exception:
                print(f"seed {seed}: {traceback.format_exc()}", flush=True)
                different += 1
        seed += 1
        if options.planted and different:
            break
    print(f"{seed - options.seed} cases, {different} differ")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
