"""The ways to load uvmalloc: preloaded, at the end of `import torch`, and by `set_enabled_uvm`.

A library that is loaded late must see everything that a preloaded library sees. However many
ways a process takes, it has one active copy. test_wheel.py tests the entry point itself, which
belongs to the wheel.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path

import pytest
from uvmalloc.libraries import Libraries

from tests.pytorch.conftest import MOVES_PRELUDE, ROOT, TORCH_MINOR, Simulate

pytestmark = pytest.mark.slow

SWITCH = {"PYTORCH_ENABLE_UNIFIED_MEMORY": "1"}
# Makes the call that torch makes if the wheel is installed.
AUTOLOAD = "import torch, uvmalloc_autoload\nuvmalloc_autoload.load()\n"
LOADED = """
import os
def loaded(prefix='libuvmalloc'):
    mapped = {line.split()[-1] for line in open('/proc/self/maps') if '/' in line}
    return sorted(f for f in mapped if os.path.basename(f).startswith(prefix))
"""


def copy_of(libraries: Libraries, folder: Path) -> Path:
    """Makes another copy of the library and its plugins, and returns the library."""
    folder.mkdir()
    for file in [libraries.require_uvmalloc(), *libraries.plugins()]:
        shutil.copy(file, folder / file.name)
    return folder / "libuvmalloc_preload.so"


@pytest.fixture(params=["preloaded", "late"])
def way(request: pytest.FixtureRequest, libraries: Libraries) -> tuple[str, dict[str, str]]:
    """Returns how a program begins, and its environment."""
    if request.param == "late":
        # Torch has called its own functions already.
        used = "import torch\nx = torch.ones(9); y = torch._lazy_clone(x); x[0] = 2; x.numpy()\n"
        return used + AUTOLOAD + MOVES_PRELUDE, SWITCH
    return MOVES_PRELUDE, {**SWITCH, "LD_PRELOAD": str(libraries.require_uvmalloc())}


EXPORTS = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.pytorch.doors import DOORS
exports = {{
    name: door.take for name, door in DOORS.items()
    if door.exists and 'cpu' in door.devices and door.reason == 'exported_pointer'
}}
"""


def test_every_pointer_that_leaves_is_seen(
    simulate: Simulate, way: tuple[str, dict[str, str]]
) -> None:
    start, environment = way
    run = simulate(
        start
        + EXPORTS
        + """
kept = []
def move(x, exported):
    before = copied().get('exported_pointer', 0)
    y = x.to('cuda')
    assert copied().get('exported_pointer', 0) - before == exported
    return y
for name, export in exports.items():
    x = torch.zeros(1 << 18)
    kept.append(move(x, 0))
    kept.append(export(x))
    kept.append(move(x, 1))
    print(name)
    if name == 'numpy':
        kept[-2][0] = 42
        assert x[0] == 42 and kept[-1][0].item() == 0 and kept[-3][0].item() == 0
""",
        native=True,
        environment=environment,
    ).check()
    assert len(run.stdout.splitlines()) >= 18, run.stdout


