"""Makes a folder with which g++ builds for an older Linux: a sysroot of glibc, and a C++ library.

    python scripts/older_glibc.py MACHINE FOLDER      MACHINE: x86_64 or aarch64

glibc's headers, its libraries with the names of version 2.28 alone, and the start files come from
the package ziglang. The C++ library is this machine's: names that GCC 8 had are taken from the
libstdc++.so.6 of the machine where a program runs, and newer ones from the static library.
Nothing built with the folder needs more than manylinux_2_28 allows.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

GLIBC = "2.28"
# What libstdc++.so.6 of GCC 8 has (manylinux_2_28).
NEWEST = {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}
LIBRARIES = ("libc", "libm", "libpthread", "libdl", "librt")
# Functions that this machine's C++ headers call if its C library has them, and glibc 2.28 lacks.
TOO_NEW = (
    "_GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT",
    "_GLIBCXX_USE_PTHREAD_MUTEX_CLOCKLOCK",
    "_GLIBCXX_USE_PTHREAD_RWLOCK_CLOCKLOCK",
)


def run(*command: str | Path, **options: str) -> str:
    done = subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, **options
    )
    return done.stdout + done.stderr


def tool(machine: str, name: str) -> str:
    native = run("uname", "-m").strip() == machine
    return name if native else f"{machine}-linux-gnu-{name}"


def compiler(machine: str) -> str:
    return tool(machine, "g++")


def make_glibc(machine: str, root: Path, work: Path) -> None:
    """Copies the headers and libraries with which zig compiles for the older version."""
    source = work / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", f"{machine}-linux-gnu.{GLIBC}"]
    libraries = ("-lm", "-lpthread", "-ldl", "-lrt")
    include, lib = root / "usr" / "include", root / "usr" / "lib"
    include.mkdir(parents=True)
    lib.mkdir()
    for kind, start in (("-no-pie", "crt1.o"), ("-pie", "Scrt1.o")):
        said = run(*zig, "-v", kind, source, "-o", work / "empty", *libraries, cwd=str(work))
        (found,) = set(re.findall(rf"\S*/{start}", said))
        shutil.copy(work / found, lib)
    folders = re.findall(r"^ (\S+/libc/include/\S+)$", said, re.MULTILINE)
    for folder in reversed(folders):  # the first has priority
        shutil.copytree(folder, include, dirs_exist_ok=True)
    # zig defines the version on the command line.
    features = include / "features.h"
    version = f"#define __GLIBC_MINOR__ {GLIBC.split('.')[1]}\n"
    features.write_text(version + features.read_text())
    for header in include.rglob("*.h"):  # other headers look which of them there are
        newer = re.search(r'#error ".* did not exist before glibc 2\.(\d+)"', header.read_text())
        if newer and int(newer[1]) > int(GLIBC.split(".")[1]):
            header.unlink()
    stubs = {Path(name).name: work / name for name in re.findall(r"\S+/lib\w+\.so\.\d", said)}
    for name in LIBRARIES:
        (stub,) = [path for file, path in stubs.items() if file.split(".so")[0] == name]
        shutil.copy(stub, lib)
        if name != "libc":
            (lib / f"{name}.so").symlink_to(stub.name)
    loader = "ld-linux-x86-64.so.2" if machine == "x86_64" else "ld-linux-aarch64.so.1"
    (stub,) = [path for file, path in stubs.items() if file.startswith("libld.so")]
    shutil.copy(stub, lib / loader)
    (archive,) = set(re.findall(r"\S+/libc_nonshared\.a", said))
    repack(machine, work / archive, lib, work)
    for file in ("crt1.o", "Scrt1.o", "libc_nonshared.a"):
        forget_folders(machine, lib / file)
    (lib / "libc.so").write_text(f"GROUP(libc.so.6 libc_nonshared.a AS_NEEDED({loader}))\n")
    for file in ("crti.o", "crtn.o"):
        shutil.copy(run(compiler(machine), f"-print-file-name={file}").strip(), lib)


def repack(machine: str, archive: Path, folder: Path, work: Path) -> None:
    """Copies an archive whose members are named by paths, which binutils do not write."""
    parts = work / "members"
    parts.mkdir()
    run(tool(machine, "ar"), "x", archive, cwd=str(parts))
    run(tool(machine, "ar"), "rcsD", folder / archive.name, *sorted(parts.iterdir()))


def forget_folders(machine: str, file: Path) -> None:
    """Removes the debug sections, which name folders of this machine."""
    run(tool(machine, "strip"), "--strip-debug", "--enable-deterministic-archives", file)


def make_cpp_library(machine: str, root: Path, work: Path) -> None:
    """Copies the C++ headers, and makes a libstdc++.so that has only what GCC 8 had."""
    command = compiler(machine)
    said = run(command, "-E", "-v", "-x", "c++", "/dev/null", "-o", "/dev/null")
    search = said.split("search starts here:\n", 2)[2].split("End of search list")[0]
    cpp = root / "usr" / "include" / "c++"  # given to the compiler by -isystem
    for folder in reversed([word for word in search.split() if "c++" in Path(word).parts]):
        if Path(folder).name != "backward":
            shutil.copytree(folder, cpp, dirs_exist_ok=True)
    for config in cpp.rglob("c++config.h"):
        text = config.read_text()
        for name in TOO_NEW:
            text = re.sub(rf"^# *define {name} .*$", "", text, flags=re.MULTILINE)
        config.write_text(text)
    lib = root / "usr" / "lib"
    real = run(command, "-print-file-name=libstdc++.so.6").strip()
    (lib / "libstdc++.so.6").write_bytes(b"")
    symbols: dict[str, list[dict[str, str]]] = {}
    for line in run("readelf", "--dyn-syms", "-W", real).splitlines():
        found = re.match(
            r" *\d+: [0-9a-f]+ +(?P<size>\w+) (?P<type>\w+) +(?P<binding>\w+) +\w+ .*?"
            r"(?P<section>\w+) (?P<name>[^@ ]+)@@?(?P<version>\S+)$",
            line,
        )
        if not found or found["section"] in ("UND", "ABS") or not allowed(found["version"]):
            continue
        symbols.setdefault(found["name"], []).append(found.groupdict())
    assembly, versions = [".text"], {}
    for same_name in symbols.values():
        same_name.sort(key=lambda symbol: version_key(symbol["version"]))
        for symbol in same_name:  # the newest was GCC 8's default
            add_stub(assembly, versions, symbol, "@@" if symbol is same_name[-1] else "@")
    map_file, source = work / "stdc++.map", work / "stdc++.s"
    previous = ""
    text = ""
    for version in sorted(versions, key=version_key):
        text += f"{version} {{ }} {previous};\n" if previous else f"{version} {{ }};\n"
        previous = version
    map_file.write_text(text)
    source.write_text("\n".join(assembly) + "\n")
    run(
        command.replace("g++", "gcc"),
        "-shared",
        "-nostdlib",
        "-Wl,-soname,libstdc++.so.6",
        f"-Wl,--version-script={map_file}",
        source,
        "-o",
        lib / "libstdc++.so.6",
    )
    static = run(command, "-print-file-name=libstdc++.a").strip()
    shutil.copy(static, lib / "libstdc++_newer.a")
    # The static library asks glibc whether there is one thread alone. 0: there may be more.
    source = work / "threads.c"
    source.write_text('__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;\n')
    run(command.replace("g++", "gcc"), "-c", "-fPIC", source, "-o", lib / "single_threaded.o")
    files = ("libstdc++.so.6", "libstdc++_newer.a", "single_threaded.o")
    (lib / "libstdc++.so").write_text(f"INPUT({' '.join(f'/usr/lib/{file}' for file in files)})\n")


def version_key(version: str) -> tuple[str, tuple[int, ...]]:
    family, _, number = version.partition("_")
    return family, tuple(int(part) for part in re.findall(r"\d+", number))


def allowed(version: str) -> bool:
    family, number = version_key(version)
    return family in NEWEST and number <= NEWEST[family] and bool(number)


def add_stub(
    assembly: list[str], versions: dict[str, int], symbol: dict[str, str], at: str
) -> None:
    size, binding, name, version = (symbol[key] for key in ("size", "binding", "name", "version"))
    versions[version] = number = versions.get(version, 0) + 1
    label = f"{version.replace('.', '_')}_{number}"
    kinds = {"FUNC": "function", "OBJECT": "object", "TLS": "tls_object", "IFUNC": "function"}
    kind = kinds[symbol["type"]]
    sections = {"function": ".text", "object": ".data", "tls_object": '.tdata,"awT",%progbits'}
    assembly += [
        f".section {sections[kind]}",
        f".{'weak' if binding == 'WEAK' else 'globl'} {label}",
        f".type {label}, %{kind}",
        f".size {label}, {int(size, 0)}",
        f"{label}: .skip 16" if kind == "function" else f"{label}: .skip {max(int(size, 0), 1)}",
        f".symver {label}, {name}{at}{version}",
    ]


def main() -> None:
    machine, folder = sys.argv[1], Path(sys.argv[2]).resolve()
    if machine not in ("x86_64", "aarch64"):
        sys.exit(f"the machine is '{machine}'; accepted: x86_64, aarch64")
    shutil.rmtree(folder, ignore_errors=True)
    work = folder / "work"
    work.mkdir(parents=True)
    make_glibc(machine, folder, work)
    make_cpp_library(machine, folder, work)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
