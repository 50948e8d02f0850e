#!/usr/bin/env bash
# RMM 26.10's wheel: a tool that intercepts the calls of libcudart.so sees none of its allocations.
#
# librmm.so of the wheel librmm-cu13 does not need libcudart.so.13, has no undefined symbol of CUDA's runtime, and contains
# the runtime itself, which opens libcuda.so.1 when it is first used. So LD_PRELOAD of a library with cudaMalloc changes
# nothing for rmm.DeviceBuffer, although RMM's documentation describes its default resource as a wrapper of cudaMalloc. The
# wheel of PyTorch for the same CUDA does the opposite: libc10_cuda.so needs libcudart.so.13 and imports cudaMalloc from it.
# In a process with both, one allocator can be intercepted and the other one cannot.
#
# Seen with librmm-cu13 26.10.0 and torch 2.11.0 (CUDA 13) on Linux x86-64. Nothing is run on a GPU.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" download -q --no-deps --only-binary=:all: --python-version 3.11 -d "$folder" \
  librmm-cu13==26.10.0 torch==2.11.0
for wheel in "$folder"/*.whl; do
  "$folder/venv/bin/python" -m zipfile -e "$wheel" "$folder/$(basename "$wheel" | cut -d- -f1)"
done
rmm="$folder/librmm_cu13/librmm/lib64/librmm.so"
torch="$folder/torch/torch/lib/libc10_cuda.so"
needs_runtime() { readelf -d "$1" | grep NEEDED | grep -c libcudart || true; }
imports() { nm --dynamic --undefined-only "$1" | awk '{print $2}' | grep -cE '^cuda[A-Z]' || true; }
opens_driver() { grep -c 'libcuda.so.1' "$1" || true; }
echo "librmm.so:      needs libcudart: $(needs_runtime "$rmm"), imports of CUDA's runtime: $(imports "$rmm")," \
  "names libcuda.so.1: $(opens_driver "$rmm")"
echo "libc10_cuda.so: needs libcudart: $(needs_runtime "$torch"), imports of CUDA's runtime: $(imports "$torch")"
[[ "$(needs_runtime "$rmm")" == 0 && "$(imports "$rmm")" == 0 && "$(opens_driver "$rmm")" -gt 0 ]]
[[ "$(needs_runtime "$torch")" == 1 && "$(imports "$torch")" -gt 10 ]]
nm --dynamic --undefined-only "$torch" | grep -q 'cudaMalloc@'
