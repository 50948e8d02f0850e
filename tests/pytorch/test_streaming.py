"""uvmalloc.stream_safetensors: windows, read-ahead, models module by module, damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.conftest import Checked, Simulate

PRELUDE = """
import os, sys, torch, uvmalloc
from safetensors.torch import save_file
folder, device = sys.argv[1], sys.argv[2]
file = os.path.join(folder, "model.safetensors")
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stream_gives_every_tensor_once_within_its_window(
    checked: Checked, tmp_path: Path, device: str
) -> None:
    checked(
        """
made = {f"layer{number:02}": torch.randn(1 << 18) for number in range(24)}  # of 1 MiB
save_file(made, file)
with uvmalloc.stream_safetensors(file, device, window="8MiB") as stream:
    assert stream.names == sorted(made)
    seen = 0
    pieces = 0
    for tensors in stream:
        pieces += 1
        assert 1 <= len(tensors) <= 4
        for name, tensor in tensors.items():
            assert tensor.device.type == device
            assert torch.equal(tensor.cpu(), made[name])
            seen += 1
    assert (seen, pieces, tensors) == (24, 6, {}), (seen, pieces)
    assert stream.bytes_read == 24 << 20
""",
        str(tmp_path),
        device,
    )


def test_a_model_of_three_times_the_device_runs_module_by_module(
    checked: Checked, tmp_path: Path
) -> None:
    checked(
        """
layers = [torch.nn.Linear(1024, 1024) for _ in range(12)]  # 4 MiB each: 48 MiB
model = torch.nn.Sequential(*layers)
save_file(model.state_dict(), file)
x = torch.randn(2, 1024)
with torch.no_grad():
    wanted = model(x)
with torch.device("meta"):
    empty = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(12)])
with uvmalloc.stream_safetensors(file, device, window="9MiB") as stream, stream.into(empty):
    for _ in range(2):
        with torch.no_grad():
            found = empty(x.to(device))
        assert torch.equal(found.cpu(), wanted)
    assert all(parameter.is_meta for parameter in empty.parameters())
    # The second pass begins anew; what was read ahead at the end of the first was nothing.
    assert stream.bytes_read == 2 * sum(4 * p.numel() for p in empty.parameters())
    with torch.no_grad():
        again = empty[3](x.to(device))  # out of order
    assert torch.equal(again.cpu(), layers[3](x).detach())
""",
        str(tmp_path),
        "cuda",
        capacity="40MiB",
    )


def test_what_does_not_fit_or_is_damaged_is_named(checked: Checked, tmp_path: Path) -> None:
    run = checked(
        """
save_file({"small": torch.ones(1 << 18), "large": torch.ones(3 << 18)}, file)
def error(function):
    try:
        function()
    except (ValueError, OSError) as thrown:
        print(str(thrown).replace(folder, "FOLDER"))
for window in ("none", 1, True):
    error(lambda: uvmalloc.stream_safetensors(file, device, window=window))
with uvmalloc.stream_safetensors(file, device, window="4MiB") as stream:
    error(lambda: list(stream))
    error(lambda: stream.into(torch.nn.Linear(2, 2)).__enter__())
save_file({f"t{n}": torch.full((1 << 18,), float(n)) for n in range(6)}, file)
with uvmalloc.stream_safetensors(file, device, window="2MiB") as stream:
    pieces = iter(stream)
    first = next(pieces)["t0"]
    os.truncate(file, os.path.getsize(file) - (1 << 20) - 8)
    def rest():
        for piece in pieces:
            list(piece.values())
    error(rest)
    assert first.eq(0).all(), "what was given stays"
# A read that fails is repeated, then an error that names the place.
save_file({f"t{n}": torch.full((1 << 18,), float(n)) for n in range(6)}, file)
real, calls = os.preadv, []
def failing(descriptor, buffers, offset):
    calls.append(offset)
    if len(calls) % 3 != 0:
        raise OSError(5, "Input/output error")
    return real(descriptor, buffers, offset)
os.preadv = failing
found = uvmalloc.load_safetensors(file, device)
assert [int(found[f"t{n}"][7]) for n in range(6)] == list(range(6))
def always(descriptor, buffers, offset):
    raise OSError(5, "Input/output error")
os.preadv = always
error(lambda: uvmalloc.load_safetensors(file, device))
""",
        str(tmp_path),
        "cpu",
        native=True,
    )
    lines = run.stdout.splitlines()
    accepted = "accepted: 512MiB, 8G, 1.5GiB or plain bytes"
    assert lines[:3] == [
        f"stream_safetensors: the window is {window}; {accepted}" for window in ("'none'", 1, True)
    ]
    assert lines[3] == (
        "FOLDER/model.safetensors: tensor 'large' has 3 MiB; "
        "accepted in a window of 4 MiB: half of it"
    )
    assert lines[4] == "FOLDER/model.safetensors has no tensor of the model"
    assert lines[5].startswith("FOLDER/model.safetensors ended early, at byte ")
    assert lines[5].endswith(": it was truncated while it was read")
    assert lines[6].startswith("[Errno 5] Input/output error, at byte ")
    assert "in 3 attempts: 'FOLDER/model.safetensors'" in lines[6]


