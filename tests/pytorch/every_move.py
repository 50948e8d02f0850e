"""Moves every kind of tensor, does what programs do around moves, and prints each result.

test_every_move.py runs this program with torch's own allocators and with uvmalloc: the output
must be the same. With the argument `reads`, nothing is written after a move, so the program also
runs in alias mode, in which layouts stay as they are.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import io
import pickle
import sys
import tempfile
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator

import numpy
import torch
from torch import nn

READS = "reads" in sys.argv[1:]
LARGE = (256, 1024)  # 1 MiB of float32: such blocks move without a copy

SCENARIOS: list[Callable[[], object]] = []
WRITES: set[str] = set()


def scenario(function: Callable[[], object]) -> Callable[[], object]:
    SCENARIOS.append(function)
    return function


def writing(function: Callable[[], object]) -> Callable[[], object]:
    """Marks a scenario that writes to a tensor while the other side of a move lives."""
    WRITES.add(function.__name__)
    return scenario(function)


def ramp(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> torch.Tensor:
    count = 1
    for size in shape:
        count *= size
    return (torch.arange(count, device=device) % 251).to(dtype).reshape(shape)


def digest(x: object) -> object:
    """Returns everything that a program can see of a tensor, except its address."""
    if not isinstance(x, torch.Tensor):
        return x
    seen: list[object] = [type(x).__name__, str(x.dtype), x.device.type, str(x.layout)]
    seen += [tuple(x.shape) if not x.is_nested else x.dim(), x.requires_grad, x.is_leaf]
    if x.device.type == "meta":
        return seen
    if x.is_nested:
        return [*seen, [digest(part) for part in x.unbind()]]
    if x.layout == torch.sparse_coo:
        return [*seen, x.is_coalesced(), digest(x._indices()), digest(x._values())]
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [*seen, digest(x.crow_indices()), digest(x.col_indices()), digest(x.values())]
    if x.layout == torch.sparse_csc:
        return [*seen, digest(x.ccol_indices()), digest(x.row_indices()), digest(x.values())]
    seen += [x.stride(), x.storage_offset(), x.is_conj(), x.is_neg()]
    if x.is_quantized:
        seen.append(str(x.qscheme()))
        return [*seen, digest(x.cpu().int_repr()), digest(x.cpu().dequantize())]
    # Looks at a copy, because a look at the tensor would count as an exported pointer.
    plain = x.detach().resolve_conj().resolve_neg().to("cpu", copy=True)
    if type(plain) is not torch.Tensor:
        return seen
    return [*seen, zlib.crc32(plain.contiguous().view(-1).view(torch.uint8).numpy())]


# ---- kinds of tensors


def kinds() -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    for dtype in (
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int8,
        torch.uint8,
        torch.bool,
        torch.complex64,
        torch.complex128,
        torch.float8_e4m3fn,
        torch.uint16,
    ):
        yield str(dtype), lambda dtype=dtype: ramp(1024, 1024).to(dtype)
    yield "whole", lambda: ramp(*LARGE)
    yield "small", lambda: ramp(3, 5)
    yield "0-dim", lambda: torch.tensor(2.5)
    yield "zero-size", lambda: torch.empty(0, 7)
    yield "zero-size view", lambda: ramp(*LARGE)[:0]
    yield "transposed", lambda: ramp(*LARGE).t()
    yield "channels last", lambda: ramp(4, 16, 64, 64).contiguous(memory_format=torch.channels_last)
    yield (
        "channels last 3d",
        lambda: ramp(4, 8, 8, 32, 32).contiguous(memory_format=torch.channels_last_3d),
    )
    yield "gaps", lambda: ramp(*LARGE)[:, ::2]
    yield "rows", lambda: ramp(1024, 1024)[256:768]
    yield "odd part", lambda: ramp(1 << 19)[3 : 3 + (1 << 18)]
    yield "expanded", lambda: ramp(1, 1024).expand(256, 1024)
    yield "expanded whole", lambda: ramp(*LARGE).expand(3, *LARGE)
    yield "permuted", lambda: ramp(8, 32, 1024).permute(2, 0, 1)
    yield "overlapping", lambda: torch.as_strided(ramp(1 << 19), (256, 1024), (512, 1))
    yield "one element of many", lambda: ramp(*LARGE)[7, 7]
    yield "unfolded", lambda: ramp(1 << 18).unfold(0, 1024, 512)
    yield "conjugated", lambda: ramp(*LARGE, dtype=torch.complex64).mul(1 + 2j).conj()
    yield "negative", lambda: ramp(*LARGE, dtype=torch.complex64).mul(1 + 2j).conj().imag
    yield "real part", lambda: ramp(*LARGE, dtype=torch.complex64).real
    yield "viewed as another type", lambda: ramp(*LARGE).view(torch.int32)
    yield "sparse coo", lambda: (ramp(*LARGE) * (ramp(*LARGE) < 9)).to_sparse()
    yield "uncoalesced", lambda: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], (4, 4))
    yield "sparse csr", lambda: (ramp(*LARGE) * (ramp(*LARGE) < 200)).to_sparse_csr()
    yield "sparse csc", lambda: (ramp(*LARGE) * (ramp(*LARGE) < 9)).to_sparse_csc()
    yield "sparse bsr", lambda: ramp(*LARGE).to_sparse_bsr((16, 16))
    yield "nested strided", lambda: torch.nested.nested_tensor([ramp(512, 700), ramp(300, 700)])
    yield (
        "nested jagged",
        lambda: torch.nested.nested_tensor([ramp(512, 700), ramp(300, 700)], layout=torch.jagged),
    )
    yield "needs grad", lambda: ramp(*LARGE).requires_grad_()
    yield "parameter", lambda: nn.Parameter(ramp(*LARGE))
    yield "inference", lambda: _in_inference(lambda: ramp(*LARGE))


def quantised() -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    yield "per tensor", lambda: torch.quantize_per_tensor(ramp(1024, 1024), 0.5, 3, torch.quint8)
    yield (
        "per channel",
        lambda: torch.quantize_per_channel(
            ramp(1024, 1024),
            torch.linspace(0.5, 1.0, 1024, dtype=torch.float64),
            torch.zeros(1024, dtype=torch.int64),
            0,
            torch.qint8,
        ),
    )


def _in_inference(make: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.inference_mode():
        return make()


def ways(x: torch.Tensor) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    yield "to", lambda: x.to("cuda")
    yield "cuda", lambda: x.cuda()
    yield "index", lambda: x.to(torch.device("cuda", 0), non_blocking=True)
    yield "copy", lambda: x.to("cuda", copy=True)
    yield "other", lambda: x.to(torch.empty(1, device="cuda", dtype=x.dtype))
    yield "round trip", lambda: x.to("cuda").cpu()
    yield "second device", lambda: x.to("cuda:1").to("cuda:0")
    yield "converted", lambda: x.to("cuda", torch.float32)
    if x.layout == torch.strided and not x.is_nested and not x.is_quantized:
        yield "contiguous", lambda: x.to("cuda", memory_format=torch.contiguous_format)
        if x.is_conj():
            return  # the simulated device cannot run conj_kernel_cuda
        yield "into", lambda: torch.empty(x.shape, dtype=x.dtype, device="cuda").copy_(x.detach())
        yield "like", lambda: torch.empty_like(x, device="cuda").copy_(x.detach())
        yield "new", lambda: x.new_empty(x.shape, device="cuda").copy_(x.detach())
        yield "tensor", lambda: torch.as_tensor(x, device="cuda")
        if x.dim() == 4:
            yield "last", lambda: x.to("cuda", memory_format=torch.channels_last)


def outcome(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception as error:  # the kind of error must be the same
        first = str(error).strip().splitlines()
        return f"{type(error).__name__}: {first[0] if first else ''}"


def move_every_kind() -> None:
    for name, make in (*kinds(), *quantised()):
        few = ("to", "round trip", "converted") if name.startswith("torch.") else None
        for way in [way for way, _ in ways(make()) if few is None or way in few]:

            def moved(make: Callable[[], torch.Tensor] = make, way: str = way) -> object:
                x = make()
                y = dict(ways(x))[way]()
                seen = [digest(y), y is x, y._is_view() if not y.is_inference() else None]
                if READS or not y.is_floating_point() or y.is_quantized:
                    return seen
                with torch.no_grad():
                    # Writes to each side in turn, in place if the tensor allows it.
                    seen.append(outcome(lambda: digest(x.mul_(2))))
                    seen.append(digest(y))
                    seen.append(outcome(lambda: digest(y.mul_(3))))
                    seen.append(digest(x))
                return seen

            print(name, way, outcome(moved), sep="|", flush=True)


# ---- around moves


@scenario
def module_with_buffers_and_tied_weights() -> object:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(256, 1024)
            self.head = nn.Linear(1024, 256, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("table", ramp(*LARGE))
            self.register_buffer("hidden", ramp(3), persistent=False)

    seen: list[object] = []
    torch.manual_seed(0)
    model = Tied()
    with torch.no_grad():
        model.embed.weight.copy_(ramp(*LARGE))
    before = model.embed.weight
    for place in ("cuda:0", "cpu", "cuda:1", "cuda:0", "cpu"):
        model.to(place)
        tied = model.head.weight is model.embed.weight
        same = model.embed.weight is before
        with torch.no_grad():
            model.head.weight.add_(1)
        seen += [place, tied, same, digest(model.embed.weight), digest(model.table)]
        seen.append(sorted(model.state_dict()))
    return seen


@scenario
def to_empty_and_meta() -> object:
    with torch.device("meta"):
        model = nn.Linear(1024, 256)
    seen = [digest(model.weight)]
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.weight.copy_(ramp(*LARGE))
    state = {"weight": ramp(*LARGE) + 1, "bias": ramp(256)}
    seen.append(digest(model.weight))
    model.load_state_dict(state)
    seen.append(digest(model.weight))
    with torch.device("meta"):
        other = nn.Linear(1024, 256)
    other.load_state_dict({k: v.cuda() for k, v in state.items()}, assign=True)
    seen += [digest(other.weight), outcome(lambda: ramp(3).to("meta").cuda().device.type)]
    return [*seen, outcome(lambda: torch.empty(3, device="meta").to("cuda"))]


@scenario
def swapping_parameters_on_conversion() -> object:
    seen = []
    for swap in (False, True):
        torch.__future__.set_swap_module_params_on_conversion(swap)
        try:
            model = nn.Linear(1024, 256)
            with torch.no_grad():
                model.weight.copy_(ramp(*LARGE))
            held = model.weight
            model.cuda()
            seen += [model.weight is held, held.device.type, digest(model.weight)]
            model.half().cpu()
            seen += [model.weight is held, digest(model.weight)]
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)
    return seen


@scenario
def swap_tensors() -> object:
    x = ramp(*LARGE)
    y = (x + 1).cuda()
    z = x.cuda()
    torch.utils.swap_tensors(x, y)
    seen = [digest(x), digest(y), digest(z)]
    if not READS:
        x.add_(1)
        y.add_(2)
    return [*seen, digest(x), digest(y), digest(z)]


@writing
def setting_the_data_of_a_tensor() -> object:
    x = ramp(*LARGE)
    y = x.cuda()
    z = torch.empty(0, device="cuda").set_(y)
    z.add_(1)
    seen = [digest(t) for t in (x, y, z)]
    held = nn.Parameter(x)
    held.data = held.data.cuda()
    held.data.add_(1)
    x.set_(y.cpu().untyped_storage(), 0, (1024,), (1,))
    x.add_(3)
    return [*seen, digest(held), digest(x), digest(y)]


@writing
def resizing() -> object:
    seen: list[object] = []
    for keep in ("x", "y"):
        x = ramp(1 << 18)
        y = x.cuda()
        target = x if keep == "x" else y
        target.resize_(1 << 19)
        target[1 << 18 :] = 1
        target.add_(1)
        seen += [digest(x), digest(y)]
        target.resize_(100)
        target.untyped_storage().resize_(400)
        seen += [digest(x), digest(y), target.untyped_storage().nbytes()]
        target.untyped_storage().resize_(0)
        seen.append(target.untyped_storage().nbytes())
        target.untyped_storage().resize_(400)
        target.fill_(3)
        seen += [digest(x), digest(y)]
    return seen


@writing
def views_of_both_sides() -> object:
    x = ramp(*LARGE)
    row, column = x[3], x[:, 5]
    y = x.cuda()
    there = y[3]
    back = y.cpu()
    row.add_(100)
    there.mul_(2)
    back[3].sub_(1)
    column.zero_()
    return [digest(t) for t in (x, row, column, y, there, back)]


@writing
def gradients_of_both_sides() -> object:
    x = ramp(*LARGE).requires_grad_()
    y = x.cuda()
    y.retain_grad()
    z = (y * 2).cpu() * x
    z.backward(torch.ones_like(z))
    seen = [digest(x.grad), digest(y.grad)]
    with torch.no_grad():
        x.grad.add_(1)
        y.grad.add_(1)
    seen += [digest(x.grad), digest(y.grad)]
    saved = ramp(*LARGE).requires_grad_()
    loss = (saved.cuda() ** 2).sum()
    with torch.no_grad():
        saved.add_(1)
    loss.backward()
    return [*seen, digest(saved.grad)]


@scenario
def double_backward() -> object:
    x = (ramp(*LARGE) % 7).requires_grad_()
    (first,) = torch.autograd.grad((x.cuda() ** 3).sum().cpu(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.cuda().sum(), x)
    return [digest(first), digest(second)]


@scenario
def modes() -> object:
    seen = []
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            x = ramp(*LARGE)
            y = x.cuda()
            seen += [digest(y), y.is_inference(), y.requires_grad]
            z = nn.Parameter(x.clone(), requires_grad=False).cuda()
            seen += [digest(z), z.is_inference()]
    made = _in_inference(lambda: ramp(*LARGE).cuda())
    outside = ramp(*LARGE)
    with torch.inference_mode():
        inside = outside.cuda()
    return [*seen, made.is_inference(), made.cpu().is_inference(), inside.is_inference()]


@scenario
def autocast() -> object:
    torch.manual_seed(0)
    model = nn.Linear(1024, 256).cuda()
    with torch.no_grad():
        model.weight.copy_(ramp(*LARGE) % 3)
        model.bias.zero_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        out = model((ramp(8, 1024) % 3).cuda())
        back = out.cpu().cuda()
    return [digest(out), digest(back)]


@scenario
def functional_transforms() -> object:
    from torch.func import functional_call, grad, jvp, vmap

    x = ramp(*LARGE) % 7
    seen = [digest(vmap(lambda row: row.cuda() * 2)(x))]
    seen.append(digest(vmap(lambda row: row.to("cuda").cpu())(x)))
    seen.append(digest(grad(lambda t: (t.cuda() ** 2).sum().cpu())(x)))
    seen.append(digest(vmap(grad(lambda t: (t.cuda() ** 2).sum().cpu()))(x)))
    seen += [digest(t) for t in jvp(lambda t: t.cuda() * 3, (x,), (x + 1,))]
    model = nn.Linear(1024, 256, bias=False)
    weights = {"weight": x.cuda()}
    seen.append(digest(functional_call(model, weights, ((ramp(4, 1024) % 3).cuda(),))))
    pulled, back = torch.func.vjp(lambda t: t.cuda().cpu() * 2, x)
    return [*seen, digest(pulled), digest(back(x)[0])]


@scenario
def functionalized() -> object:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.cuda()
        y.add_(1)
        return y.cpu()

    x = ramp(*LARGE)
    return [digest(torch.func.functionalize(function)(x)), digest(x)] if not READS else []


@scenario
def compiled() -> object:
    seen: list[object] = []

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.to("cuda")
        z = y * 2
        return z.cpu(), y

    def writes(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.to("cuda")
        y.add_(1)
        x.mul_(2)
        return y, x.to("cuda")

    for backend in ("eager", "aot_eager"):
        for work in (function,) if READS else (function, writes):
            torch._dynamo.reset()
            x = ramp(*LARGE)
            first, second = torch.compile(work, backend=backend, fullgraph=True)(x)
            seen += [backend, work.__name__, digest(first), digest(second), digest(x)]
    torch._dynamo.reset()
    model = nn.Linear(1024, 256).cuda()
    with torch.no_grad():
        model.weight.copy_(ramp(*LARGE) % 3)
        model.bias.zero_()
    x = (ramp(4, 1024) % 3).requires_grad_()
    loss = torch.compile(model, backend="aot_eager")(x.cuda()).sum()
    loss.backward()
    return [*seen, digest(x.grad), digest(model.weight.grad)]


@scenario
def checkpointed() -> object:
    from torch.utils.checkpoint import checkpoint

    seen = []
    for reentrant in (False, True):
        x = (ramp(*LARGE) % 7).requires_grad_()
        y = checkpoint(lambda t: (t.cuda() ** 2).cpu(), x, use_reentrant=reentrant)
        y.sum().backward()
        seen += [digest(y), digest(x.grad)]
    return seen


@scenario
def saved_on_the_host() -> object:
    x = (ramp(*LARGE) % 7).cuda().requires_grad_()
    with torch.autograd.graph.save_on_cpu():
        y = x**3
    y.sum().backward()
    return [digest(y), digest(x.grad)]


@scenario
def fake_tensors() -> object:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        x = torch.empty(*LARGE)
        y = x.cuda()
        z = y.cpu()
        seen = [str(y.device), y.stride(), str(z.device), type(y).__name__]
    real = mode.from_tensor(ramp(*LARGE).cuda())
    return [*seen, str(real.device), str(real.to("cpu").device), real.shape == LARGE]


@writing
def copying_and_pickling() -> object:
    x = ramp(*LARGE)
    y = x.cuda()
    twin_x, twin_y, twin_view = copy.deepcopy((x, y, x[2:4]))
    same = twin_view.untyped_storage()._cdata == twin_x.untyped_storage()._cdata
    shallow = copy.copy(y)
    sent = pickle.loads(pickle.dumps(y))
    file = io.BytesIO()
    torch.save({"x": x, "y": y, "view": y[3:5]}, file)
    y.add_(1)
    x.sub_(1)
    file.seek(0)
    loaded = torch.load(file)
    file.seek(0)
    on_host = torch.load(file, map_location="cpu")
    together = loaded["view"].untyped_storage()._cdata == loaded["y"].untyped_storage()._cdata
    seen = [digest(t) for t in (x, y, twin_x, twin_y, twin_view, shallow, sent)]
    seen += [same, together, *(digest(t) for t in (*loaded.values(), *on_host.values()))]
    twin_view.zero_()
    return [*seen, digest(twin_x)]


@writing
def storages() -> object:
    seen: list[object] = []
    x = ramp(*LARGE)
    storage = x.untyped_storage()
    there = storage.cuda()
    x.add_(1)
    seen += [
        str(there.device),
        there.nbytes(),
        digest(torch.empty(0, device="cuda").set_(there)[:]),
    ]
    view = torch.tensor([], dtype=torch.float32, device="cuda").set_(there)
    view.add_(5)
    back = there.cpu()
    seen += [digest(x), digest(torch.tensor([]).set_(back))]
    fresh = torch.UntypedStorage(1 << 20).fill_(7)
    moved = fresh.cuda()
    fresh.fill_(8)
    seen += [moved.cpu()[9], fresh[9], fresh.resizable()]
    on_device = torch.UntypedStorage(1 << 20, device="cuda")
    on_device.copy_(fresh)
    seen.append(on_device.cpu()[-9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        typed = torch.FloatStorage(1 << 18)
        typed.fill_(2)
        other = typed.cuda()
        typed.fill_(3)
        seen += [other[5], typed[5], str(other.device), other.cpu()[3]]
        seen.append(torch.TypedStorage(1 << 18, dtype=torch.int16, device="cuda").nbytes())
    clone = there.clone()
    view.zero_()
    return [*seen, digest(torch.empty(0, device="cuda").set_(clone)), fresh.pin_memory().nbytes()]


@writing
def memory_of_others() -> object:
    seen: list[object] = []
    array = numpy.arange(1 << 18, dtype=numpy.float32) % 251
    x = torch.from_numpy(array)
    y = x.cuda()
    array += 1
    y.mul_(2)
    seen += [digest(x), digest(y), float(array[1])]
    data = bytearray(1 << 20)
    x = torch.frombuffer(data, dtype=torch.float32)
    y = x.cuda()
    x.fill_(1)
    seen += [digest(x), digest(y), data[3]]
    x = ramp(*LARGE).share_memory_()
    y = x.cuda()
    x.zero_()
    seen += [digest(x), digest(y), x.is_shared(), y.cpu().is_shared()]
    with tempfile.NamedTemporaryFile() as file:
        file.write(array.tobytes())
        file.flush()
        x = torch.from_file(file.name, shared=False, size=1 << 18)
        y = x.cuda()
        x.add_(1)
        seen += [digest(x), digest(y)]
        torch.save(ramp(*LARGE), file.name)
        x = torch.load(file.name, mmap=True)
        y = x.cuda()
        y.add_(1)
        seen += [digest(x), digest(y)]
    size = (1 << 18) * 4
    buffer = (ctypes.c_char * size)()
    x = torch.frombuffer(buffer, dtype=torch.float32)
    seen.append(digest(x.cuda()))
    return seen


@writing
def numpy_of_both_sides() -> object:
    x = ramp(*LARGE)
    y = x.cuda()
    a = x.numpy()
    a[0] = 9
    b = y.cpu().numpy()
    b[1] = 8
    seen = [digest(x), digest(y), float(b[1, 0]), float(a[1, 0])]
    forced = y.numpy(force=True)
    forced[2] = 7
    again = x.cuda()
    a[3] = 5
    seen += [digest(again), digest(x), digest(y)]
    seen.append(outcome(lambda: y.numpy()))
    z = ramp(*LARGE)
    w = z.cuda()
    c = numpy.asarray(z[4:6])
    c[:] = 1
    return [*seen, digest(z), digest(w), float(numpy.asarray(w.cpu()).sum())]


@writing
def dlpack_both_ways() -> object:
    seen: list[object] = []
    for side in ("cpu", "cuda"):
        x = ramp(*LARGE)
        y = x.cuda()
        source, other = (x, y) if side == "cpu" else (y, x)
        seen.append(tuple(map(int, source.__dlpack_device__())))
        shared = torch.from_dlpack(source)
        shared[0] = 9
        seen += [digest(source), digest(other), digest(shared)]
        moved = shared.to(other.device)
        shared[1] = 8
        seen += [digest(moved), digest(source)]
        old = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(source))
        old[2] = 7
        seen.append(digest(source))
    array = numpy.from_dlpack(ramp(*LARGE))
    seen.append(digest(torch.from_dlpack(array).cuda()))
    seen.append(outcome(lambda: type(ramp(*LARGE).__dlpack__(dl_device=(2, 0))).__name__))
    seen.append(outcome(lambda: digest(torch.from_dlpack(ramp(3), device="cuda:0"))))
    return seen


class DLManagedTensor(ctypes.Structure):
    """The structure as dlpack.h declares it."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


