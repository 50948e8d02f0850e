#!/usr/bin/env bash
# CUDA 13.5: the runtime cannot name three errors that the driver's header declares.
#
# Since CUDA 10.1 the runtime and the driver share the numbers of errors, and many libraries pass a CUresult to
# cudaGetErrorName(). Of the errors in cuda.h of 13.5, three have no name in libcudart 13.5.37, which returns "unrecognized
# error code": CUDA_ERROR_CONTEXT_ALREADY_CURRENT (202, deprecated), CUDA_ERROR_KEY_ROTATION (916), and
# CUDA_ERROR_MULTICAST_RESOURCE_FULL (47), which cuMulticastBindMem returns today. So a message about them needs
# cuGetErrorName().
#
# Seen with nvidia-cuda-runtime 13.5.37 on Linux x86-64. No GPU is needed: these functions call no driver.
set -euo pipefail
folder="$(mktemp -d)"
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q nvidia-cuda-runtime==13.5.37
"$folder/venv/bin/python" - <<'PY'
import ctypes
import re
import sysconfig
from pathlib import Path

cuda = Path(sysconfig.get_path("purelib")) / "nvidia" / "cu13"
declared = {
    int(number): name
    for name, number in re.findall(
        r"^\s+(CUDA_ERROR_\w+)\s*=\s*(\d+)", (cuda / "include" / "cuda.h").read_text(), re.MULTILINE
    )
}
runtime = ctypes.CDLL(str(cuda / "lib" / "libcudart.so.13"))
runtime.cudaGetErrorName.restype = ctypes.c_char_p
nameless = {
    number: name
    for number, name in declared.items()
    if runtime.cudaGetErrorName(number) == b"unrecognized error code"
}
print(f"{len(declared)} errors in cuda.h; without a name in the runtime: {nameless}")
assert nameless == {
    47: "CUDA_ERROR_MULTICAST_RESOURCE_FULL",
    202: "CUDA_ERROR_CONTEXT_ALREADY_CURRENT",
    916: "CUDA_ERROR_KEY_ROTATION",
}, nameless
assert runtime.cudaGetErrorName(34) == b"cudaErrorStubLibrary"
assert runtime.cudaGetErrorName(36) == b"cudaErrorCallRequiresNewerDriver"
PY
