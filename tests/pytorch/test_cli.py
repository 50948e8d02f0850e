"""The command `uvmalloc`: options, exit codes, signals, its libraries, what it shows."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from uvmalloc._cli import accepted, doctor, report, running
from uvmalloc._cli import main as cli
from uvmalloc._cli.environment import Machine, on_simulated_device, with_uvmalloc
from uvmalloc._cli.options import AllocatorOptions
from uvmalloc.errors import CommandError, MissingLibraryError
from uvmalloc.libraries import Libraries, find_libraries
from uvmalloc.sizes import EXAMPLES, format_size, parse_size

from tests.pytorch.conftest import ROOT, fails_in_one_line_on_a_full_disk

UVMALLOC = (sys.executable, "-m", "uvmalloc")


@pytest.fixture
def uvmalloc(clean_environment, tmp_path):
    """Returns a function that runs the command and returns the completed process."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*UVMALLOC, *arguments],
            env={**clean_environment, **environment},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


def error_line(finished: subprocess.CompletedProcess[str]) -> str:
    """Returns the one line that a refused command writes."""
    assert finished.stdout == ""
    lines = finished.stderr.splitlines()
    assert len(lines) == 1, finished.stderr
    assert lines[0].startswith("uvmalloc: error: ")
    return lines[0].removeprefix("uvmalloc: error: ")


# ---- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("8G", 8 << 30),
        ("8g", 8 << 30),
        ("1.5GiB", 3 << 29),
        ("1.5 GiB", 3 << 29),
        ("2KB", 2048),
        ("7B", 7),
        ("0", 0),
        ("3T", 3 << 40),
    ],
)
def test_sizes_are_powers_of_1024(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    "text", ["", "G", "-1", "1.5", "1,5G", "1e9", "8GG", "8Gi", "0x10", "8 G iB", "9" * 30, "٣G"]
)
def test_malformed_sizes_are_refused(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1536, "1.5 KiB"), (512 << 20, "512 MiB"), (8 << 30, "8 GiB")],
)
def test_sizes_are_shown_short(size_bytes, text):
    assert format_size(size_bytes) == text


# ---- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value", "accepted"),
    [
        ("--capacity", "0", "from 2 MiB to 64 TiB"),
        ("--capacity", "2097151", "from 2 MiB to 64 TiB"),
        ("--capacity", "65T", "from 2 MiB to 64 TiB"),
        ("--capacity", "lots", "512MiB"),
        ("--devices", "-1", "0 to 32"),
        ("--devices", "33", "0 to 32"),
        ("--devices", "two", "0 to 32"),
        ("--driver-version", "11.0", "12.2"),
        ("--profile", "gb10", "discrete, integrated, hmm, coherent"),
        ("--policy", "magic", "auto"),
        ("--budget", "12X", "512MiB"),
        ("--device-budget", "1M", "from 2 MiB to 64 TiB"),
        ("--move", "slowly", "cow, alias, copy"),
        ("--log", "loud", "off, error, warning, info, debug"),
        ("--decay", "-1", "seconds"),
        ("--decay", "soon", "seconds"),
        ("--decay", "inf", "seconds"),
        ("--trace", "/nonexistent/trace", "a file"),
        ("--report", "/nonexistent/report.json", "a file"),
    ],
)
def test_a_bad_value_names_option_value_and_what_is_accepted(uvmalloc, option, value, accepted):
    finished = uvmalloc("sim", option, value, "--", "true")
    line = error_line(finished)
    assert finished.returncode == 2
    assert f"{option} is '{value}'; accepted: " in line
    assert accepted in line


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--policy", "off"),
        ("--move", "copy"),
        ("--budget", "1G"),
        ("--device-budget", "1G"),
        ("--decay", "30"),
        ("--trace", "trace"),
        ("--log", "debug"),
    ],
)
def test_what_sets_uvmalloc_is_refused_where_there_is_none(uvmalloc, option, value):
    finished = uvmalloc("sim", "--native", option, value, "--", "true")
    assert finished.returncode == 2
    line = error_line(finished)
    assert line.startswith(f"{option} is '{value}'; accepted: nothing with --native")


def test_call_sites_without_a_trace_are_refused(uvmalloc):
    finished = uvmalloc("run", "--call-sites", "--", "true")
    assert finished.returncode == 2
    assert "--call-sites is 'given'; accepted: only with --trace" in error_line(finished)


@pytest.mark.parametrize(
    "arguments", [("frobnicate",), ("run", "--frobnicate", "true"), ("run",), ("report",)]
)
def test_a_malformed_command_is_one_line_and_exit_code_2(uvmalloc, arguments):
    finished = uvmalloc(*arguments)
    assert finished.returncode == 2
    error_line(finished)


def test_version(uvmalloc):
    header = (ROOT / "include" / "uvmalloc" / "uvmalloc.h").read_text()
    parts = re.findall(r"^#define UVMALLOC_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", header, re.M)
    version = f"uvmalloc {'.'.join(parts)}"
    finished = uvmalloc("--version")
    assert (finished.returncode, finished.stdout) == (0, f"{version}\n")
    finished = uvmalloc("--version", "-v")
    said, commit, compiler, plugins = finished.stdout.splitlines()
    assert said == version
    assert re.fullmatch(r"commit: ([0-9a-f]{40}(-dirty)?|unknown)", commit)
    assert re.fullmatch(r"compiler: (GCC|Clang) \d.*", compiler)
    assert re.fullmatch(r"plugins for torch: \d\.\d+(, \d\.\d+)*", plugins)


def test_details_without_a_version_are_refused(uvmalloc):
    finished = uvmalloc("-v", "doctor")
    assert finished.returncode == 2
    assert error_line(finished) == "--verbose is 'given'; accepted: only with --version"


def test_importing_the_package_imports_no_torch():
    code = "import sys, uvmalloc._cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# ---- libraries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["of nobody", "of another user", "by a link"])
def test_lib_dir_must_be_a_folder_of_the_checkout(
    uvmalloc, libraries, other_build, tmp_path, where
):
    """Other users may write to a folder elsewhere, and its library would run in the process."""
    folder = tmp_path / "lib"
    if where == "of nobody":
        folder = other_build / "nowhere"
    else:
        folder.mkdir()
        (folder / "libuvmalloc_preload.so").symlink_to(libraries.uvmalloc)
    if where == "by a link":
        folder = other_build / "link"
        folder.symlink_to(tmp_path / "lib")
    finished = uvmalloc("run", "true", UVMALLOC_LIB_DIR=str(folder))
    assert finished.returncode == 3
    line = error_line(finished)
    accepted = "accepted: the folder of libuvmalloc_preload.so, in "
    assert f"UVMALLOC_LIB_DIR is '{folder}'; {accepted}" in line