def test_torch_exports_through_no_function_that_is_not_known(libraries: Libraries) -> None:
    """uvmalloc intercepts all functions of torch that libtorch_python.so uses for DLPack."""
    import torch

    def names(library: Path, kind: str) -> set[str]:
        listing = subprocess.run(
            ["nm", "-D", kind, "--format=posix", library],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return {line.split()[0] for line in listing.splitlines() if "toDLPack" in line}

    bindings = Path(torch.__file__).parent / "lib" / "libtorch_python.so"
    imported = names(bindings, "--undefined-only")
    assert imported
    assert imported <= names(libraries.require_uvmalloc(), "--defined-only")


@pytest.fixture(scope="session")
def later_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds an extension that notifies torch of a write to a storage."""
    folder = tmp_path_factory.mktemp("extension")
    source = folder / "extension.cpp"
    source.write_text(
        "namespace c10 { struct StorageImpl; namespace impl { namespace cow {\n"
        "void materialize_cow_storage(StorageImpl&); }}}\n"
        'extern "C" void write_first(c10::StorageImpl* storage) {\n'
        "  c10::impl::cow::materialize_cow_storage(*storage);\n}\n"
    )
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "no C++ compiler on the path"
    package = importlib.util.find_spec("torch").submodule_search_locations[0]
    command = [compiler, "-shared", "-fPIC", "-o", folder / "extension.so", source]
    subprocess.run([*command, f"-L{package}/lib", "-lc10"], check=True)
    return folder / "extension.so"


def test_late_is_as_complete_as_early(
    simulate: Simulate, way: tuple[str, dict[str, str]], later_library: Path
) -> None:
    """All three allocators, moves, pinned memory, RFC-0023's names, and torch's own statistics."""
    start, environment = way
    run = simulate(
        start
        + f"""
import ctypes
assert torch.cuda.get_allocator_backend() == 'uvmalloc'
x = torch.zeros(1 << 20)
y = x.to('cuda', manage=True)
assert all(map(torch.ops.uvmalloc.is_managed, (x, y))) and torch.cuda.get_enabled_uvm()
x[0] = 7
assert report()['materializations']['copies'] == 1, report()['materializations']
y.add_(1)
assert report()['materializations']['steals'] == 1, report()['materializations']
assert (y == 1).all().item()
if {TORCH_MINOR} < 13:
    # from an extension that was loaded when everything else was there
    write = ctypes.CDLL({str(later_library)!r}).write_first
    z = x.to('cuda')
    write(ctypes.c_void_p(x.untyped_storage()._cdata))
    assert report()['materializations']['copies'] == 2, report()['materializations']
assert x.pin_memory().is_pinned() and not x.is_pinned()
assert not hasattr(x, 'is_managed'), 'no call has enabled it'
import uvmalloc
assert x.is_managed() and x.uvm_to('cuda').is_managed()
assert torch.cuda.memory_allocated() >= 0 and copied() == {{}}, copied()
assert set(report()['native_allocations'].values()) == {{0}}, report()['native_allocations']
""",
        native=True,
        environment=environment,
    ).check()
    assert run.sim["device_allocations"] == run.sim["pinned_allocations"] == 0


def test_a_late_library_takes_over_from_torch_in_use(simulate: Simulate) -> None:
    """The program has used CUDA without uvmalloc, and then switches uvmalloc on."""
    simulate(
        """
import torch
early = [torch.ones(1 << 20), torch.ones(1 << 20, device='cuda'), torch.ones(9).pin_memory()]
import uvmalloc
assert not torch.cuda.get_enabled_uvm() and not uvmalloc.enabled()
torch.cuda.set_enabled_uvm(True)
torch.cuda.set_enabled_uvm(True)
assert torch.cuda.get_enabled_uvm() and uvmalloc.enabled() and torch.cuda.memory_allocated() > 0
x = torch.ones(1 << 20)
a = x.numpy(); y = x.cuda(); a[0] = 42
assert y[0].item() == 1 and x.is_managed()
z = x.new_ones(1 << 20).to(device='cuda', manage=True)
assert uvmalloc.residency(z) and not any(t.is_managed() for t in early)
assert early[0].cuda().sum().item() == early[1].sum().item() == 1 << 20 and early[2].is_pinned()
assert uvmalloc.stats()['copies_by_moves']['by_reason']['exported_pointer']['count'] == 1
del early; torch.cuda.empty_cache()
""",
        native=True,
    ).check()


def test_all_ways_together_are_one(simulate: Simulate, libraries: Libraries) -> None:
    """`uvmalloc run`, the preload, the entry point and the program's own call, in one process."""
    run = simulate(
        LOADED
        + "import uvmalloc\n"
        + AUTOLOAD
        + MOVES_PRELUDE
        + """
uvmalloc_autoload.load()
for _ in range(2):
    torch.cuda.set_enabled_uvm(True)
x = torch.zeros(1 << 20); y = x.to('cuda', manage=True)
assert uvmalloc.enabled() and report()['moves']['total'] == 1
print(*map(os.path.basename, loaded()))
"""
    ).check()
    library = libraries.uvmalloc.resolve().name
    assert run.stdout == f"{library} libuvmalloc_torch_2_{TORCH_MINOR}.so\n"
    assert run.stderr == ""


TWO_COPIES = (
    LOADED
    + AUTOLOAD
    + MOVES_PRELUDE
    + """
torch.cuda.set_enabled_uvm(True)
x = torch.zeros(1 << 20); y = x.to('cuda', manage=True)
a = x.numpy(); a[0] = 42
assert y[0].item() == 0 and report()['moves']['total'] == 1
assert torch.cuda.get_allocator_backend() == 'uvmalloc'
assert report()['materializations']['copies'] == 1
plugin, = loaded('libuvmalloc_torch')
print(os.path.dirname(plugin), len(loaded('libuvmalloc_preload.so')))
"""
)


@pytest.mark.parametrize("second", ["not loaded", "preloaded too", "loaded by the program"])
def test_a_second_copy_stays_out(
    simulate: Simulate, libraries: Libraries, tmp_path: Path, second: str
) -> None:
    """The library of a checkout and that of a wheel, for example: the first one is active."""
    other = copy_of(libraries, tmp_path / "other")
    program, copies, preload = TWO_COPIES, 1, str(other)
    if second == "preloaded too":
        copies, preload = 2, f"{other}:{libraries.uvmalloc}"
    elif second == "loaded by the program":
        open_it = f"import ctypes; own = ctypes.CDLL({str(libraries.uvmalloc)!r})\n"
        program, copies = open_it + program + "assert own.uvmalloc_load_in_torch() == 1\n", 2
    run = simulate(program, native=True, environment={**SWITCH, "LD_PRELOAD": preload}).check()
    assert run.stdout == f"{tmp_path / 'other'} {copies}\n"
    assert run.stderr == ""


def test_a_copy_that_the_program_has_opened_first_is_the_one(
    simulate: Simulate, libraries: Libraries, tmp_path: Path
) -> None:
    other = copy_of(libraries, tmp_path / "other")
    program = f"import ctypes; ctypes.CDLL({str(other)!r})\n" + TWO_COPIES
    run = simulate(program, native=True, environment=SWITCH).check()
    assert run.stdout == f"{tmp_path / 'other'} 2\n"
    assert run.stderr == ""


REFUSED = (
    AUTOLOAD
    + """
x = torch.ones(1 << 20)
y = x.to('cuda')
assert x.numpy() is not None and not torch.cuda.get_enabled_uvm()
assert torch.cuda.get_allocator_backend() == 'native' and y.sum().item() == 1 << 20
try:
    torch.cuda.set_enabled_uvm(True)
except RuntimeError as error:
    print(error)
"""
)


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ("no folder", "accepted: the folder of libuvmalloc_preload.so"),
        ("no library", "libuvmalloc_preload.so not found in"),
        ("broken library", "libuvmalloc_preload.so cannot be used"),
        ("another library", "libuvmalloc_preload.so cannot be used"),
        ("no plugin", "there is no plugin for torch 2."),
        ("broken plugin", "the plugin for torch 2."),
        ("linked", "this program is linked to libuvmalloc.so; preload libuvmalloc_preload.so"),
    ],
)
def test_whatever_is_wrong_is_one_line_and_torch_is_untouched(
    simulate: Simulate, libraries: Libraries, other_build: Path, files: str, words: str
) -> None:
    folder = other_build / "lib"
    if files != "no folder":
        copy_of(libraries, folder)
    for plugin in folder.glob("libuvmalloc_torch_*.so"):
        if files == "no plugin":
            plugin.unlink()
        if files == "broken plugin":
            plugin.write_bytes(b"not a library")
    library = folder / "libuvmalloc_preload.so"
    if files == "no library":
        library.unlink()
    elif files == "broken library":
        library.write_bytes(b"not a library")
    elif files == "another library":
        shutil.copy(libraries.audit, library)
    environment = {**SWITCH, "UVMALLOC_LIB_DIR": str(folder)}
    if files == "linked":  # preloading stands for a program that is linked to it
        environment["LD_PRELOAD"] = str(libraries.folder / "libuvmalloc.so")
    run = simulate(REFUSED, native=True, environment=environment).check()
    assert run.stderr.count("\n") == 1, run.stderr
    assert words in run.stderr and "torch keeps its own allocators" in run.stderr
    assert run.stdout.startswith("unified memory cannot be enabled: ") and words in run.stdout