# Models with tensors in places where a module's own forward pass does not look for them. Each model
# runs whole, and then from a file that holds each tensor once.
SHARED = (
    PRELUDE
    + """
from torch import nn
F = nn.functional

class Tied(nn.Module):  # an input and an output layer with one weight
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8), nn.Linear(8, 8)
        self.out.weight = self.inner.weight
    def forward(self, x):
        return self.out(self.inner(x))
class UsedByAnother(nn.Module):  # the parent uses its child's weight
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return F.linear(self.inner(x), self.inner.weight)
class ModuleTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = self.a
    def forward(self, x):
        return self.b(self.a(x))
class Transposed(nn.Module):  # a view of the other's memory
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.out.weight = nn.Parameter(self.inner.weight.detach().t())
    def forward(self, x):
        return self.out(self.inner(x))
class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 8, bias=False), nn.Linear(8, 4)
        self.out.weight = nn.Parameter(self.inner.weight.detach()[4:])
    def forward(self, x):
        return F.pad(self.out(self.inner(x)), (0, 4))
class Buffers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('scale', torch.rand(8))
        self.child = nn.Module()
        self.child.register_buffer('scale', self.scale)
    def forward(self, x):
        return x * self.scale + self.child.scale
class Lists(nn.Module):  # modules that are never called
    def __init__(self):
        super().__init__()
        self.list = nn.ParameterList(torch.rand(8) for _ in range(3))
        self.dict = nn.ParameterDict({'a': torch.rand(8)})
    def forward(self, x):
        for scale in self.list:
            x = x * scale
        return x + self.dict['a']
class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(8, 8, num_layers=2, batch_first=True)
    def forward(self, x):
        return self.lstm(x[:, None])[0][:, 0]
class Attention(nn.Module):  # in eval mode it hands its children's weights to one kernel
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    def forward(self, x):
        return self.layer(x[:, None])[:, 0]
class Parametrized(nn.Module):
    def __init__(self):
        super().__init__()
        self.old = nn.utils.weight_norm(nn.Linear(8, 8))
        self.new = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    def forward(self, x):
        return self.new(self.old(x))
class Called(nn.Module):  # by its forward()
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x):
        return self.inner.forward(x)
class Nested(nn.Module):  # within itself
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x, depth=3):
        return self.inner(x) if depth == 0 else self.inner(self(x, depth - 1))

KINDS = [Tied, UsedByAnother, ModuleTwice, Transposed, Half, Buffers, Lists, Recurrent, Attention,
         Parametrized, Called, Nested]
x = torch.randn(4, 8)
for kind in KINDS:
    torch.manual_seed(1)
    model = kind().requires_grad_(False)
    whole = model.state_dict()
    # Each memory once, under its first name and under its last one.
    first = {}
    for name, tensor in whole.items():
        first.setdefault(tensor.untyped_storage().data_ptr(), name)
    last = {tensor.untyped_storage().data_ptr(): name for name, tensor in whole.items()
            if tensor.is_contiguous()
            and tensor.numel() * 4 == tensor.untyped_storage().nbytes()}
    for names in {tuple(first.values()), tuple(last.values())}:
        save_file({name: whole[name].contiguous() for name in names}, file)
        with torch.device('meta'):
            empty = kind()
        for training in (True, False):
            model.to(device).train(training)
            empty.train(training)
            if kind is Attention and training:
                model.eval(), empty.eval()  # dropout
                model.layer.self_attn.train(), empty.layer.self_attn.train()
            for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
                with mode(), uvmalloc.stream_safetensors(file, device, window='16KiB') as stream:
                    wanted = [model(x.to(device)) for _ in range(2)]
                    with stream.into(empty):
                        found = [empty(x.to(device)) for _ in range(2)]
                        assert all(tensor.is_meta for tensor in empty.state_dict().values())
                for a, b in zip(wanted, found):
                    assert a.device == b.device and torch.equal(a, b), (kind, names, mode)
        model.cpu()
        torch.manual_seed(1)
        model = kind().requires_grad_(False)
    print(kind.__name__, end=' ')
"""
)