def test_a_build_above_a_package_that_is_in_no_checkout_is_not_found(tmp_path):
    """Other users may write to the folder above."""
    for package in (tmp_path / "site/uvmalloc", tmp_path / "a/python/uvmalloc"):
        package.mkdir(parents=True)
        for above in (package.parent, tmp_path):
            (above / "build/release/lib").mkdir(parents=True, exist_ok=True)
        with pytest.raises(MissingLibraryError, match=r"libuvmalloc_preload\.so not found"):
            find_libraries({}, package)
        (package / "lib").mkdir()
        assert find_libraries({}, package).folder == package / "lib"


def test_a_missing_libuvmalloc_is_named(uvmalloc, other_build):
    finished = uvmalloc("run", "true", UVMALLOC_LIB_DIR=str(other_build))
    assert finished.returncode == 3
    line = error_line(finished)
    assert "libuvmalloc_preload.so not found" in line
    assert "scripts/build" in line


@pytest.mark.parametrize("missing", ["libuvmsim_audit.so", "libcudart.so.13", "libcuda.so.1"])
def test_a_missing_stand_in_is_named(uvmalloc, libraries, other_build, missing):
    (other_build / "sim").mkdir()
    for file in (libraries.uvmalloc, *libraries.stand_ins.glob("*.so*")):
        if file.name != missing:
            (other_build / file.relative_to(libraries.folder)).symlink_to(file)
    finished = uvmalloc("sim", "--", "true", UVMALLOC_LIB_DIR=str(other_build))
    assert finished.returncode == 3
    line = error_line(finished)
    assert f"{missing} not found" in line
    assert "scripts/build" in line


def test_the_release_build_is_found_without_a_variable():
    found = find_libraries({})
    assert found.folder.parts[-3:] == ("build", "release", "lib")


def test_a_path_the_loader_would_split_is_refused(tmp_path):
    folder = tmp_path / "with space"
    folder.mkdir()
    (folder / "libuvmalloc_preload.so").touch()
    with pytest.raises(CommandError, match="LD_PRELOAD cannot hold"):
        with_uvmalloc({}, Libraries(folder), {}, None)


# ---- the memory of a simulated host -------------------------------------------------------------

MEMORY_OF_HOST = """
import ctypes, os
def shown():
    lines = dict(line.split(":") for line in open("/proc/meminfo"))
    return [int(lines[name].split()[0]) >> 10 for name in ("MemTotal", "MemAvailable", "MemFree")]
before = shown()
page = os.sysconf("SC_PAGE_SIZE")
assert before[0] == os.sysconf("SC_PHYS_PAGES") * page >> 20
assert abs((os.sysconf("SC_AVPHYS_PAGES") * page >> 20) - before[1]) < 16
runtime, block = ctypes.CDLL("libcudart.so.13"), ctypes.c_void_p()
assert runtime.cudaMallocHost(ctypes.byref(block), ctypes.c_size_t(256 << 20)) == 0
pinned = shown()
own = bytearray(os.urandom(1 << 20) * 64)
filled = shown()
print(before[0], before[1] - pinned[1], pinned[1] - filled[1], before[1])
"""


def test_programs_see_the_simulated_host_memory(uvmalloc):
    command = ["sim", "--native", "--host-memory", "700MiB", "--", sys.executable, "-c"]
    finished = uvmalloc(*command, MEMORY_OF_HOST)
    assert finished.returncode == 0, finished.stderr
    total, pinned, own, available = (int(number) for number in finished.stdout.split())
    assert total == 700
    assert 256 <= pinned < 290
    assert 64 <= own < 140
    assert 500 < available < 700


def test_programs_see_the_real_host_memory_without_a_simulated_one(uvmalloc):
    text = "print(next(open('/proc/meminfo')))"
    finished = uvmalloc("sim", "--native", "--", sys.executable, "-c", text)
    assert finished.stdout.split()[1] == Path("/proc/meminfo").read_text().split()[1]


# ---- the environment of programs ----------------------------------------------------------------


def test_a_preload_of_the_user_stays_behind_ours(libraries):
    preloaded = str(libraries.uvmalloc)
    made = with_uvmalloc({"LD_PRELOAD": "a.so b.so"}, libraries, {}, None)
    assert made["LD_PRELOAD"] == f"{preloaded}:a.so:b.so"
    other_copy = {"LD_PRELOAD": "a.so /elsewhere/libuvmalloc_preload.so:b.so"}
    assert with_uvmalloc(other_copy, libraries, {}, None) == made
    again = with_uvmalloc(made, libraries, {}, None)
    assert again["LD_PRELOAD"] == made["LD_PRELOAD"]


def test_options_become_variables(libraries, tmp_path):
    options = AllocatorOptions(
        policy="driver",
        budget="1GiB",
        device_budget="4M",
        move="alias",
        decay="2.5",
        trace=tmp_path / "trace",
        call_sites=True,
        log="debug",
        share=True,
    )
    made = with_uvmalloc({}, libraries, options.variables(), tmp_path)
    assert made.keys() >= set(AllocatorOptions.names())
    assert made["PYTORCH_ENABLE_UNIFIED_MEMORY"] == "1"
    assert made["UVMALLOC_POLICY"] == "driver"
    assert made["UVMALLOC_BUDGET"] == "1073741824"
    assert made["UVMALLOC_DEVICE_BUDGET"] == "4194304"
    assert made["UVMALLOC_MOVE"] == "alias"
    assert made["UVMALLOC_DECAY"] == "2.5"
    assert made["UVMALLOC_TRACE"] == str(tmp_path / "trace")
    assert made["UVMALLOC_CALL_SITES"] == "1"
    assert made["UVMALLOC_LOG"] == "debug"
    assert made["UVMALLOC_SHARE"] == "1"
    assert made["UVMALLOC_REPORT_DIR"] == str(tmp_path)


@pytest.mark.parametrize("command", ["run", "sim"])
def test_options_reach_the_program(uvmalloc, tmp_path, command):
    names = ["POLICY", "MOVE", "BUDGET", "DEVICE_BUDGET", "DECAY", "TRACE", "LOG"]
    show = ";".join(f"echo $UVMALLOC_{name}" for name in names)
    options = [
        *("--policy", "off", "--move", "copy", "--budget", "1G", "--device-budget", "8M"),
        *("--decay", "off", "--trace", "my.%p.trace", "--log", "info", "--no-report"),
    ]
    finished = uvmalloc(command, *options, "--", "sh", "-c", show)
    shown = finished.stdout.split()
    trace = str(tmp_path / "my.%p.trace")
    assert shown == ["off", "copy", "1073741824", "8388608", "0.0", trace, "info"]