def test_late_without_a_device_is_one_line(simulate: Simulate) -> None:
    program = AUTOLOAD + "print(torch.ones(1 << 20).sum().item(), torch.cuda.is_available())"
    environment = {**SWITCH, "CUDA_VISIBLE_DEVICES": ""}
    run = simulate(program, native=True, environment=environment).check()
    assert run.stdout == "1048576.0 False\n"
    assert run.stderr.count("\n") == 1 and "no CUDA device" in run.stderr


def test_where_torch_comes_first_for_the_loader_nothing_is_shared_unseen(
    simulate: Simulate,
) -> None:
    """Libraries that are loaded later would call torch's functions instead of uvmalloc's."""
    environment = {**SWITCH, "TORCH_USE_RTLD_GLOBAL": "1"}
    run = simulate(REFUSED, native=True, environment=environment).check()
    assert run.stderr.count("\n") == 1 and "TORCH_USE_RTLD_GLOBAL" in run.stderr


@pytest.mark.parametrize("value", [None, "", "0", "off", "False", "maybe"])
def test_not_switched_on_the_entry_point_does_nothing(
    simulate: Simulate, value: str | None
) -> None:
    """The entry point imports nothing of uvmalloc. An unknown value means off, with one line."""
    run = simulate(
        LOADED
        + AUTOLOAD
        + "import sys; print('uvmalloc' in sys.modules, len(loaded()))\n"
        + "print(torch.cuda.get_allocator_backend())",
        native=True,
        environment={} if value is None else {"PYTORCH_ENABLE_UNIFIED_MEMORY": value},
    ).check()
    if value == "maybe":
        assert run.stdout == "False 1\nnative\n"
        assert run.stderr.count("\n") == 1 and "PYTORCH_ENABLE_UNIFIED_MEMORY='maybe'" in run.stderr
    else:
        assert run.stdout == "False 0\nnative\n" and run.stderr == ""