@pytest.mark.parametrize("native", [True, False])
def test_every_owner_and_user_of_a_tensor_gets_it(
    simulate: Simulate, tmp_path: Path, native: bool
) -> None:
    run = simulate(SHARED, str(tmp_path), "cuda", native=native).check()
    assert run.stdout == (
        "Tied UsedByAnother ModuleTwice Transposed Half Buffers Lists Recurrent Attention "
        "Parametrized Called Nested "
    )


def test_a_tensor_that_would_stay_on_meta_or_has_another_shape_is_named(
    checked: Checked, tmp_path: Path
) -> None:
    run = checked(
        """
def error(model, tensors, window="1MiB", **options):
    save_file(tensors, file)
    with uvmalloc.stream_safetensors(file, device, window=window) as stream:
        try:
            with stream.into(model, **options):
                print('accepted')
        except ValueError as thrown:
            print(str(thrown).replace(folder, "FOLDER"))
with torch.device("meta"):
    linear, norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
    both = torch.nn.ModuleDict({"linear": linear, "norm": norm})
weight, bias = torch.ones(4, 4), torch.ones(4)
error(linear, {"weight": weight})
error(linear, {"a.weight": weight, "a.bias": bias}, prefix="a.")
error(both, {"linear.weight": weight, "linear.bias": bias})
error(linear, {"weight": weight, "bias": torch.ones(1)})
error(torch.nn.Linear(4, 4), {"weight": weight})
error(torch.nn.LazyLinear(4), {"weight": weight, "bias": bias})
error(torch.nn.Linear(4, 4, bias=False), {"weight": weight, "bias": bias})
""",
        str(tmp_path),
        "cpu",
        native=True,
    )
    begin = "FOLDER/model.safetensors"
    end = "of the model, on the device meta; give them values, or tie them to what the file has"
    assert run.stdout.splitlines() == [
        f"{begin} has no tensor for 'bias' {end}",
        "accepted",
        f"{begin} has no tensor for 'norm.weight', 'norm.bias', 'norm.running_mean', "
        f"'norm.running_var' and 1 more {end}",
        f"{begin}: tensor 'bias' has the shape [1], and the model's [4]",
        "accepted",
        f"{begin}: the model has no shape for 'weight' yet; call it once before",
        "accepted",
    ]