def in_a_shell(environment, script):
    return subprocess.run(
        ["sh", "-ec", script], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_job_script_gets_the_variables_of_run(uvmalloc, clean_environment, tmp_path):
    options = ("--budget", "1G", "--trace", str(tmp_path / "it's.trace"), "--share")
    show = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    command = shlex.join([*UVMALLOC, "env", *options])
    finished = in_a_shell(clean_environment, f'eval "$({command})"; {show}')
    assert finished.returncode == 0, finished.stderr
    exported = json.loads(finished.stdout)
    ran = uvmalloc("run", "--no-report", *options, "--", "sh", "-c", show)
    for of_shell in ("_", "PWD", "OLDPWD", "SHLVL"):
        exported.pop(of_shell, None)
    inside = json.loads(ran.stdout)
    assert {name: inside[name] for name in exported} == exported
    assert exported["UVMALLOC_TRACE"] == str(tmp_path / "it's.trace")
    assert exported["PYTORCH_ENABLE_UNIFIED_MEMORY"] == "1"


def test_a_job_script_can_take_the_variables_back(clean_environment):
    before = {**clean_environment, "LD_PRELOAD": "libm.so.6"}
    set_, unset = (
        shlex.join([*UVMALLOC, "env", *more]) for more in (("--log", "off"), ("--unset",))
    )
    finished = in_a_shell(before, f'env; eval "$({set_})"; eval "$({unset})"; echo ----; env')
    assert finished.returncode == 0, finished.stderr
    first, again = finished.stdout.split("----\n")
    assert "LD_PRELOAD=libm.so.6" in first.splitlines()
    kept = [
        sorted(line for line in text.splitlines() if not line.startswith("_="))
        for text in (first, again)
    ]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "magic"), "--policy is 'magic'; accepted: auto"),
        (("--unset", "--budget", "1G"), "--budget is '1G'; accepted: nothing with --unset"),
    ],
)
def test_no_variables_are_printed_for_bad_options(uvmalloc, options, said):
    finished = uvmalloc("env", *options)
    assert finished.returncode == 2
    assert error_line(finished).startswith(said)


def test_the_machine_becomes_variables(libraries, tmp_path):
    machine = Machine(3, capacity_bytes=2 << 20, driver_version="12.8", profile="integrated")
    made = on_simulated_device({}, libraries, machine, tmp_path / "sim.json")
    assert made["UVMSIM_DEVICES"] == "3"
    assert made["UVMSIM_CAPACITY"] == "2097152"
    assert made["UVMSIM_DRIVER_VERSION"] == "12080"
    assert made["UVMSIM_PROFILE"] == "integrated"
    assert made["UVMSIM_REPORT"] == str(tmp_path / "sim.json")
    assert made["UVMSIM_LIBRARY_DIR"] == str(libraries.stand_ins)


def test_a_named_machine_becomes_a_variable(libraries, tmp_path):
    machine = Machine(machine="gb10", host_memory_bytes=4 << 30, cpu_touches=True)
    made = on_simulated_device({}, libraries, machine, tmp_path / "sim.json")
    assert made["UVMSIM_MACHINE"] == "gb10"
    assert made["UVMSIM_HOST_MEMORY"] == str(4 << 30)
    assert made["UVMSIM_CPU_TOUCHES"] == "1"
    assert "UVMSIM_CAPACITY" not in made


def test_a_machine_that_is_none_is_refused(uvmalloc, libraries):
    assert {"gb10", "h100-pcie5", "mi300a"} <= set(libraries.machines())
    finished = uvmalloc("sim", "--machine", "gb11", "--", "true")
    assert finished.returncode != 0
    assert "--machine" in finished.stderr and "gb11" in finished.stderr
    assert "gb10" in finished.stderr and "a file in TOML" in finished.stderr


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no toml", "bad.toml"),
        ("", "name is missing"),
        (None, "a file in TOML"),
    ],
)
def test_a_machine_that_cannot_be_read_stops_the_command(uvmalloc, tmp_path, text, said):
    if text is not None:
        (tmp_path / "bad.toml").write_text(text)
    finished = uvmalloc("sim", "--machine", "bad.toml", "--", "touch", "ran")
    assert finished.returncode == 2
    line = error_line(finished)
    assert line.startswith("--machine is 'bad.toml'; accepted: ") and said in line
    assert not (tmp_path / "ran").exists()


def test_a_machine_may_be_a_file(uvmalloc, libraries, tmp_path):
    shutil.copy(libraries.stand_ins / "profiles" / "gb10.toml", tmp_path / "mine.toml")
    finished = uvmalloc("sim", "--no-report", "--machine", "mine.toml", "--", "touch", "ran")
    assert finished.returncode == 0, finished.stderr
    assert (tmp_path / "ran").exists()


DEVICE_NAMES = """
import ctypes, torch
names = {torch.cuda.get_device_name()}  # initialises the driver
name = ctypes.create_string_buffer(96)
assert ctypes.CDLL("libcuda.so.1").cuDeviceGetName(name, 96, 0) == 0
manager, device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
managed = ctypes.create_string_buffer(96)
assert manager.nvmlInit_v2() == 0
assert manager.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)) == 0
assert manager.nvmlDeviceGetName(device, managed, 96) == 0
names |= {name.value.decode(), managed.value.decode()}
print(*names)
"""
HIP_DEVICE_NAME = """
import ctypes
runtime, name = ctypes.CDLL("libamdhip64.so.7"), ctypes.create_string_buffer(96)
assert runtime.hipDeviceGetName(name, 96, 0) == 0
print(name.value.decode())
"""


@pytest.mark.parametrize(
    ("options", "program", "name"),
    [
        ((), DEVICE_NAMES, "UVM Simulated Device"),
        (("--machine", "h100-pcie5"), DEVICE_NAMES, "NVIDIA H100 PCIe"),
        (("--hip",), HIP_DEVICE_NAME, "UVM Simulated Device"),
        (("--hip", "--machine", "mi300a"), HIP_DEVICE_NAME, "AMD Instinct MI300A"),
    ],
)
def test_a_device_has_its_machines_name(uvmalloc, options, program, name):
    finished = uvmalloc("sim", "--no-report", *options, "--", sys.executable, "-c", program)
    assert finished.stdout == f"{name}\n", finished.stderr


