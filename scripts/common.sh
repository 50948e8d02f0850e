# shellcheck shell=bash disable=SC2034
# Sourced by the scripts in this folder: paths, and functions for messages, packages and builds.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/build/venv"
cache="${UVMALLOC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/uvmalloc}"

say() { printf '%s\n' "uvmalloc: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# --help prints the comment at the head of a script. A script with its own --help sets own_help.
if [[ -z "${own_help:-}" && ("${1:-}" == --help || "${1:-}" == -h) ]]; then
  sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
  exit
fi

# Allow Python to cache bytecode. Tests import torch hundreds of times, and without the cache each import takes seconds
# longer.
unset PYTHONDONTWRITEBYTECODE

# install_debian_packages NAME...: installs missing packages.
install_debian_packages() {
  local name installed missing=()
  installed=" $(dpkg-query -W -f='${db:Status-Status}:${Package} ' "$@" 2>/dev/null || true)"
  for name in "$@"; do
    [[ "$installed" == *" installed:$name "* ]] || missing+=("$name")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ "$(id -u)" -ne 0 ]] || ! command -v apt-get >/dev/null; then
    die "missing Debian packages: ${missing[*]}. Run: sudo apt-get install ${missing[*]}"
  fi
  say "installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  { apt-get update -q && apt-get install -q -y --no-install-recommends "${missing[@]}"; } >&2 ||
    die "apt-get could not install ${missing[*]}"
}

# empty_debian RELEASE FOLDER: installs an empty Debian in a folder, for chroot. Its packages come from where those of this
# system come from. Only root can do that.
empty_debian() {
  local release="$1" folder="$2" address
  install_debian_packages debootstrap
  address="$(apt-get indextargets --format '$(REPO_URI) $(COMPONENT) $(ORIGIN)' 'Created-By: Packages' |
    awk '$2 == "main" && $3 == "Debian" {print $1; exit}')"
  debootstrap --variant=minbase "$release" "$folder" "$address" >"$folder.log" 2>&1 ||
    { tail "$folder.log" >&2; die "debootstrap could not install $release"; }
  rm -f "$folder.log"
  cp /etc/resolv.conf /etc/hosts "$folder/etc/"
}

# in_debian FOLDER COMMAND...: runs a command there, with /proc, and without the variables of this system. Without /proc
# a program does not find libraries beside itself.
in_debian() {
  # shellcheck disable=SC2016
  unshare --mount sh -c 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"' "$1" \
    env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root DEBIAN_FRONTEND=noninteractive "${@:2}"
}

requirements="$root/scripts/requirements.txt"

# pip_setting PYTHON NAME: prints a setting of pip, or nothing.
pip_setting() { "$1" -m pip config list | sed -n "s/^[^=]*\.$2='\(.*\)'\$/\1/p" | tail -n 1; }

# install_from_pypi PYTHON ARGUMENT...: like `pip install` with these arguments, but with uv, which takes a seventh of
# the time. Uses pip's configured index. PYTHON belongs to a virtual environment. If uv fails, pip installs.
install_from_pypi() {
  local python="$1" index certificates uv_cache uv_version done=""
  shift
  uv_version="$(sed -n 's/^uv==//p' "$requirements")"
  index="$(pip_setting "$python" index-url)"
  certificates="$(pip_setting "$python" cert)"
  mkdir -p "$cache"
  uv_cache="$(mktemp -d "$cache/uv.XXXXXX")" # on the file system of the environments: files are linked, not copied
  if "$python" -m pip install --quiet --disable-pip-version-check "uv==$uv_version" &&
    env UV_CACHE_DIR="$uv_cache" UV_HTTP_TIMEOUT=180 ${index:+UV_DEFAULT_INDEX="$index"} \
      ${certificates:+SSL_CERT_FILE="$certificates"} "$python" -m uv pip install --quiet --python "$python" "$@"; then
    done=1
  fi
  rm -rf "$uv_cache"
  if [[ -z "$done" ]]; then
    say "uv failed: pip installs instead"
    "$python" -m pip install --quiet --disable-pip-version-check "$@"
  fi
}