def test_what_a_forward_pass_writes_stays(checked: Checked, tmp_path: Path) -> None:
    checked(
        """
from torch import nn
class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer('seen', torch.zeros(8))
        self.register_buffer('total', torch.zeros(()))
        self.scale = nn.Parameter(torch.ones(8))
    def forward(self, x):
        self.seen += x.sum(0)
        self.total = self.total + 1
        return x * self.scale + self.seen
def make():
    return nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), Counts())
model = make()
save_file(model.state_dict(), file)
with torch.device('meta'):
    empty = make()
model.to(device)
with torch.no_grad(), uvmalloc.stream_safetensors(file, device, window='64KiB') as stream:
    with stream.into(empty):
        for step in range(6):
            if step == 4:
                model.eval(), empty.eval()
            with torch.inference_mode(step % 2 == 1):
                x = torch.randn(4, 8, device=device)
                assert torch.equal(model(x), empty(x)), step
buffers = dict(empty.named_buffers())
for name, buffer in model.named_buffers():
    assert torch.equal(buffer, buffers[name]), name
assert all(parameter.is_meta for parameter in empty.parameters())
""",
        str(tmp_path),
        "cuda",
    )


def test_what_the_program_sets_meanwhile_stays(checked: Checked, tmp_path: Path) -> None:
    checked(
        """
from torch import nn
make = lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
model = make().to(device)
save_file(model.state_dict(), file)
with torch.device('meta'):
    empty = make()
x = torch.randn(2, 8, device=device)
with torch.no_grad(), uvmalloc.stream_safetensors(file, device, window='64KiB') as stream:
    with stream.into(empty):
        assert torch.equal(empty(x), model(x))
        for each in (model, empty):
            each[0].weight = nn.Parameter(torch.ones(8, 8, device=device))
            each[1].bias = None
            state = {'weight': torch.eye(8, device=device), 'bias': torch.ones(8, device=device)}
            each[2].load_state_dict(state, assign=True)
        for _ in range(2):
            assert torch.equal(empty(x), model(x))
assert not empty[0].weight.is_meta and empty[0].bias.is_meta
""",
        str(tmp_path),
        "cuda",
    )


def test_a_model_as_transformers_saves_it_runs(checked: Checked, tmp_path: Path) -> None:
    checked(
        """
import transformers
config = transformers.GPT2Config(
    vocab_size=64, n_positions=32, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1
)
torch.manual_seed(0)
model = transformers.GPT2LMHeadModel(config).eval()
model.save_pretrained(folder)  # the file holds the tied weight once
model.to(device)
with torch.device('meta'):
    empty = transformers.GPT2LMHeadModel(config).eval()
empty.tie_weights()
tokens = torch.arange(16, device=device).view(2, 8)
with torch.no_grad(), uvmalloc.stream_safetensors(folder, device, window='1MiB') as stream:
    with stream.into(empty):
        assert torch.equal(empty(tokens).logits, model(tokens).logits)
""",
        str(tmp_path),
        "cuda",
    )


def test_a_model_whose_stream_has_ended_says_so(checked: Checked, tmp_path: Path) -> None:
    checked(
        """
import copy, pickle
from torch import nn
make = lambda: nn.Sequential(nn.Embedding(8, 8), nn.Linear(8, 8))
model = make().to(device)
save_file(model.state_dict(), file)
with torch.device('meta'):
    empty = make()
x = torch.arange(8, device=device)
expected = model(x)
stream = uvmalloc.stream_safetensors(file, device, window='64KiB')
def refused(*called):
    for one in called:
        try:
            one(x)
        except RuntimeError as error:
            assert "'0.weight' has no values" in str(error) and 'ended' in str(error), error
        else:
            raise SystemExit('computed on meta')
for _ in range(2):
    with stream.into(empty):
        assert torch.equal(empty(x), expected)
    refused(empty, copy.deepcopy(empty), pickle.loads(pickle.dumps(empty)))
assert [len(each._forward_pre_hooks) for each in empty.modules()] == [1, 1, 1]
assert empty(x.to('meta')).is_meta
empty.load_state_dict(model.state_dict(), assign=True)
assert torch.equal(empty(x), expected)
assert not any(each._forward_pre_hooks for each in empty.modules())
""",
        str(tmp_path),
        "cuda",
    )