VIRTUAL_TIME = """
import ctypes, torch
x = torch.ones(4 << 20).to("cuda")
y = torch.zeros(1 << 20, device="cuda") + x[: 1 << 20]
print(y.sum().item())
del x, y
torch.cuda.empty_cache()
torch.cuda.synchronize()
now_ns = ctypes.CDLL("libuvmsim.so").uvmsim_now_ns
now_ns.restype = ctypes.c_uint64
print(now_ns())
"""


def test_virtual_time_does_not_depend_on_the_budget(uvmalloc):
    def run(budget: str) -> str:
        finished = uvmalloc(
            "sim", "--no-report", "--machine", "h100-pcie5", "--budget", budget, "--",
            sys.executable, "-c", VIRTUAL_TIME,
        )  # fmt: skip
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    assert run("1GiB") == run("6GiB")


def test_native_leaves_uvmalloc_out(uvmalloc):
    show = ("sh", "-c", 'echo "$LD_PRELOAD|$PYTORCH_ENABLE_UNIFIED_MEMORY|$UVMSIM_DEVICES"')
    finished = uvmalloc("sim", "--native", "--no-report", "--", *show)
    assert (finished.returncode, finished.stdout) == (0, "||1\n"), finished.stderr


TOTAL_MEMORY = """
import ctypes
driver, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t()
assert driver.cuInit(0) == 0
assert driver.cuDeviceTotalMem_v2(ctypes.byref(total), 0) == 0
print(total.value)
"""


@pytest.mark.parametrize("text", ["1.5GiB", "96MiB", "8 g", "100000000", "2.25M", "1GB"])
def test_the_simulator_reads_sizes_as_the_command_does(uvmalloc, text):
    program = ("--", sys.executable, "-c", TOTAL_MEMORY)
    by_option = uvmalloc("sim", "--native", "--no-report", "--capacity", text, *program)
    by_variable = uvmalloc("sim", "--native", "--no-report", *program, UVMSIM_CAPACITY=text)
    assert by_option.stdout == by_variable.stdout == f"{parse_size(text)}\n", by_variable.stderr


@pytest.mark.parametrize("devices", ["0", "32"])
def test_the_simulator_has_as_many_devices_as_the_command_accepts(uvmalloc, devices):
    count = "import ctypes\nn = ctypes.c_int()\ndriver = ctypes.CDLL('libcuda.so.1')\n"
    count += "driver.cuInit(0)\ndriver.cuDeviceGetCount(ctypes.byref(n))\nprint(n.value)"
    run = ("--native", "--no-report", "--devices", devices, "--", sys.executable, "-c", count)
    finished = uvmalloc("sim", *run)
    assert (finished.stdout, finished.stderr) == (f"{devices}\n", "")


def test_a_preloaded_library_with_static_thread_local_storage_fits_beside_the_stand_ins(
    uvmalloc, tmp_path
):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test compiles a library"
    source = tmp_path / "static_tls.c"
    source.write_text(
        '__thread char block[8192] __attribute__((tls_model("initial-exec")));\n'
        "char* find_block(void) { return block; }\n"
    )
    library = tmp_path / "libstatic_tls.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    run = ("sim", "--no-report", "--", sys.executable, "-c", "print('started')")
    finished = uvmalloc(*run, LD_PRELOAD=str(library))
    assert (finished.returncode, finished.stdout) == (0, "started\n"), finished.stderr


def test_a_size_of_static_storage_that_the_user_chose_stays(libraries):
    chosen = {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.rtld.optional_static_tls=4096"}
    made = on_simulated_device(chosen, libraries, Machine(), None)
    assert made["GLIBC_TUNABLES"] == chosen["GLIBC_TUNABLES"]
    others = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}
    made = on_simulated_device(others, libraries, Machine(), None)
    expected = "glibc.malloc.check=1:glibc.rtld.optional_static_tls=16384"
    assert made["GLIBC_TUNABLES"] == expected


@pytest.mark.parametrize(
    ("option", "version"), [("12.2", 12020), ("12.8", 12080), ("13.0", 13000), ("13.5", 13050)]
)
def test_the_simulated_driver_has_the_requested_version(uvmalloc, option, version):
    ask = "import ctypes\nv = ctypes.c_int()\ndriver = ctypes.CDLL('libcuda.so.1')\n"
    ask += "driver.cuDriverGetVersion(ctypes.byref(v))\n"
    ask += "print(v.value, hasattr(driver, 'cuMemAdvise_v2'))\n"
    ask += "print(hasattr(driver, 'cuEventElapsedTime_v2'))\n"
    ask += "print(hasattr(driver, 'cuMemDiscardBatchAsync'))"
    run = ("--native", "--no-report", "--driver-version", option, "--", sys.executable, "-c", ask)
    finished = uvmalloc("sim", *run)
    expected = f"{version} True\n{version >= 12080}\n{version >= 13000}\n"
    assert (finished.stdout, finished.stderr) == (expected, "")


# ---- running ------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["run", "sim"])
@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_exit_code_of_the_program_is_ours(uvmalloc, command, code):
    assert uvmalloc(command, "--", "sh", "-c", f"exit {code}").returncode == code


def test_options_of_the_program_need_no_separator(uvmalloc):
    finished = uvmalloc("run", "--no-report", "echo", "--policy", "--", "x")
    assert (finished.returncode, finished.stdout) == (0, "--policy -- x\n"), finished.stderr


def test_standard_input_and_output_are_the_programs(clean_environment):
    finished = subprocess.run(
        [*UVMALLOC, "run", "--no-report", "--", "cat"],
        env=clean_environment,
        input="through",
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "through", "")


def test_an_unknown_program_is_127_and_one_line(uvmalloc):
    finished = uvmalloc("run", "--", "no-such-program-here")
    assert finished.returncode == 127
    assert error_line(finished) == "command not found: no-such-program-here"


def test_a_program_that_cannot_be_executed_is_126(uvmalloc, tmp_path):
    file = tmp_path / "data"
    file.write_text("no program")
    finished = uvmalloc("run", "--", str(file))
    assert finished.returncode == 126
    assert str(file) in error_line(finished)


@pytest.mark.parametrize(
    ("name", "word", "is_executable", "hint"),
    [
        ("train.py", "train.py", False, "Run: python train.py"),
        ("train.py", "./train.py", False, "Run: python ./train.py"),
        ("train.py", "./train.py", True, "Run: python ./train.py"),
        ("train.sh", "train.sh", True, "Run: sh train.sh"),
        ("program", "program", True, "Write: ./program"),
        ("program", "./program", False, "Run: chmod +x ./program"),
    ],
)
@pytest.mark.parametrize("command", ["run", "sim"])
def test_the_error_of_a_file_that_is_no_program_says_how_to_run_it(
    uvmalloc, tmp_path, command, name, word, is_executable, hint
):
    (tmp_path / name).write_text("print(1)\n")
    (tmp_path / name).chmod(0o755 if is_executable else 0o644)
    finished = uvmalloc(command, word)
    assert finished.returncode in (126, 127)
    line = error_line(finished)
    assert word in line and line.endswith(hint)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL", "SIGSEGV"])
