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

# The site-packages folder of this checkout's environment that holds torch; scripts/setup wrote it down.
torch_site_packages() { cat "$venv/site-packages"; }

# Where the jemalloc of this checkout lies; scripts/setup wrote it down.
jemalloc_folder() { cat "$root/build/jemalloc"; }

# configure PRESET [CMAKE_ARGUMENT...]. Only release holds the PyTorch plugin: torch is not built with sanitizers.
configure() {
  local preset="$1" site torch=""
  shift
  site="$(torch_site_packages)"
  [[ "$preset" == release ]] && torch="$site/torch"
  local log="$root/build/$preset.configure.log"
  if ! (cd "$root" && cmake --preset "$preset" -DUVMALLOC_TORCH_DIR="$torch" \
          -DUVMALLOC_CUDA_INCLUDE_DIR="$site/nvidia/cu13/include" \
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