# Bytes of large tensors of the checkpoint on the device, counted while modules run.
WINDOW = (
    PRELUDE
    + """
import gc, threading
from torch import nn
def on_device():
    storages = {}
    for found in gc.get_objects():
        if type(found) in (torch.Tensor, nn.Parameter) and found.device.type == device:
            if found.numel() >= 1 << 18:
                storages[found.untyped_storage()._cdata] = found.untyped_storage().nbytes()
    return sum(storages.values())
peak, entered, ahead = 0, 0, 0
def look():
    global peak, entered
    stream._window._reader.submit(lambda: None).result()  # what is read ahead is there
    peak, entered = max(peak, on_device()), entered + 1
class Leaf(nn.Linear):
    def __init__(self):
        super().__init__(512, 512, bias=False)
    def forward(self, x):
        look()
        return super().forward(x)
class Parent(nn.Module):  # holds a tensor while its children run
    def __init__(self, *children):
        super().__init__()
        self.position = nn.Parameter(torch.rand(1 << 18))
        self.inner = nn.ModuleList(children)
    def forward(self, x):
        x = x * self.position[:512]
        for child in self.inner:
            x = child(x)
        look()
        return x + self.position[:512]
def make():
    return Parent(Leaf(), Parent(Leaf(), Leaf()), Leaf())
model = make()
save_file(model.state_dict(), file)
x = torch.rand(4, 512)
with torch.no_grad():
    stream = uvmalloc.stream_safetensors(file, 'cpu', window='64MiB')
    wanted = model(x)
    stream.close()
    for mebibytes in (2, 3, 4, 5):
        with torch.device('meta'):
            empty = make()
        peak = entered = 0
        with uvmalloc.stream_safetensors(file, device, window=mebibytes << 20) as stream:
            try:
                with stream.into(empty):
                    for _ in range(2):
                        assert torch.equal(empty(x.to(device)).cpu(), wanted)
            except ValueError as error:
                print(mebibytes, str(error).split('safetensors: ')[1])
                continue
            assert entered == 12 and peak <= mebibytes << 20, (mebibytes, entered, peak)
            assert mebibytes == 3 or peak >= 4 << 20, 'nothing is read ahead'
            # The window is that of all who use the stream.
            assert stream._window._used_bytes == 0
            pieces = [iter(stream) for _ in range(3)]
            held = [next(piece) for piece in pieces[:2]]
            try:
                held.append(next(pieces[2]))
            except ValueError as error:
                print(mebibytes, str(error).split('safetensors: ')[1])
            else:
                print(mebibytes, 'three iterations')
            assert on_device() <= mebibytes << 20
            del pieces, held
            assert stream._window._used_bytes == 0
"""
)


@pytest.mark.parametrize("native", [True, False])
def test_the_window_holds_for_nested_modules_and_for_all_users(
    simulate: Simulate, tmp_path: Path, native: bool
) -> None:
    run = simulate(WINDOW, str(tmp_path), "cuda", native=native).check()
    assert run.stdout.splitlines() == [
        "2 module 'inner.1.inner.0' has 1 MiB and the modules around it 2 MiB; accepted together "
        "in a window of 2 MiB: all of it",
        "3 three iterations",
        "4 tensor 'inner.0.weight' has 2 MiB, and other tensors in use take 4 MiB of the "
        "window of 4 MiB; use a larger window, or keep fewer tensors at a time",
        "5 tensor 'inner.0.weight' has 2 MiB, and other tensors in use take 4 MiB of the "
        "window of 5 MiB; use a larger window, or keep fewer tensors at a time",
    ]