def test_death_by_signal_is_128_and_its_number(uvmalloc, name):
    finished = uvmalloc("run", "--", "sh", "-c", f"kill -{name.removeprefix('SIG')} $$")
    assert finished.returncode == 128 + signal.Signals[name]


def test_a_program_starts_with_default_signals(uvmalloc):
    show = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    finished = uvmalloc("run", "--no-report", "--", sys.executable, "-c", show)
    assert finished.stdout == "set()\n"


def test_nothing_stays_behind(uvmalloc, tmp_path):
    folder = tmp_path / "temporary"
    folder.mkdir()
    uvmalloc("run", "--", "true", TMPDIR=str(folder))
    assert list(folder.iterdir()) == []


def test_a_program_that_never_used_uvmalloc_has_no_report(uvmalloc):
    finished = uvmalloc("run", "--", "true")
    assert finished.stderr == (
        "uvmalloc, not active: this program did not use it "
        "(it serves PyTorch, and allocation calls of CUDA and HIP)\n"
    )


USES_TORCH = "import torch; x = torch.ones(1 << 20); print(torch.cuda.is_available())"


@pytest.mark.parametrize(
    ("command", "variables", "reason"),
    [
        (("run",), {"UVMALLOC_RUNTIME": "soup"}, "no runtime is named 'soup'"),
        (("sim", "--devices", "0"), {}, "no CUDA device is visible"),
        (("run",), {"UVMALLOC_CPU": "managed", "UVMALLOC_RUNTIME": "soup"}, "named 'soup'"),
    ],
)
def test_the_report_gives_the_reason_that_the_first_line_gave(uvmalloc, command, variables, reason):
    finished = uvmalloc(*command, "--", sys.executable, "-c", USES_TORCH, **variables)
    assert finished.returncode == 0
    first, title, *_ = finished.stderr.splitlines()
    why = first.partition("the program runs as without uvmalloc: ")[2]
    assert reason in why
    assert title.endswith(f", not active: {why}")


def test_the_report_of_a_program_without_uvmalloc_is_its_users_alone(
    clean_environment, libraries, tmp_path
):
    variables = {"PYTORCH_ENABLE_UNIFIED_MEMORY": "1", "UVMALLOC_RUNTIME": "soup"}
    variables |= {"UVMALLOC_REPORT_DIR": str(tmp_path), "LD_PRELOAD": str(libraries.uvmalloc)}
    program = [sys.executable, "-c", "import os; os.umask(0); " + USES_TORCH]
    subprocess.run(program, env=clean_environment | variables, check=True, capture_output=True)
    [report_file] = tmp_path.iterdir()
    assert report_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("served", "then"),
    [("0", "torch keeps its own allocators"), ("auto", "uvmalloc serves torch's CUDA allocation")],
)
def test_the_report_names_the_plugin_that_is_missing(uvmalloc, lonely_library, served, then):
    program = ("--", sys.executable, "-c", "import torch; torch.ones(1)")
    folder = str(lonely_library.parent)
    finished = uvmalloc("run", *program, UVMALLOC_LIB_DIR=folder, UVMALLOC_CUDA=served)
    first, title = finished.stderr.splitlines()
    why = first.removeprefix("uvmalloc: ").partition(f": {then}")[0]
    assert why.startswith("there is no plugin for torch ") and then in first
    assert title.endswith(f", not active: {why}")


def test_a_program_whose_static_runtime_cannot_be_replaced_is_refused(uvmalloc, tmp_path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "this test compiles a program"
    runtime = Path(importlib.util.find_spec("torch").origin).parents[1] / "nvidia" / "cu13" / "lib"
    (tmp_path / "program.c").write_text(
        "int cudaMallocHost(void**, unsigned long);\n"
        "int main(void) { int* p = 0; cudaMallocHost((void**)&p, 4096); return *p = 0; }\n"
    )
    build = [compiler, tmp_path / "program.c", "-o", tmp_path / "program", "-ldl", "-lpthread"]
    for library, option in (
        ("libcudart.so.13", "-s"),
        ("libcudart_static.a", "-g"),
        ("libcudart_static.a", "-s"),
        # Without the table of the functions' beginnings nothing tells where they are.
        ("libcudart_static.a", "-Wl,-s,--no-eh-frame-hdr"),
    ):
        command = [*build[:2], runtime / library, *build[2:], option, "-lrt", "-lm"]
        subprocess.run(command, check=True)
        finished = uvmalloc("sim", "--no-report", "--", "./program")
        refused = option.startswith("-Wl")
        assert finished.returncode == (126 if refused else 0), finished.stderr
    assert error_line(finished) == (
        "cannot run ./program on a simulated device: it contains CUDA's static runtime, in a "
        "stripped file, and of a version that the simulator does not know; link it with the "
        "shared one: nvcc -cudart shared"
    )


def test_the_report_says_that_a_static_runtime_cannot_be_simulated(uvmalloc):
    # By this table, the simulator recognizes a static runtime.
    table = "bytes.fromhex('6bd5fb6c5bf4e74a8987d93912fd9df9')"
    ask = "import ctypes\ntable = ctypes.c_void_p()\ndriver = ctypes.CDLL('libcuda.so.1')\n"
    ask += f"driver.cuInit(0); driver.cuGetExportTable(ctypes.byref(table), {table})"
    finished = uvmalloc("sim", "--", sys.executable, "-c", ask)
    first, title, *_ = finished.stderr.splitlines()
    assert "contains CUDA's static runtime" in first
    assert "not active: it contains CUDA's static runtime, which accepts only NVIDIA's" in title


def test_how_a_program_ended_is_said(uvmalloc):
    finished = uvmalloc("run", "--", "sh", "-c", "exit 3")
    assert finished.stderr.startswith("uvmalloc, ended with exit code 3, not active: ")
    finished = uvmalloc("run", "--", "sh", "-c", "kill -KILL $$")
    assert finished.stderr.startswith("uvmalloc, ended by SIGKILL, not active: ")


def test_a_program_runs_where_no_folder_can_be_written(monkeypatch, capfd, clean_environment):
    def refuse(*_: object, **__: object) -> str:
        raise PermissionError

    monkeypatch.setattr(running.tempfile, "mkdtemp", refuse)
    assert cli.main(["run", "--", "sh", "-c", "exit 4"]) == 4
    said = "no folder for temporary files can be written: there will be no report"
    assert capfd.readouterr().err == f"uvmalloc: {said}\n"


# ---- help and completion ------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "part"), [((), "doctor"), (("trace",), "perfetto")])
def test_a_command_without_its_command_shows_help(uvmalloc, command, part):
    finished = uvmalloc(*command)
    assert (finished.returncode, finished.stderr) == (2, "")
    assert finished.stdout.strip().startswith("Usage: uvmalloc")
    assert part in finished.stdout
    assert finished.stdout == uvmalloc(*command, "--help").stdout


@pytest.mark.parametrize(
    "command",
    [
        *[(name,) for name in ("run", "sim", "env", "doctor", "report", "plan", "top", "trace")],
        *[("trace", name) for name in ("show", "csv", "perfetto", "html", "png")],
    ],
)
def test_every_command_has_short_help(uvmalloc, command):
    finished = uvmalloc(*command, "-h")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.startswith(f"Usage: uvmalloc {' '.join(command)} ")


@pytest.mark.parametrize("command", [(), ("run",), ("sim",), ("doctor",), ("trace", "csv")])
def test_help_is_no_wider_than_the_terminal(uvmalloc, command):
    finished = uvmalloc(*command, "--help", COLUMNS="40")
    assert max(map(len, finished.stdout.splitlines())) <= 40


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("uvmalloc s", ["sim"]),
        ("uvmalloc sim --pro", ["--profile"]),
        ("uvmalloc sim --profile h", ["hmm"]),
        ("uvmalloc run --policy ", ["auto", "planned", "lru", "driver", "off"]),
        ("uvmalloc sim --driver-version 12", ["12.2", "12.8"]),
    ],
)
def test_shells_complete_commands_options_and_values(uvmalloc, typed, offered):
    words = typed.split(" ")
    variables = {
        "_UVMALLOC_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(words) - 1),
    }
    assert uvmalloc(**variables).stdout.split() == offered


