"""Programs that need code of a GPU fail on the simulated device. The error says what works.

Runs inside a process that is on the simulated device already:

    uvmalloc sim -- python -m pytest tests/sim/torch_operators
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
import torch.distributed as dist
from torch import Tensor

NO_GPU_CODE = (
    r"the simulated device runs no GPU code, only PyTorch's own operators and the kernels of a "
    r"plug-in \(UVMSIM_KERNELS\); torch.compile works with the backend aot_eager"
)


def compiled(backend: str, x: Tensor) -> Tensor:
    torch._dynamo.reset()
    with torch._inductor.config.patch(compile_threads=1):  # quicker than a pool of processes
        result: Tensor = torch.compile(lambda x: x * 2 + 1, backend=backend)(x)
    return result


def triton_kernel(x: Tensor) -> None:
    from triton_program import fill

    fill[(1,)](x, 4)


def kernel_of_text(x: Tensor) -> None:
    kernel = torch.cuda._compile_kernel('extern "C" __global__ void f(float* x) { *x = 1; }', "f")
    kernel((1, 1, 1), (1, 1, 1), (x,))


def jiterator(x: Tensor) -> Tensor:
    kernel = torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }")
    result: Tensor = kernel(x)
    return result


GPU_CODE: dict[str, Callable[[Tensor], Any]] = {
    "inductor": lambda x: compiled("inductor", x),
    "triton": triton_kernel,
    "nvrtc": kernel_of_text,
    "jiterator": jiterator,
    "compiled operator": lambda x: torch.ldexp(x, x.int()),
}


@pytest.mark.parametrize("run", GPU_CODE.values(), ids=GPU_CODE.keys())
def test_a_launch_of_gpu_code_says_what_the_simulated_device_runs(
    run: Callable[[Tensor], Any],
) -> None:
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError, match=NO_GPU_CODE):
        run(x)
    assert x.tolist() == [1, 1, 1, 1]


def test_the_backend_that_the_error_names_works() -> None:
    assert compiled("aot_eager", torch.ones(4, device="cuda")).tolist() == [3, 3, 3, 3]


def reduced(backend: str, folder: Path) -> Tensor:
    dist.init_process_group(backend, init_method=f"file://{folder}/{backend}", rank=0, world_size=1)
    try:
        x = torch.ones(4, device="cuda")
        dist.all_reduce(x)
        return x
    finally:
        dist.destroy_process_group()


def test_nccl_says_which_backend_works(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    says = "NCCL cannot run on the simulated device; use torch.distributed's backend gloo"
    with pytest.raises(RuntimeError, match=says):
        reduced("nccl", tmp_path)
    # As in nn.DataParallel, whose exception does not quote the text.
    with pytest.raises(RuntimeError, match="NCCL Error"):
        torch.cuda.nccl.all_reduce([torch.ones(4, device="cuda")])
    assert capfd.readouterr().err.count(f"uvmsim: {says}") == 1
    assert reduced("gloo", tmp_path).tolist() == [1, 1, 1, 1]


def test_an_operator_without_a_cpu_kernel_says_what_runs() -> None:
    x = torch.randn(1, 1, 8, 8, device="cuda")
    with pytest.raises(
        NotImplementedError,
        match="_scaled_dot_product_efficient_attention has no CPU kernel and is not available on "
        "the simulated device, which runs PyTorch's CPU kernels; use operators that have one",
    ):
        torch.ops.aten._scaled_dot_product_efficient_attention(x, x, x, None, False)