AT_ONCE = (
    PRELUDE
    + """
import threading
from torch import nn
torch.set_num_threads(1)
def make():
    return nn.Sequential(*[nn.Linear(256, 256, bias=False) for _ in range(6)])
whole = nn.ModuleDict({'enc': make(), 'dec': make()})
save_file(whole.state_dict(), file)
with torch.device('meta'):
    empty = nn.ModuleDict({'enc': make(), 'dec': make()})
x = torch.randn(8, 256, device=device)
whole = whole.to(device)
with torch.no_grad():
    wanted = {name: whole[name](x) for name in whole}
wrong = []
def check(name, found):
    if not torch.equal(found, wanted[name]):
        wrong.append(name)
piece = 256 * 256 * 4
with torch.no_grad():
    for _ in range(10):  # two models by turns
        with uvmalloc.stream_safetensors(file, device, window=4 * piece) as stream:
            with stream.into(empty['enc'], 'enc.'), stream.into(empty['dec'], 'dec.'):
                a = b = x
                for e, d in zip(empty['enc'], empty['dec']):
                    a, b = e(a), d(b)
                check('enc', a), check('dec', b)
    for _ in range(5):  # two iterations
        with uvmalloc.stream_safetensors(file, device, window=8 * piece) as stream:
            count = 0
            for pair in zip(stream, stream):
                for tensors in pair:
                    for name, tensor in tensors.items():
                        count += torch.equal(tensor, whole.get_parameter(name))
            assert count == 24, count
            assert stream.bytes_read >= 24 * piece, stream.bytes_read
def forward(name, models):
    with torch.no_grad():
        for _ in range(5):
            check(name, models[name](x))
def run(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
# Threads: of one model, which takes turns within two pieces, and of two models.
with uvmalloc.stream_safetensors(file, device, window=2 * piece) as stream:
    with stream.into(empty['enc'], 'enc.'):
        run([threading.Thread(target=forward, args=('enc', empty)) for _ in range(4)])
with uvmalloc.stream_safetensors(file, device, window=4 * piece) as stream:
    with stream.into(empty['enc'], 'enc.'), stream.into(empty['dec'], 'dec.'):
        run([threading.Thread(target=forward, args=(name, empty)) for name in empty])
    # Two streams of one model at once: the second finds the first one's tensors.
    with stream.into(empty['enc'], 'enc.'), stream.into(empty['enc'], 'enc.'):
        forward('enc', empty)
assert all(parameter.is_meta for parameter in empty.parameters())
assert wrong == [], wrong
# A recomputation in a backward pass that a forward pass waits for.
class Guided(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(256, 256, bias=False)
    def forward(self, x):
        x = x.detach().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(self.inner, x, use_reentrant=False)
        return torch.autograd.grad(y.sum(), x)[0] + self.inner(x)
import torch.utils.checkpoint
guided = Guided().to(device)
save_file(guided.state_dict(), file)
with torch.device('meta'):
    empty = Guided()
with uvmalloc.stream_safetensors(file, device, window=4 * piece) as stream, stream.into(empty):
    assert torch.equal(empty(x), guided(x))
print('same')
"""
)


@pytest.mark.parametrize("native", [True, False])
def test_several_users_of_a_stream_at_once_get_their_own_tensors(
    simulate: Simulate, tmp_path: Path, native: bool
) -> None:
    run = simulate(AT_ONCE, str(tmp_path), "cuda", native=native).check()
    assert run.stdout == "same\n"