def test_the_completion_of_a_shell_is_shown(uvmalloc):
    # Without this variable, the command would find out the shell from its parent processes.
    given = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    finished = uvmalloc("--show-completion", "bash", **given)
    assert "_UVMALLOC_COMPLETE=complete_bash" in finished.stdout


# ---- reports ------------------------------------------------------------------------------------

SAMPLE = {
    "version": "0.2.0",
    "program": "train.py",
    "pid": 7,
    "active": True,
    "threshold_bytes": 1 << 20,
    "budget_bytes": 8 << 30,
    "peak_bytes": 3 << 30,
    "wall_seconds": 12.3,
    "facades": {
        "host": {"allocations": 10, "allocated_bytes": 5 << 30, "cache_hits": 5},
        "pinned": {"allocations": 2},
        "device": {
            "allocations": 1234,
            "peak_bytes": 2 << 30,
            "live_bytes": 1 << 20,
            "cached_bytes": 3 << 20,
            "cache_hits": 1234,
        },
    },
    "moves": {"total": 40, "host_to_device": 30, "device_to_host": 10, "bytes": 1 << 30},
    "copies_by_moves": {
        "count": 3,
        "bytes": 4096,
        "bytes_at_or_above_threshold": 0,
        "by_reason": {"small": {"count": 3, "bytes": 4096}},
    },
    "prefetches": {"sent": 5, "bytes": 1 << 20, "skipped": {"resident": 2}, "failed": 0},
    "advice": {"sent": 1, "skipped": {}, "failed": 1},
    "driver_calls": {"cuMemPrefetchAsync": 5, "cuMemAllocManaged": 0},
    "devices": [{"name": "Card", "total_bytes": 64 << 30}] * 2,
    "host_unmanaged": {"allocations": 7, "allocated_bytes": 100},
    "native_allocations": {"device": 0, "pinned": 0, "host": 2},
    "out_of_memory": 1,
    "simulator": {"kernels": 77, "fault_pages_device": 8, "evicted_bytes": 2 << 20},
}


def shown(content: dict, width: int = 80) -> str:
    out = io.StringIO()
    report.show_report(content, Console(file=out, width=width, markup=False))
    return out.getvalue()


def test_a_report_shows_what_matters():
    text = shown(SAMPLE)
    assert "train.py, 12.3 s, peak 3 GiB of a budget of 8 GiB" in text
    assert "devices: 2 x Card with 64 GiB" in text
    assert "device moves: 40 (30 to a device, 10 to the host), 1 GiB moved without a copy" in text
    assert "copied by moves: 4 KiB in 3 copies, 0 B of it in tensors of 1 MiB or more" in text
    assert "small 3 (4 KiB)" in text
    assert "prefetches: 5 sent (1 MiB); skipped: resident 2" in text
    assert "advice: 1 sent; failed: 1" in text
    assert "driver calls: cuMemPrefetchAsync 5\n" in text
    assert "not served by uvmalloc: host 2 by torch's own allocators" in text
    assert "from malloc: 7 host allocations below 1 MiB, or from before uvmalloc was active" in text
    assert "out of memory: 1 times" in text
    assert "simulator: 77 kernels; 8 faulted pages" in text
    device = next(line for line in text.splitlines() if line.strip().startswith("device  "))
    assert device.split() == [
        "device",
        "1,234",
        "100",
        "%",
        "0",
        "B",
        "2",
        "GiB",
        "1",
        "MiB",
        "3",
        "MiB",
    ]


@pytest.mark.parametrize("missing", list(SAMPLE))
def test_a_report_may_lack_any_key(missing):
    shown({key: value for key, value in SAMPLE.items() if key != missing})


def test_a_narrow_report_has_each_figure_on_a_line():
    lines = shown(SAMPLE, width=40).splitlines()
    at = lines.index("device")
    assert lines[at + 1] == "  allocations  1,234"
    assert lines[at + 4] == "  peak         2 GiB"


def test_hints_that_were_left_out_are_explained():
    content = {"facades": {}, "prefetches": {"sent": 1, "skipped": {"no_credit": 37}}}
    words = "no_credit 37 (the device was full)"
    assert f"prefetches: 1 sent (0 B); skipped: {words}\n" in shown(content)