# programs_environment LIST [ARGUMENT...]: prints the folder of an environment with the packages of the list, and makes
# it if it is missing. The arguments go to the installer. The environment is in the cache that checkouts share.
programs_environment() {
  local list="$1" key programs
  shift
  key="$(cat "$list" <("$venv/bin/python" --version) | sha256sum | cut -c1-12)"
  programs="$cache/venv-$key"
  (
    flock 9
    if [[ ! -e "$programs/complete" ]]; then
      say "building an environment for programs in $programs (once per version of its requirements)"
      rm -rf "$programs"
      "$venv/bin/python" -m venv "$programs"
      install_from_pypi "$programs/bin/python" "$@" -r "$list" >&2 ||
        die "neither uv nor pip could install what $list asks for"
      touch "$programs/complete"
    fi
    touch "$programs/last-used"
  ) 9>"$cache/lock"
  printf '%s\n' "$programs"
}

# Without this setting, ccache does not cache files with precompiled headers.
export CCACHE_SLOPPINESS=pch_defines,time_macros

# The default minor version of torch, for builds and tests.
default_minor="$(sed -n 's/^torch==\([0-9]*\.[0-9]*\)\..*/\1/p' "$requirements")"

# release_of 2.15: prints the release of that minor version to build against.
release_of() {
  local known
  known="$(sed -n "s/^\(${1//./\\.}\.[0-9]*\)$/\1/p" "$root/scripts/torch_versions.txt")"
  [[ -n "$known" ]] || die "the version of torch is '$1'; accepted: $(torch_minors | paste -sd' ')"
  printf '%s\n' "$known"
}

# Prints all supported minor versions.
torch_minors() { sed -n 's/^\([0-9]*\.[0-9]*\)\..*/\1/p' "$root/scripts/torch_versions.txt"; }

# venv_of MINOR: prints this checkout's environment with that minor version of torch.
venv_of() { if [[ "$1" == "$default_minor" ]]; then echo "$venv"; else echo "$venv-$1"; fi; }

# Prints the site-packages folder with this checkout's torch, as recorded by scripts/setup.
torch_site_packages() { cat "$venv/site-packages"; }

# Prints the minor version, a tab and the folder of each torch package to build a plugin for. These are the packages of
# all existing environments, the default first, and then those in build/torch-MINOR.
torch_packages() {
  local noted minor folder
  printf '%s\t%s\n' "$default_minor" "$(torch_site_packages)"
  for noted in "$venv"-*/site-packages; do
    minor="${noted%/site-packages}"
    [[ ! -f "$noted" ]] || printf '%s\t%s\n' "${minor##*/venv-}" "$(cat "$noted")"
  done
  for noted in "$root"/build/torch-*; do
    minor="${noted##*/torch-}"
    [[ -f "$noted" && ! -f "$(venv_of "$minor")/site-packages" ]] || continue
    folder="$(cat "$noted")"
    [[ ! -f "$folder/torch/include/ATen/ATen.h" ]] || printf '%s\t%s\n' "$minor" "$folder"
  done
}

# Prints the folders as a CMake list.
torch_folders() { torch_packages | sed 's|^[^\t]*\t\(.*\)|\1/torch|' | paste -sd';'; }

# describe_torch PYTHON: prints the folder, the minor version and the CUDA version ("none") of the torch that this
# Python imports. Prints nothing if PYTHON has no torch.
describe_torch() {
  "$1" - 2>/dev/null <<'PY' || true
import importlib.util, pathlib, re
folder = pathlib.Path(importlib.util.find_spec("torch").origin).parent
text = (folder / "version.py").read_text()
found = [re.search(rf"^{name}\b[^=\n]*= *['\"]([^'\"]+)", text, re.M) for name in ("__version__", "cuda")]
print(folder.parent, ".".join(found[0][1].split(".")[:2]), found[1][1] if found[1] else "none", sep="\t")
PY
}

# note_torch PYTHON: makes later builds include a plugin for that environment's torch. Prints the reason on failure.
# Does nothing if this checkout has its own environment with the same minor version.
note_torch() {
  local described folder minor cuda
  described="$(describe_torch "$1")"
  [[ -n "$described" ]] || { say "$1 has no torch" && return 1; }
  IFS=$'\t' read -r folder minor cuda <<<"$described"
  if ! torch_minors | grep -qxF "$minor"; then
    say "no plugin for torch $minor in $folder: uvmalloc serves torch $(torch_minors | paste -sd' ')"
    return 1
  fi
  if [[ "$cuda" != 13.* ]]; then
    say "no plugin for torch $minor in $folder: it is built for CUDA $cuda, and uvmalloc needs a torch for CUDA 13"
    return 1
  fi
  if [[ -f "$(venv_of "$minor")/site-packages" ]]; then return; fi
  say "the plugin for torch $minor is built for the one in $folder"
  printf '%s\n' "$folder" >"$root/build/torch-$minor"
}

# Prints the folder of this checkout's jemalloc, as recorded by scripts/setup.
jemalloc_folder() { cat "$root/build/jemalloc"; }

# Removes plugins that are no longer built, so that a later libuvmalloc_preload.so cannot load them.
remove_other_plugins() {
  local plugin minor kept
  kept="$(torch_packages | cut -f1)"
  for plugin in "$root"/build/release/lib/lib{uvmalloc,uvmsim}_torch_[0-9]*.so; do
    [[ "$plugin" =~ _torch_([0-9]+)_([0-9]+)\.so$ ]] || continue
    minor="${BASH_REMATCH[1]}.${BASH_REMATCH[2]}"
    grep -qxF "$minor" <<<"$kept" || rm -f "$plugin"
  done
}

# configure PRESET [CMAKE_ARGUMENT...]: only release has PyTorch plugins, one for each torch, because torch is not built
# with sanitizers.
configure() {
  local preset="$1" site torch=""
  shift
  site="$(torch_site_packages)"
  if [[ "$preset" == release ]]; then
    torch="$(torch_folders)"
    remove_other_plugins
  fi
  local log="$root/build/$preset.configure.log"
  if ! (cd "$root" && cmake --preset "$preset" -DUVMALLOC_TORCH_DIRS="$torch" \
          -DUVMALLOC_CUDA_INCLUDE_DIR="$site/nvidia/cu13/include" \
          -DUVMALLOC_HIP_INCLUDE_DIR="$site/triton/backends/amd/include" \
          -DUVMALLOC_CCCL_INCLUDE_DIR="$(cat "$root/build/newest-cuda")/nvidia/cu13/include/cccl" \
          -DUVMALLOC_BENCH_RMM_DIR="$(cat "$root/build/newest-cuda")" \
          -DUVMALLOC_JEMALLOC_DIR="$(jemalloc_folder)" "$@" >"$log" 2>&1); then
    cat "$log" >&2
    die "configuring the preset '$preset' failed"
  fi
}

# configure_and_build PRESET [CMAKE_ARGUMENT...]
configure_and_build() {
  local preset="$1"
  configure "$@"
  cmake --build "$root/build/$preset" || die "building the preset '$preset' failed"
}

# Removes the line counts of earlier runs and of deleted sources.
forget_counts() { find "$root/build/asan" -name '*.gcda' -delete; }

# build_programs MINOR [TARGET...]: builds all libraries that programs need with that version of torch, including the
# simulated device, and these targets.
build_programs() {
  local minor="$1" suffix="${1/./_}"
  shift
  configure release
  cmake --build "$root/build/release" --target uvmalloc_preload uvmsim_audit uvmsim_host uvmsim_cuda uvmsim_cudart uvmsim_torch \
    "uvmsim_torch_$suffix" "uvmalloc_torch_$suffix" "$@" || die "building the plugin for torch $minor failed"
}

# Options for parallel pytest. One worker more than there are cores, because a test also waits for its programs. At most
# 4 workers, because each one loads torch.
side_by_side=(-n "$(($(nproc) < 4 ? $(nproc) + 1 : 4))" --dist worksteal)

# Tests in tests/pytorch that depend on torch's version: those in every run, and all of them.
version_tests=(allocator_calls differential doors memory_tools moves newest_calls ways_in)
all_version_tests=("${version_tests[@]}" every_move fork matrix memory plan_fuzz switch wheel without_plugin)

# test_torch_version MINOR FOLDER MARKS NAME...: runs the tests selected by MARKS (empty: all) with that torch. Writes
# results to FOLDER/pytest-torch-MINOR.xml. The environment and the plugin must exist.
test_torch_version() {
  local minor="$1" folder="$2" marks="$3" python
  shift 3
  python="$(venv_of "$minor")/bin/python"
  (cd "$root" && "$(venv_of "$minor")/bin/uvmalloc" sim --no-report -- "$python" -m pytest --rootdir "$root" \
    -o cache_dir=build/.pytest_cache -q -rs tests/sim/torch_operators) || return 1
  (cd "$root" && "$python" -m pytest --rootdir "$root" -o cache_dir=build/.pytest_cache -o junit_family=xunit1 \
    --junitxml "$folder/pytest-torch-$minor.xml" -q -rs "${side_by_side[@]}" -m "$marks" \
    $(printf 'tests/pytorch/test_%s.py ' "$@"))
}