CALLER = (
    PRELUDE
    + """
from torch import nn
torch.cuda.init()
def make():
    return nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
model = make()
save_file(model.state_dict(), file)
made = {name: tensor.detach() for name, tensor in model.state_dict().items()}
with torch.device('meta'):
    empty = make()
piece = 65 * 64 * 4
loaded = []  # the device and stream of each load
load = uvmalloc.loading._load
def load_noted(reader, entry, where, buffer):
    loaded.append((torch.cuda.current_device(), torch.cuda.current_stream()))
    return load(reader, entry, where, buffer)
uvmalloc.loading._load = load_noted
streams = [torch.cuda.Stream(0), torch.cuda.Stream(1)]
with torch.no_grad():
    with uvmalloc.stream_safetensors(file, 'cuda', window=2 * piece) as stream:
        with stream.into(empty):
            for number in (0, 1, 1, 0):
                with torch.cuda.stream(streams[number]):
                    loaded.clear()
                    x = torch.randn(2, 64)
                    found = empty(x.cuda())
                    assert found.get_device() == number
                    assert torch.equal(found.cpu(), model(x))
                    assert loaded == [(number, streams[number])] * 8, loaded
            # Another device in the middle of a pass: what was read ahead is for the one before.
            for number in (0, 1, 0, 1):
                with torch.cuda.device(number):
                    assert empty[number](x.cuda()).get_device() == number
        for inference in (False, True):
            with torch.cuda.device(1), torch.inference_mode(inference):
                for tensors in stream:
                    for name, tensor in tensors.items():
                        assert tensor.device == torch.device('cuda', 1)
                        assert tensor.is_inference() == inference
                        assert torch.equal(tensor.cpu(), made[name])
        pieces = iter(stream)
        for number in (0, 1, 1, 0):
            with torch.cuda.device(number), torch.inference_mode(number == 0):
                for tensor in next(pieces).values():
                    assert (tensor.get_device(), tensor.is_inference()) == (number, number == 0)
# A module that uses its tensors on a stream of its own, as it may with tensors that are there.
order = []
wait, record = torch.cuda.Stream.wait_event, torch.Tensor.record_stream
torch.cuda.Stream.wait_event = lambda self, other: (order.append('wait'), wait(self, other))[1]
torch.Tensor.record_stream = lambda self, other: (order.append('record'), record(self, other))[1]
class OnItsOwn(nn.Linear):
    def forward(self, x):
        with torch.cuda.stream(streams[0]):
            return super().forward(x)
save_file(OnItsOwn(64, 64).state_dict(), file)
with torch.device('meta'):
    empty = OnItsOwn(64, 64)
with uvmalloc.stream_safetensors(file, 'cuda', window='1MiB') as stream, stream.into(empty):
    empty(torch.randn(2, 64, device='cuda'))
assert order == ['wait', 'record', 'record'], order
# A per-thread default stream has one name in all threads: who loaded the tensors is not known.
order.clear()
with torch.device('meta'):
    empty = nn.Linear(64, 64)
with uvmalloc.stream_safetensors(file, 'cuda', window='1MiB') as stream, stream.into(empty):
    with torch.cuda.stream(torch.cuda.ExternalStream(2)):
        empty(torch.randn(2, 64, device='cuda'))
assert order[:3] == ['wait', 'record', 'record'], order
print('same')
"""
)


@pytest.mark.parametrize("native", [True, False])
def test_loads_are_on_the_device_and_stream_of_the_caller(
    simulate: Simulate, tmp_path: Path, native: bool
) -> None:
    run = simulate(CALLER, str(tmp_path), "cuda", native=native, devices=2).check()
    assert run.stdout == "same\n"