def test_coverage_is_claimed_only_where_it_was_counted():
    nothing = {"facades": {}, "native_allocations": {}}
    assert "not served by uvmalloc: 0 allocations\n" in shown(nothing)
    program = {"facades": {}, "framework": False, "native_allocations": None}
    assert "not served by uvmalloc: not counted; UVMALLOC_CUDA=1 would serve" in shown(program)
    killed = {"facades": {}, "framework": True, "native_allocations": None}
    why = "unknown: only a program that ends normally counts"
    assert f"not served by uvmalloc: {why}" in shown(killed)


def test_a_word_is_said_where_most_was_copied_because_it_was_small():
    def with_small(small_bytes: int, moved_bytes: int) -> str:
        copied = {"bytes": small_bytes, "by_reason": {"small_block": {"bytes": small_bytes}}}
        return shown(
            {
                "facades": {},
                "threshold_bytes": 1 << 20,
                "copies_by_moves": copied,
                "moves": {"bytes": moved_bytes},
            }
        )

    word = "note: of 102 MiB that went to another device, 92 MiB were copied: tensors below 1 MiB"
    assert word in with_small(92 << 20, 10 << 20)
    assert "note:" not in with_small(92 << 20, 93 << 20)
    assert "note:" not in with_small(1 << 19, 0)


def test_a_long_program_is_a_part_of_one_line():
    title = shown({"program": "python -c\n" + "import torch\n" * 100, "active": False})
    start = "uvmalloc: python -c import torch import torch"
    assert title.startswith(start) and title.endswith("..., not active: no reason given\n")
    assert len(title) < 220 and title.count("\n") == 1


def test_an_inactive_report_says_why():
    text = shown({"program": "train.py", "active": False, "reason": "no device"})
    assert text == "uvmalloc: train.py, not active: no device\n"


def test_the_main_report_is_the_childs_or_the_busiest(tmp_path):
    for pid, allocations in ((1, 5), (2, 50), (3, 20)):
        content = {"pid": pid, "facades": {"device": {"allocations": allocations}}}
        (tmp_path / f"report.{pid}.json").write_text(json.dumps(content))
    assert report.main_report(tmp_path, 1)["pid"] == 1
    assert report.main_report(tmp_path, 99)["pid"] == 2
    assert report.main_report(tmp_path / "empty", 1) is None


WRITE_REPORTS = (
    *("sh", "-c"),
    'echo "{}" >"$UVMALLOC_REPORT_DIR/report.$$.json"; '
    'if test -n "$UVMSIM_REPORT"; then echo "[0]" >"$UVMSIM_REPORT"; fi',
)


@pytest.mark.parametrize("command", ["run", "sim"])
@pytest.mark.parametrize("option", [(), ("--no-report",)])
def test_reports_also_go_where_variables_ask_for_them(uvmalloc, tmp_path, command, option):
    wanted = {
        "UVMALLOC_REPORT_DIR": str(tmp_path),
        "UVMSIM_REPORT": str(tmp_path / "counters.json"),
    }
    finished = uvmalloc(command, *option, "--", *WRITE_REPORTS, **wanted)
    assert finished.returncode == 0, finished.stderr
    assert [file.read_text() for file in tmp_path.glob("report.*.json")] == ["{}\n"]
    assert (tmp_path / "counters.json").read_text() == "[0]\n"


def test_a_folder_for_reports_that_is_not_there_is_one_line(uvmalloc, tmp_path):
    folder = tmp_path / "nowhere"
    finished = uvmalloc("run", "--", *WRITE_REPORTS, UVMALLOC_REPORT_DIR=str(folder))
    first, *_ = finished.stderr.splitlines()
    assert first.startswith(f"uvmalloc: cannot write {folder}/report.")
    assert first.endswith(": No such file or directory")
    assert finished.returncode == 0


@pytest.mark.parametrize("word", ["", "0", "Off", "false", "no"])
def test_no_report_is_copied_where_the_variable_is_off(uvmalloc, tmp_path, word):
    finished = uvmalloc("run", "--", *WRITE_REPORTS, UVMALLOC_REPORT_DIR=word)
    assert "cannot write" not in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_report_shows_a_file(uvmalloc, tmp_path):
    file = tmp_path / "saved.json"
    file.write_text(json.dumps(SAMPLE))
    finished = uvmalloc("report", str(file))
    assert finished.returncode == 0
    assert "device moves: 40 (" in finished.stdout


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no json",
        "{}",
        '{"program": "train.py"}',
        "[1, 2]",
        '{"facades": [1]}',
        '{"moves": {"total": "many"}}',
        '{"peak_bytes": null}',
        f'{{"peak_bytes": {"9" * 400}}}',
        '{"simulator": "fast"}',
        "[" * 100_000,
    ],
)
def test_report_refuses_what_is_none(uvmalloc, tmp_path, content):
    file = tmp_path / "saved.json"
    if content is not None:
        file.write_text(content)
    finished = uvmalloc("report", str(file))
    assert finished.returncode == 1
    assert str(file) in error_line(finished)


# ---- where the output goes ----------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [("doctor",), ("doctor", "--json"), ("--help",)])
def test_an_output_that_cannot_be_written_is_one_line(clean_environment, arguments):
    fails_in_one_line_on_a_full_disk(clean_environment, arguments)


def test_what_the_outputs_encoding_lacks_is_escaped(uvmalloc, tmp_path):
    file = tmp_path / "saved.json"
    file.write_text(json.dumps({"program": "café", "active": True}))
    finished = uvmalloc("report", str(file), PYTHONIOENCODING="ascii")
    assert finished.stderr == ""
    assert finished.stdout.startswith("uvmalloc: caf\\xe9\n")


# ---- lists that the native libraries have too ----------------------------------------------------

ASK_DRIVER = (
    "import ctypes; driver = ctypes.CDLL('libcuda.so.1'); number = ctypes.c_int();"
    "driver.cuInit(0); driver.cuDriverGetVersion(ctypes.byref(number));"
    "driver.cuDeviceGetCount(ctypes.byref(number))"
)


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("UVMSIM_PROFILE", ", ".join(accepted.PROFILES)),
        ("UVMSIM_DEVICES", f"a whole number from 0 to {accepted.MOST_DEVICES}"),
        (
            "UVMSIM_CAPACITY",
            f"a size from {accepted.LEAST_SIZE_BYTES >> 20}MiB to "
            f"{accepted.MOST_SIZE_BYTES >> 40}TiB, such as {EXAMPLES}",
        ),
    ],
)
def test_the_simulator_accepts_the_same_values(variable, expected, uvmalloc):
    command = ("env", f"{variable}=x", sys.executable, "-c", ASK_DRIVER)
    finished = uvmalloc("sim", "--native", "--no-report", "--", *command)
    assert f"uvmsim: {variable} is 'x'; accepted: {expected}; using " in finished.stderr


