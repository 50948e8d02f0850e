"""Checkpoints reach the device without a second copy, and with the values of safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pytorch.conftest import MOVES_PRELUDE, Simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]

# safetensors and uvmalloc read each of many random files, to the host and to the device.
PROPERTY = """
import contextlib, json, os, random, sys, uvmalloc
import torch
from safetensors.torch import load_file, save_file

folder = sys.argv[1]
DTYPES = [getattr(torch, name) for name in (
    'bool uint8 int8 uint16 int16 uint32 int32 uint64 int64 float8_e4m3fn float8_e4m3fnuz '
    'float8_e5m2 float8_e5m2fnuz float8_e8m0fnu float4_e2m1fn_x2 float16 bfloat16 float32 float64 '
    'complex64').split()]

def tensor(source, shape, dtype):
    count = dtype.itemsize
    for size in shape:
        count *= size
    highest = 2 if dtype == torch.bool else 256
    values = torch.randint(highest, (count,), dtype=torch.uint8, generator=source, device='cpu')
    return torch.empty(0, dtype=dtype, device='cpu').set_(
        values.untyped_storage(), 0, shape, torch.empty(shape, device='meta').stride())

def shape(source, dtype):
    sizes = [source.choice((0, 1, 2, 3, 17, 300)) for _ in range(source.randrange(4))]
    if source.random() < 0.1:
        sizes = [source.randrange(1 << 18, 3 << 18), 9]
    if dtype == torch.float4_e2m1fn_x2 and not sizes:
        sizes = [1]  # two elements at least
    return tuple(sizes)

def bits(tensor):
    whole = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return whole.set_(tensor.untyped_storage()).cpu()[:tensor.numel() * tensor.itemsize]

file = os.path.join(folder, 'random.safetensors')
torch.ones(1, device='cuda')
open_before = len(os.listdir('/proc/self/fd'))
compared = large = 0
for seed in range(20):
    source, values = random.Random(seed), torch.Generator().manual_seed(seed)
    made = {}
    for number in range(source.randrange(8)):
        dtype = source.choice(DTYPES)
        made[f'{number}.\\u00fc "{dtype}"'] = tensor(values, shape(source, dtype), dtype)
    save_file(made, file, metadata=source.choice((None, {'format': 'pt'})))
    expected = load_file(file)
    for device in ('cpu', 'cuda', torch.device('cuda', 0), 0):
        other = contextlib.nullcontext() if device == 'cpu' else torch.device('meta')
        with other:
            found = uvmalloc.load_safetensors(file, device, keep_cached=source.random() < 0.5)
        assert found.keys() == expected.keys() == made.keys()
        for name, tensor_found in found.items():
            wanted = expected[name]
            assert tensor_found.device.type == ('cpu' if device == 'cpu' else 'cuda')
            for what in ('dtype', 'shape', 'requires_grad'):
                assert getattr(tensor_found, what) == getattr(wanted, what), (name, what)
            assert tensor_found.is_contiguous()
            assert torch.equal(bits(tensor_found), bits(wanted)), (seed, name)
            compared += 1
            large += wanted.numel() * wanted.itemsize >= 1 << 20
assert len(os.listdir('/proc/self/fd')) == open_before
print(json.dumps({'compared': compared, 'large': large}))
"""


@pytest.mark.parametrize("native", [True, False])
def test_random_files_give_what_safetensors_gives(
    simulate: Simulate, tmp_path: Path, native: bool
) -> None:
    run = simulate(PROPERTY, str(tmp_path), native=native).check()
    found = json.loads(run.stdout)
    assert found["compared"] > 200
    assert found["large"] > 10
    if not native:
        assert run.report["copies_by_moves"]["by_reason"].keys() <= {"small_block"}


# One process reads all damaged files, each with the words of the expected message, and non-files.
DAMAGED = """
import json, os, sys, uvmalloc
from pathlib import Path

folder = Path(sys.argv[1])