ENDS = (
    PRELUDE
    + """
import contextlib, gc, threading
from torch import nn
def make():
    return nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)])
model = make()
save_file(model.state_dict(), file)
other = os.path.join(folder, 'other')
with open(other, 'wb') as written:
    written.write(bytes([1]) * (2 << 20))
with torch.device('meta'):
    empty = make()
x = torch.randn(2, 256)
torch.set_num_threads(1)  # a forked child has not the others
torch.ones(1, device=device)
open_before = len(os.listdir('/proc/self/fd'))
def closed(function):
    try:
        function()
    except ValueError as error:
        print(str(error).replace(folder, 'FOLDER'))
# Closed, and its descriptor's number is that of another file.
stream = uvmalloc.stream_safetensors(file, device, window='1MiB')
pieces = iter(stream)
next(pieces)
with contextlib.ExitStack() as stack:
    stack.enter_context(stream.into(empty))
    with torch.no_grad():
        empty[0](x.to(device))
    stream.close()
    files = [open(other, 'rb') for _ in range(4)]
    closed(lambda: empty[2](x.to(device)))
    closed(lambda: list(stream))
    closed(lambda: list(pieces))
closed(lambda: stream.into(empty).__enter__())
closed(lambda: uvmalloc.stream_safetensors(file, 'cuda:7', window='1MiB'))
for each in files:
    each.close()
assert all(parameter.is_meta for parameter in empty.parameters())
# Closed while another thread reads: the reading is of the file that was opened.
real, reached, go_on = os.preadv, threading.Event(), threading.Event()
def slow(descriptor, buffers, offset):
    reached.set()
    assert go_on.wait(60)
    return real(descriptor, buffers, offset)
checkpoint = uvmalloc.loading.Checkpoint(uvmalloc.loading.Path(file), torch.device('cpu'), False)
os.preadv = slow
found = {}
reading = threading.Thread(target=lambda: found.update(checkpoint.load(['0.weight'])))
reading.start()
reached.wait()
checkpoint.close()
files = [open(other, 'rb') for _ in range(4)]
go_on.set()
reading.join()
os.preadv = real
assert torch.equal(found['0.weight'], model[0].weight)
for each in files:
    each.close()
# An end in the middle of a pass: by an error, Ctrl-C or the end of the program.
class Ending(nn.Linear):
    def forward(self, x):
        raise kind('the end')
for kind in (OSError, KeyboardInterrupt, SystemExit):
    with uvmalloc.stream_safetensors(file, device, window='1MiB') as stream:
        with stream.into(empty), torch.no_grad():
            empty[1].__class__ = Ending
            try:
                empty(x.to(device))
            except kind:
                pass
            empty[1].__class__ = nn.Linear
            assert all(parameter.is_meta for parameter in empty.parameters()), kind
            assert torch.equal(empty(x.to(device)).cpu(), model(x))
        assert stream._window._used_bytes == 0
        assert '_call_impl' not in vars(empty[0]) and type(empty[0]._parameters) is dict
for thread in threading.enumerate():
    if thread.name.startswith('uvmalloc stream'):
        thread.join()  # it may still read ahead
gc.collect()
assert len(os.listdir('/proc/self/fd')) == open_before
# A copy would call the modules of the original, and a graph keep addresses of tensors that go.
import copy, inspect
with uvmalloc.stream_safetensors(file, device, window='1MiB') as stream, stream.into(empty):
    assert list(inspect.signature(empty[0].forward).parameters) == ['input']
    try:
        copy.deepcopy(empty)
    except TypeError as error:
        print(error)
    if device == 'cuda':
        for function in (lambda: empty[0](x.cuda()), lambda: next(iter(stream)),
                         lambda: next(uvmalloc.pipeline([1]))):
            x = x.cuda()
            try:
                with torch.cuda.graph(torch.cuda.CUDAGraph()):
                    function()
            except RuntimeError as error:
                print(error)
# A forked child reads by itself.
if device == 'cpu':
    with uvmalloc.stream_safetensors(file, device, window='1MiB') as stream, stream.into(empty):
        with torch.no_grad():
            empty[0](x)
            child = os.fork()
            if child == 0:
                same = torch.equal(empty(x), model(x)) and sum(map(len, stream)) == 8
                os._exit(0 if same else 1)
            assert os.waitpid(child, 0)[1] == 0
"""
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_an_end_in_the_middle_leaves_the_model_and_other_files_alone(
    simulate: Simulate, tmp_path: Path, device: str
) -> None:
    run = simulate(ENDS, str(tmp_path), device).check()
    line = "FOLDER/model.safetensors: the checkpoint is closed; open it again to read it"
    graphs = [
        f"{name} cannot be used inside a capture: {reason}"
        for name, reason in (
            ("stream_safetensors", "a graph would keep the addresses of dropped tensors"),
            ("stream_safetensors", "a graph would keep the addresses of dropped tensors"),
            ("pipeline", "the graph would record what its threads do for later items"),
        )
    ]
    assert run.stdout.splitlines() == [
        *[line] * 4,
        "the device is 'cuda:7'; accepted: cpu, or cuda:0",
        "a model cannot be copied or saved while its tensors are streamed into it",
        *(graphs if device == "cuda" else []),
    ]