# ---- doctor -------------------------------------------------------------------------------------


def test_doctor_without_a_library_says_what_to_do(uvmalloc, other_build):
    finished = uvmalloc("doctor", UVMALLOC_LIB_DIR=str(other_build))
    assert finished.returncode == 1
    assert "libuvmalloc_preload.so not found" in finished.stdout
    assert finished.stderr == ""


def test_doctor_on_a_simulated_device_is_content(uvmalloc):
    finished = uvmalloc(
        "sim", "--no-report", "--capacity", "64MiB", "--", *UVMALLOC, "doctor", "--json"
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    diagnosis = json.loads(finished.stdout)
    assert diagnosis["usable"] is True
    assert diagnosis["runtime"]["available"] is True
    assert [device["total_bytes"] for device in diagnosis["devices"]] == [64 << 20]
    assert Path(diagnosis["torch"]["plugin"]).is_file()


def test_doctor_believes_a_library_that_cannot_be_used_here(libraries, monkeypatch):
    verdict = "uvmalloc stays inactive here: card: no concurrent managed access"
    said = {
        "runtime": {"name": "cuda", "available": True},
        "devices": [{"index": 0, "name": "card"}],
        "usable": False,
        "verdict": verdict,
    }
    monkeypatch.setattr(doctor.library_calls, "doctor", lambda library: said)
    diagnosis = doctor.diagnose()
    assert (diagnosis["usable"], diagnosis["problems"]) == (False, [verdict])


WITHOUT_PLUGIN = "without it `uvmalloc run` serves only torch's CUDA allocation calls"


def torch_problems(uvmalloc, folder, version, cuda, python=None):
    """Returns what doctor says of a torch in `folder` that has only a version.

    `python` is the folder of a uvmalloc package outside this checkout.
    """
    (folder / "torch").mkdir(parents=True)
    (folder / "torch" / "version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda!r}\n")
    (folder / f"torch-{version}.dist-info").mkdir()
    text = f"Name: torch\nVersion: {version}\n"
    (folder / f"torch-{version}.dist-info" / "METADATA").write_text(text)
    paths = os.pathsep.join(str(path) for path in (folder, python) if path is not None)
    finished = uvmalloc("doctor", "--json", PYTHONPATH=paths)
    problems = json.loads(finished.stdout)["problems"]
    return [problem for problem in problems if "torch" in problem]


def copy_package(python):
    ignored = shutil.ignore_patterns("lib", "__pycache__")
    shutil.copytree(Path(cli.__file__).parents[1], python / "uvmalloc", ignore=ignored)


def test_doctor_says_how_to_get_a_plugin(uvmalloc, libraries, tmp_path):
    without = tmp_path / "checkout"
    python = without / "pytorch" / "python"
    built = without / "build" / "release" / "lib"
    copy_package(python)
    shutil.copytree(ROOT / "scripts", without / "scripts")
    built.mkdir(parents=True)
    shutil.copy(libraries.uvmalloc, built / "libuvmalloc_preload.so")
    [problem] = torch_problems(uvmalloc, tmp_path / "a", "2.15.0", "13.2", python)
    command = f"{without}/scripts/build --torch-of {sys.executable}"
    assert problem == f"no plugin for torch 2.15.0 in {built}: run {command}; {WITHOUT_PLUGIN}"
    [problem] = torch_problems(uvmalloc, tmp_path / "b", "2.10.0", "13.0", python)
    served = "2.11, 2.12, 2.13, 2.14, 2.15"
    assert problem.endswith(f"in {built}: install one of the versions {served}; {WITHOUT_PLUGIN}")


def test_doctor_names_the_torch_that_a_wheel_serves(uvmalloc, libraries, tmp_path):
    python = tmp_path / "site-packages"
    lib = python / "uvmalloc" / "lib"
    copy_package(python)
    lib.mkdir()
    shutil.copy(libraries.uvmalloc, lib / "libuvmalloc_preload.so")
    (lib / "libuvmalloc_torch_2_12.so").touch()
    [problem] = torch_problems(uvmalloc, tmp_path / "torch", "2.16.0", "13.3", python)
    missing = f"no plugin for torch 2.16.0 in {lib}: install one of the versions 2.12"
    assert problem == f"{missing}; {WITHOUT_PLUGIN}"


@pytest.mark.parametrize(("cuda", "built"), [(None, "without CUDA"), ("12.8", "for CUDA 12.8")])
def test_doctor_says_which_build_of_torch_is_needed(uvmalloc, tmp_path, cuda, built):
    [problem] = torch_problems(uvmalloc, tmp_path / "torch", "2.15.0", cuda)
    also = f"; {WITHOUT_PLUGIN}" if cuda else ""
    assert problem == (
        f"torch 2.15.0 is built {built}, and uvmalloc needs a torch for CUDA 13: install that wheel"
        f"{also}"
    )


def test_doctor_shows_values_and_where_they_come_from(uvmalloc):
    finished = uvmalloc("doctor", "--json", UVMALLOC_BUDGET="1GiB")
    diagnosis = json.loads(finished.stdout)
    budget = next(
        entry for entry in diagnosis["configuration"] if entry["name"] == "UVMALLOC_BUDGET"
    )
    assert budget["source"] == "environment"
    others = [entry for entry in diagnosis["configuration"] if entry is not budget]
    assert {entry["source"] for entry in others} == {"default"}
    assert diagnosis["configuration_errors"] == []


def test_doctor_shows_what_automatic_settings_come_to(uvmalloc):
    doctor = ("--capacity", "64MiB", "--", *UVMALLOC, "doctor")
    finished = uvmalloc("sim", "--no-report", *doctor, COLUMNS="200")
    lines = [line.split() for line in finished.stdout.splitlines()]
    budget = next(line for line in lines if line[:1] == ["UVMALLOC_BUDGET"])
    assert budget[1] == "auto:"
    assert float(budget[2]) > 0
    assert ["UVMALLOC_HOST_MEMORY", "auto:", "managed", "default"] in lines


def test_doctor_is_readable_in_a_narrow_terminal(uvmalloc):
    finished = uvmalloc("doctor", COLUMNS="40")
    assert "UVMALLOC_BUDGET\n  value  auto\n  from   default\n" in finished.stdout


def test_doctor_shows_errors_in_the_configuration(uvmalloc):
    finished = uvmalloc("doctor", UVMALLOC_POLICY="magic")
    assert "UVMALLOC_POLICY" in finished.stdout
    assert "magic" in finished.stdout
    assert "verdict: " in finished.stdout