def file(header, data=b'', length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / 'damaged.safetensors'
    path.write_bytes((len(text) if length is None else length).to_bytes(8, 'little') + text + data)
    return path

def f32(begin, end, shape):
    return {'dtype': 'F32', 'shape': shape, 'data_offsets': [begin, end]}

def raw(content):
    path = folder / 'damaged.safetensors'
    path.write_bytes(content)
    return path

def index(content, name='model.safetensors.index.json'):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path

good = folder / 'good.safetensors'
text = json.dumps({'a': f32(0, 4, [1])}).encode()
good.write_bytes(len(text).to_bytes(8, 'little') + text + bytes(4))
os.mkfifo(folder / 'pipe')
(folder / 'empty').mkdir()
eight = bytes(8)
CASES = [
    (lambda: raw(b''), 'it has 0 bytes'),
    (lambda: raw(b'1234567'), 'it has 7 bytes'),
    (lambda: file({}, length=1 << 63), 'give a header of 9223372036854775808 bytes'),
    (lambda: file({}, length=100_000_001), 'accepted: up to 100000000'),
    (lambda: file({}, length=3), 'ends within its header'),
    (lambda: file(b''), 'the header cannot be understood'),
    (lambda: file(b'{"a": '), 'the header cannot be understood'),
    (lambda: file(b'\\xff\\xfe{}'), 'the header cannot be understood'),
    (lambda: file(b'[' * 200_000), 'the header cannot be understood'),
    (lambda: file(b'[1]'), 'the header is not a JSON object'),
    (lambda: file(b'{"a": 1, "a": 2}'), "the header lists 'a' twice"),
    (lambda: file({'__metadata__': {'a': 1}}), 'not a map of strings'),
    (lambda: file({'__metadata__': ['a']}), 'not a map of strings'),
    (lambda: file({'a': 7}), "tensor 'a' must have exactly dtype, shape and data_offsets"),
    (lambda: file({'a': ['F32', [1]]}, eight[:4]), 'must have exactly'),
    (lambda: file({'a': {'dtype': 'F32', 'shape': [1]}}, eight[:4]), 'must have exactly'),
    (lambda: file(b'{"a": {"dtype": "F32", "shape": [1], "shape": [1], "data_offsets": [0, 4]}}',
                  eight[:4]), 'must have exactly'),
    (lambda: file(b'{"__metadata__": null, "__metadata__": {}}'), '__metadata__ twice'),
    (lambda: file(b'{"\\ud800": 1}'), 'the header cannot be understood'),
    (lambda: file(b'{"a": NaN}'), 'NaN is not JSON'),
    (lambda: file(b'{"a": 1e999}'), 'a number is too large'),
    (lambda: file({'a': f32(0, 0, [1 << 40, 1 << 40, 0])}), 'multiply to more than'),
    (lambda: file({'a': f32(0, 0, [0, 1 << 64])}), 'the shape [0, '),
    (lambda: file({'a': {**f32(0, 4, [1]), 'dtype': 'F33'}}, eight[:4]), "dtype 'F33'; accepted: "),
    (lambda: file({'a': {**f32(0, 4, [1]), 'dtype': ['F32']}}, eight[:4]), "dtype ['F32']"),
    (lambda: file({'a': f32(0, 4, [-1])}, eight[:4]), 'the shape [-1]'),
    (lambda: file({'a': f32(0, 4, [True])}, eight[:4]), 'the shape [True]'),
    (lambda: file({'a': f32(0, 4, 1)}, eight[:4]), 'the shape 1;'),
    (lambda: file({'a': f32(0, 4, [1.0])}, eight[:4]), 'the shape [1.0]'),
    (lambda: file({'a': f32(4, 0, [1])}, eight[:4]), 'the data_offsets [4, 0]'),
    (lambda: file({'a': {**f32(0, 4, [1]), 'data_offsets': [0]}}, eight[:4]), 'data_offsets [0]'),
    (lambda: file({'a': f32(0, 8, [1])}, eight), 'has 8 bytes; its dtype and shape need 4'),
    (lambda: file({'a': f32(0, 4, [1 << 62, 1 << 62])}, eight[:4]), 'its dtype and shape need'),
    (lambda: file({'a': f32(0, 8, [2]), 'b': f32(4, 8, [1])}, eight), "'b' overlaps"),
    (lambda: file({'a': f32(0, 4, [1]), 'b': f32(0, 4, [1])}, eight), "overlaps"),
    (lambda: file({'a': f32(4, 8, [1])}, eight), "'a' leaves a gap"),
    (lambda: file({'a': f32(0, 8, [2])}, eight[:7]), 'its tensors end at'),
    (lambda: file({'a': f32(0, 4, [1])}, eight), 'its tensors end at'),
    (lambda: file({'a': {'dtype': 'F4', 'shape': [3], 'data_offsets': [0, 2]}}, eight[:2]), 'even'),
    (lambda: folder / 'pipe', 'is not a regular file'),
    (lambda: '/dev/null', 'is not a regular file'),
    (lambda: folder / 'empty', 'is a folder without model.safetensors.index.json and '
     'model.safetensors'),
    (lambda: index('{'), 'the index cannot be understood'),
    (lambda: index([]), "no 'weight_map'"),
    (lambda: index({'weight_map': []}), "no 'weight_map'"),
    (lambda: index({'weight_map': {'a': 3}}), "'a' is said to be in 3; accepted: a file below"),
    (lambda: index({'weight_map': {'a': '../good.safetensors'}}), 'accepted: a file below'),
    (lambda: index({'weight_map': {'a': str(good)}}), 'accepted: a file below'),
    (lambda: index({'weight_map': {'b': good.name}}), "has no tensor 'b', although"),
    (lambda: folder / 'nowhere.safetensors', FileNotFoundError),
    (lambda: index({'weight_map': {'a': 'nowhere.safetensors'}}), FileNotFoundError),
]
open_before = len(os.listdir('/proc/self/fd'))
for make, expected in CASES:
    path = make()
    kind = ValueError if isinstance(expected, str) else expected
    try:
        uvmalloc.load_safetensors(path)
    except kind as error:
        if isinstance(expected, str):
            shown = folder / 'model.safetensors.index.json' if 'no tensor' in expected else path
            assert expected in str(error), (expected, str(error))
            assert 'no tensor' in expected or str(path) in str(error), str(error)
    else:
        raise AssertionError(f'accepted: {expected}')
assert len(os.listdir('/proc/self/fd')) == open_before

# Headers with more than the format needs, as safetensors accepts them.
from safetensors.torch import load_file
for header in (
    {'a': {**f32(0, 8, [2]), 'more': 1}},
    {'__metadata__': None, 'a': f32(0, 8, [2])},
    {'__metadata__': {}, 'a': f32(0, 8, [2])},
):
    path = file(header, eight)
    assert uvmalloc.load_safetensors(path)['a'].equal(load_file(path)['a'])

# A folder with one file, and what it holds.
(folder / 'saved').mkdir()
(folder / 'saved' / 'model.safetensors').write_bytes(good.read_bytes())
assert uvmalloc.load_safetensors(folder / 'saved').keys() == load_file(good).keys()

# A good file, directly and through an index, of which the rest of a file is left alone.
import torch
second = json.dumps({'b': f32(0, 4, [1]), 'c': f32(4, 8, [1])}).encode()
(folder / 'part').mkdir()
(folder / 'part' / 'second.safetensors').write_bytes(
    len(second).to_bytes(8, 'little') + second + b'\\0\\0\\x80\\x3f' * 2)
listed = index({'metadata': {}, 'weight_map': {'a': good.name, 'c': 'part/second.safetensors'}})
for path in (listed, folder, str(folder)):
    found = uvmalloc.load_safetensors(path)
    assert {name: t.tolist() for name, t in found.items()} == {'a': [0.0], 'c': [1.0]}, found

# A file that gets shorter while it is being read.
import uvmalloc.loading
fill = uvmalloc.loading._fill
def fill_later(file, entry, host, device):
    os.truncate(good, 10)
    fill(file, entry, host, device)
uvmalloc.loading._fill = fill_later
try:
    uvmalloc.load_safetensors(good)
except ValueError as error:
    assert 'it was truncated while it was read' in str(error)
else:
    raise AssertionError('read beyond the end')
assert len(os.listdir('/proc/self/fd')) == open_before
print('all')
"""


def test_damaged_files_are_refused_with_the_reason(simulate: Simulate, tmp_path: Path) -> None:
    run = simulate(DAMAGED, str(tmp_path), native=True).check()
    assert run.stdout == "all\n"


# Each way leaves the model on the device, in pages that were the host's: nothing is copied, and no
# more pages are touched than the model has.
LOADS = (
    MOVES_PRELUDE
    + """
import os, sys, uvmalloc
from pathlib import Path
from bench.programs.memory_sampler import cached_bytes
from safetensors.torch import load_file, save_file
folder = Path(sys.argv[1])
sizes = (4 << 20, 64, 1 << 20, 3 << 20, 1000)  # elements of four bytes
written = {str(n): torch.arange(size, dtype=torch.float32) + n for n, size in enumerate(sizes)}
torch.save(written, folder / 'model.pt')
torch.save(written, folder / 'legacy.pt', _use_new_zipfile_serialization=False)
save_file(written, folder / 'model.safetensors')
del written

# Pages that have been written. What is freed stays cached, so temporary copies count too.
arena = next(link for link in Path('/proc/self/fd').iterdir()
             if link.is_symlink() and 'uvmsim-managed' in str(link.readlink()))
def written_bytes():
    return arena.stat().st_blocks * 512

def check(name, load):
    torch.cuda.empty_cache()
    before, copies = written_bytes(), copied()
    loaded = load()
    torch.cuda.synchronize()
    added = written_bytes() - before
    for number, size in enumerate(sizes):
        tensor = loaded[str(number)]
        assert tensor.is_cuda and tensor.shape == (size,), (name, number)
        assert tensor[-1].item() == size - 1 + number, (name, number)
        assert tensor.add_(1)[0].item() == number + 1, (name, 'can be written')
    after = copied()
    reasons = {reason for reason in after if after[reason] != copies.get(reason)}
    assert reasons <= {'small_block'}, (name, reasons)
    return added

names = ('model.pt', 'model.safetensors', 'legacy.pt')
torch_file, safetensors_file, legacy_file = (folder / name for name in names)
device = lambda tensors: {name: tensor.to('cuda') for name, tensor in tensors.items()}
print(json.dumps({name: check(name, load) for name, load in {
    'to': lambda: device(torch.load(torch_file)),
    'map_location': lambda: torch.load(torch_file, map_location='cuda'),
    'map_location with an index': lambda: torch.load(torch_file, map_location='cuda:0'),
    'map_location of a device': lambda: torch.load(torch_file, map_location=torch.device('cuda')),
    'map_location of a map': lambda: torch.load(torch_file, map_location={'cpu': 'cuda:0'}),
    'legacy': lambda: torch.load(legacy_file, map_location='cuda'),
    'load_file': lambda: load_file(safetensors_file, 'cuda:0'),
    'load_safetensors': lambda: uvmalloc.load_safetensors(safetensors_file, 'cuda'),
}.items()}))

# The page cache, where the file system has one that can be dropped.
with safetensors_file.open('rb') as file:
    os.fsync(file.fileno())
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
if cached_bytes(safetensors_file) == 0:
    whole = safetensors_file.stat().st_size
    uvmalloc.load_safetensors(safetensors_file, 'cuda', keep_cached=True)
    assert cached_bytes(safetensors_file) > 0.9 * whole
    uvmalloc.load_safetensors(safetensors_file, 'cuda')
    assert cached_bytes(safetensors_file) < 0.1 * whole, cached_bytes(safetensors_file)

# What somebody else still has is not shared.
mine = torch.ones(1 << 20)
there = torch.serialization.default_restore_location(mine.untyped_storage(), 'cuda:0')
mine.zero_()
assert torch.empty(0, device='cuda').set_(there)[0].item() == 1
for location in ('cuda:7', 'cuda:x'):
    try:
        torch.load(torch_file, map_location=location)
    except RuntimeError as error:
        print(type(error).__name__)
torch.ops.uvmalloc.check_invariants()
"""
)


def test_loading_copies_nothing_large(simulate: Simulate, tmp_path: Path) -> None:
    run = simulate(LOADS, str(tmp_path), environment={"PYTHONPATH": str(ROOT)}).check()
    added, *errors = run.stdout.splitlines()
    assert errors == ["RuntimeError", "RuntimeError"]
    # 32 MiB of large tensors, plus the small tensors and the pages that blocks share.
    assert max(json.loads(added).values()) <= 36 << 20, added


BY_THRESHOLD = (
    MOVES_PRELUDE
    + """
import sys
torch.save({size: torch.full((size << 8,), 7.0) for size in (32, 256)}, sys.argv[1])  # KiB
before = report()['moves']['host_to_device']
loaded = torch.load(sys.argv[1], map_location='cuda')
assert [loaded[size][-1].item() for size in (32, 256)] == [7, 7]
print(report()['moves']['host_to_device'] - before)
"""
)


@pytest.mark.parametrize(("threshold", "moved"), [("1MiB", 0), ("64KiB", 1), ("1KiB", 2)])
def test_a_load_to_a_device_shares_what_the_threshold_says(
    simulate: Simulate, tmp_path: Path, threshold: str, moved: int
) -> None:
    environment = {"UVMALLOC_HOST_THRESHOLD": threshold}
    run = simulate(BY_THRESHOLD, str(tmp_path / "model.pt"), environment=environment).check()
    assert run.stdout == f"{moved}\n"