@scenario
def dlpack_of_managed_memory() -> object:
    """torch has no name for kDLCUDAManaged (13), and refuses it."""
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = torch.utils.dlpack.to_dlpack(ramp(*LARGE).cuda())
    managed = DLManagedTensor.from_address(get(capsule, b"dltensor"))
    seen = [managed.device_type, managed.ndim, managed.bits]
    managed.device_type = 13
    seen.append(outcome(lambda: digest(torch.utils.dlpack.from_dlpack(capsule))))
    managed.device_type = 2
    return [*seen, digest(torch.utils.dlpack.from_dlpack(capsule))]


class Wrapped(torch.Tensor):
    """A user's `__torch_function__` subclass that counts its calls."""

    seen = 0

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        cls.seen += 1
        return super().__torch_function__(function, types, args, kwargs or {})


class Held(torch.Tensor):
    """A user's `__torch_dispatch__` wrapper."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )

    def __init__(self, inner):
        self.inner = inner

    def __repr__(self):
        return "Held"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        def open_up(t):
            return t.inner if isinstance(t, Held) else t

        out = function(
            *torch.utils._pytree.tree_map(open_up, args),
            **torch.utils._pytree.tree_map(open_up, kwargs or {}),
        )
        return torch.utils._pytree.tree_map(
            lambda t: Held(t) if isinstance(t, torch.Tensor) else t, out
        )


@scenario
def subclasses() -> object:
    x = ramp(*LARGE).as_subclass(Wrapped)
    before = Wrapped.seen
    y = x.cuda()
    seen: list[object] = [
        Wrapped.seen - before,
        type(y).__name__,
        digest(y.as_subclass(torch.Tensor)),
    ]
    held = Held(ramp(*LARGE))
    there = held.to("cuda")
    seen += [type(there).__name__, str(there.device), digest(there.inner)]
    if not READS:
        there.inner.add_(1)
        seen += [digest(held.inner), digest(there.inner)]
        held.mul_(2)
        seen += [digest(held.inner), digest(there.inner)]
    parameter = nn.Parameter(Held(ramp(*LARGE)), requires_grad=False)
    module = nn.Module()
    module.weight = parameter
    seen.append(outcome(lambda: type(module.cuda().weight.data).__name__))
    return seen


@scenario
def distributed_tensors() -> object:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    with tempfile.NamedTemporaryFile() as file:
        distributed.init_process_group(
            "gloo", init_method=f"file://{file.name}", rank=0, world_size=1
        )
        try:
            mesh = init_device_mesh("cpu", (1,))
            x = DTensor.from_local(ramp(*LARGE), mesh, [Shard(0)])
            there = x.to_local().cuda()
            seen = [digest(x.to_local()), digest(there), type(x).__name__]
            seen.append(digest(x.redistribute(mesh, [Replicate()]).to_local().cuda()))
            seen.append(outcome(lambda: str(x.cuda().to_local().device)))
            on_device = init_device_mesh("cuda", (1,))
            y = DTensor.from_local(ramp(*LARGE).cuda(), on_device, [Shard(0)])
            seen.append(outcome(lambda: digest(y.cpu().to_local())))
            if not READS:
                y.mul_(2)
            return [*seen, digest(y.to_local()), digest(y.full_tensor())]
        finally:
            distributed.destroy_process_group()


@scenario
def streams_and_pinned_memory() -> object:
    side = torch.cuda.Stream()
    x = ramp(*LARGE)
    with torch.cuda.stream(side):
        y = x.cuda(non_blocking=True)
        z = y * 2
    torch.cuda.current_stream().wait_stream(side)
    y.record_stream(torch.cuda.current_stream())
    pinned = x.pin_memory()
    w = pinned.cuda(non_blocking=True)
    torch.cuda.synchronize()
    seen = [digest(y), digest(z), digest(w), x.is_pinned(), pinned.is_pinned()]
    if not READS:
        pinned.zero_()
    out = torch.empty_like(x).pin_memory().copy_(y, non_blocking=True)
    torch.cuda.synchronize()
    return [*seen, digest(out), digest(w)]


@writing
def between_devices() -> object:
    seen: list[object] = [torch.cuda.can_device_access_peer(0, 1)]
    x = ramp(*LARGE, device="cuda:0")
    y = x.to("cuda:1")
    z = torch.empty_like(x, device="cuda:1").copy_(x)
    x.add_(1)
    y.add_(2)
    seen += [t.device.index for t in (x, y, z)] + [digest(t) for t in (x, y, z)]
    with torch.cuda.device(1):
        w = x.cuda()
        here = x.t().to("cuda")
    w.mul_(2)
    seen += [w.device.index, digest(x), digest(w), here.device.index, digest(here)]
    parts = torch.nn.parallel.comm.scatter(x, (0, 1))
    gathered = torch.nn.parallel.comm.gather(parts, destination=1)
    parts[1].zero_()
    seen += [digest(t) for t in (*parts, gathered, x)]
    strided = x[:, ::3].to("cuda:1")
    x.zero_()
    return [*seen, digest(strided), outcome(lambda: x.to("cuda:2"))]


@writing
def optimizers_of_moved_models() -> object:
    torch.manual_seed(0)
    model = nn.Linear(1024, 256)
    with torch.no_grad():
        model.weight.copy_(ramp(*LARGE) % 3)
        model.bias.zero_()
    kept = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5, foreach=False)
    model.cuda()
    for _ in range(2):
        optimizer.zero_grad()
        model((ramp(4, 1024) % 3).cuda()).sum().backward()
        optimizer.step()
    state = optimizer.state_dict()
    model.cpu()
    held = [digest(v) for s in state["state"].values() for v in s.values()]
    averaged = torch.optim.swa_utils.AveragedModel(model)
    averaged.update_parameters(kept)
    return [*held, digest(model.weight), digest(kept.weight), digest(averaged.module.weight)]


@writing
def hooks_and_versions() -> object:
    x = ramp(*LARGE)
    y = x.cuda()
    seen: list[object] = [x._version, y._version]
    y.add_(1)
    x.sub_(1)
    seen += [x._version, y._version]
    fired = []
    leaf = ramp(*LARGE).requires_grad_()
    moved = leaf.cuda()
    moved.register_hook(lambda grad: fired.append(str(grad.device)))
    leaf.register_post_accumulate_grad_hook(lambda t: fired.append(str(t.grad.device)))
    product = moved * moved
    product.sum().backward()
    seen += [fired, type(moved.grad_fn).__name__, digest(leaf.grad)]
    weight = ramp(*LARGE).cuda().requires_grad_()
    used = weight * weight
    with torch.no_grad():
        weight.add_(1)
    return [*seen, outcome(lambda: used.sum().backward())]


@writing
def writes_by_every_kind_of_operator() -> object:
    """Out arguments, index writes, foreach and fused operators: each must count as a write."""
    seen: list[object] = []
    side: dict[str, Callable[[torch.Tensor], object]] = {
        "out": lambda t: torch.add(torch.ones_like(t), 1, out=t),
        "index_put": lambda t: t.index_put_((torch.tensor([1], device=t.device),), t[2]),
        "scatter": lambda t: t.scatter_(
            0, torch.zeros(1, 1024, dtype=torch.int64, device=t.device), 5
        ),
        "masked_fill": lambda t: t.masked_fill_(t > 100, 0),
        "foreach": lambda t: torch._foreach_add_([t, t[:4]], 1),
        "copy": lambda t: t.copy_(torch.ones(LARGE, device=t.device)),
        "setitem": lambda t: t.__setitem__((slice(None), 3), 7),
        "random": lambda t: t.bernoulli_(0.0),
        "sort": lambda t: torch.sort(
            t.clone(), out=(t, torch.empty(LARGE, dtype=torch.int64, device=t.device))
        ),
        "view": lambda t: t.view(torch.int32).add_(1),
        "transpose": lambda t: t.t_().add_(1),
        "zero": lambda t: t.zero_(),
        "clamp": lambda t: t.clamp_(max=9),
        "sum out": lambda t: torch.sum(torch.ones(2, *LARGE, device=t.device), 0, out=t),
        "where": lambda t: torch.where(t > 5, t, 0, out=t),
        "lerp": lambda t: t.lerp_(torch.ones_like(t), 1.0),
        "addmm": lambda t: t.addmm_(
            torch.ones(256, 2, device=t.device), torch.ones(2, 1024, device=t.device)
        ),
    }
    for name, write in side.items():
        for which in ("host", "device"):
            x = ramp(*LARGE)
            y = x.cuda()
            target = x if which == "host" else y
            seen.append((name, which, outcome(lambda t=target, f=write: f(t) is None)))
            seen += [digest(x), digest(y)]
    return seen


def main() -> None:
    torch.cuda.init()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    move_every_kind()
    for run in SCENARIOS:
        if READS and run.__name__ in WRITES:
            continue
        try:
            print(run.__name__, run(), sep="|", flush=True)
        except Exception:
            traceback.print_exc()
            print(run.__name__, "failed", sep="|", flush=True)
        gc.collect()
    if hasattr(torch.ops.uvmalloc, "check_invariants"):
        torch.ops.uvmalloc.check_invariants()


if __name__ == "__main__":
    main()
