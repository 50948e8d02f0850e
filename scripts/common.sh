# shellcheck shell=bash disable=SC2034
# Sourced by the scripts of this folder: where things lie, and how they speak.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$root/build/venv"
cache="${UVMALLOC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/uvmalloc}"

say() { printf '%s\n' "uvmalloc: $*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# Python keeps what it compiles. Tests import torch hundreds of times, and each time would take seconds more.
unset PYTHONDONTWRITEBYTECODE

# install_debian_packages NAME...: those that are missing.
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

requirements="$root/scripts/requirements.txt"

# pip_setting PYTHON NAME: what pip is configured with, or nothing.
pip_setting() { "$1" -m pip config list | sed -n "s/^[^=]*\.$2='\(.*\)'\$/\1/p" | tail -n 1; }

# install_from_pypi PYTHON ARGUMENT...: what `pip install` with these arguments does, done by uv, which takes a seventh of the
# time. It asks the index that pip is configured with. PYTHON is that of a virtual environment. Where uv fails, pip tries.
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

# Without it ccache keeps nothing that includes precompiled headers.
export CCACHE_SLOPPINESS=pch_defines,time_macros

# The minor version of torch that is built against and tested when nobody says otherwise.
default_minor="$(sed -n 's/^torch==\([0-9]*\.[0-9]*\)\..*/\1/p' "$requirements")"

# release_of 2.15: the release of that minor version that we build against.
release_of() {
  local known
  known="$(sed -n "s/^\(${1//./\\.}\.[0-9]*\)$/\1/p" "$root/scripts/torch_versions.txt")"
  [[ -n "$known" ]] || die "the version of torch is '$1'; accepted: $(sed -n 's/^\([0-9]*\.[0-9]*\)\..*/\1/p' \
    "$root/scripts/torch_versions.txt" | paste -sd' ')"
  printf '%s\n' "$known"
}

# This checkout's environment with that minor version of torch.
venv_of() { if [[ "$1" == "$default_minor" ]]; then echo "$venv"; else echo "$venv-$1"; fi; }

# The site-packages folder of this checkout's environment that holds torch; scripts/setup wrote it down.
torch_site_packages() { cat "$venv/site-packages"; }

# The torch packages of all environments that are set up, the default one first, as CMake has lists.
torch_folders() {
  local noted notes=("$venv/site-packages")
  for noted in "$venv"-*/site-packages; do [[ ! -f "$noted" ]] || notes+=("$noted"); done
  cat "${notes[@]}" | sed 's|$|/torch|' | paste -sd';'
}

# Where the jemalloc of this checkout lies; scripts/setup wrote it down.
jemalloc_folder() { cat "$root/build/jemalloc"; }

# configure PRESET [CMAKE_ARGUMENT...]. Only release holds the PyTorch plugins, one for each torch that is set up: torch is
# not built with sanitizers.
configure() {
  local preset="$1" site torch=""
  shift
  site="$(torch_site_packages)"
  [[ "$preset" == release ]] && torch="$(torch_folders)"
  local log="$root/build/$preset.configure.log"
  if ! (cd "$root" && cmake --preset "$preset" -DUVMALLOC_TORCH_DIRS="$torch" \
          -DUVMALLOC_CUDA_INCLUDE_DIR="$site/nvidia/cu13/include" \
          -DUVMALLOC_HIP_INCLUDE_DIR="$site/triton/backends/amd/include" \
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

# Counts of lines from runs before this one, and of sources that are gone.
forget_counts() { find "$root/build/asan" -name '*.gcda' -delete; }

# build_programs MINOR [TARGET...]: what a program with that version of torch runs with, on a simulated device too; and
# these targets.
build_programs() {
  local minor="$1" suffix="${1/./_}"
  shift
  configure release
  cmake --build "$root/build/release" --target uvmalloc_shared uvmsim_audit uvmsim_cuda uvmsim_cudart uvmsim_torch \
    "uvmsim_torch_$suffix" "uvmalloc_torch_$suffix" "$@" || die "building the plugin for torch $minor failed"
}

# Options with which pytest runs tests side by side. One more than cores, because a test also waits for its programs; few,
# because each of these has torch.
side_by_side=(-n "$(($(nproc) < 4 ? $(nproc) + 1 : 4))" --dist worksteal)

# Tests in tests/pytorch of what depends on torch's version: those that each run has, and all.
version_tests=(allocator_calls differential every_move memory_tools moves plan_fuzz ways_in)
all_version_tests=("${version_tests[@]}" fork memory switch)

# test_torch_version MINOR FOLDER MARKS NAME...: those of these tests that MARKS selects (empty: all), with that torch; their
# results go to FOLDER/pytest-torch-MINOR.xml. Its environment is set up and its plugin is built.
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
