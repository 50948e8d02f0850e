"""Published figures of real machines, with their sources.

A figure is `fitted` if a number of the machine's profile was chosen to reproduce it. Such a figure
proves nothing and counts in no error. A figure with a reason under `unmodelled` is shown, but the
model cannot reproduce it. All other figures are predictions.
"""

from __future__ import annotations

from dataclasses import dataclass

DISCARD = "github.com/rice-systems/uvm-rmt-benchmarks, data-{}/fir, mean of three runs"
GPU_EXT = "github.com/eunomia-bpf/gpu_ext, microbench/memory/{}"
PASCAL = "pascal-um-benchmark: managed memory on a GTX 1080"

GIB = 1 << 30
# Chunks available to fir's managed memory: the 5,800 needed minus the evictions that the artifact
# counts at 200 %. At other levels the artifact's program allocate.x takes more memory, so fir has
# fewer chunks.
_AT_200 = 2843
_OCCUPIED_MB = {200: 5857, 300: 7840, 400: 8832}


@dataclass(frozen=True)
class Figure:
    name: str
    machine: str
    source: str
    measured: float
    key: str  # in the scenario's result
    scenario: str
    arguments: tuple[int, ...]
    fitted: bool = False
    scale: float = 1.0  # from the result's unit to the unit of `measured`
    group: str = "published"
    unmodelled: str = ""  # why the model cannot reproduce it


def fir_room(level: int) -> int:
    return _AT_200 - (_OCCUPIED_MB[level] - _OCCUPIED_MB[200]) // 2


def _fir(machine: str, data: str, times: dict[int, tuple[float, float]]) -> list[Figure]:
    figures = []
    for level, both in times.items():
        for discards, measured in enumerate(both):
            how = "with discard" if discards else "prefetch only"
            room = 6000 if level == 100 else fir_room(level)
            figures.append(
                Figure(
                    f"fir at {level} %, {how}, ms",
                    machine, DISCARD.format(data), measured, "ms", "fir", (room, discards),
                    fitted=level == 200 or (level == 100 and not discards),
                    group="fir_time" if level > 200 and machine.endswith("pcie3") else "published",
                )
            )  # fmt: skip
    return figures


def _fir_traffic() -> list[Figure]:
    """Returns figures of the evicted bytes, which are the same over both links."""
    evicted = {200: (5.78, 0.21), 300: (7.71, 2.15), 400: (8.68, 3.12)}
    chunks = {200: 2957, 300: 3948, 400: 4444}
    figures = []
    for level in evicted:
        for discards in (0, 1):
            how = "with discard" if discards else "prefetch only"
            arguments = (fir_room(level), discards)
            common = ("rtx3080ti-pcie3", DISCARD.format("pcie-3"))
            figures.append(
                Figure(
                    f"fir at {level} %, {how}, evicted GiB", *common, evicted[level][discards],
                    "evicted_bytes", "fir", arguments, level == 200, 1 / GIB, "fir_bytes",
                )
            )  # fmt: skip
            figures.append(
                Figure(
                    f"fir at {level} %, {how}, evictions", *common, chunks[level],
                    "evicted_chunks", "fir", arguments, level == 200, 1, "fir_bytes",
                )
            )  # fmt: skip
    return figures


def _streams() -> list[Figure]:
    """The bytes are the benchmark's: a part of the 32109 MiB that cudaMemGetInfo reports."""
    machine, whole = "rtx5090-pcie5", 32109 << 20
    resident = GPU_EXT.format("rq1_results.csv")
    half = GPU_EXT.format("rq2_results.csv")
    beyond = GPU_EXT.format("t0rq3_results.csv")
    window = "all threads of the kernel run at once; the model walks through the memory"

    def figure(factor: float, source: str, measured: float, **more: object) -> Figure:
        return Figure(
            f"seq_stream at {factor:g} x, managed, ms", machine, source, measured, "ms", "stream",
            (int(whole * factor), 0), **more,  # type: ignore[arg-type]
        )  # fmt: skip

    return [
        figure(0.25, resident, 7.208),
        figure(0.5, half, 14.668),
        figure(1.0, beyond, 137.0, unmodelled=window),
        figure(1.25, beyond, 1931.0, fitted=True),
        figure(1.5, beyond, 1973.0),
    ]


def _bandwidths() -> list[Figure]:
    """Returns figures of streaming kernels. The profiles assume 90 % of the data sheet."""
    hopper = "Schieffer et al., ICPP 2024: STREAM on the GPU of a GH200, 3.4 TB/s"
    spark = "github.com/antirez/ds4/issues/773: a kernel that reads saturates at 231 to 234 GB/s"
    common = {"key": "gb_per_s", "scenario": "bandwidth", "arguments": (8 * GIB,)}
    return [
        Figure("streaming kernel, GB/s", "gh200", hopper, 3400.0, **common),
        Figure("streaming kernel, GB/s", "gb10", spark, 232.5, **common),
    ]


def figures() -> list[Figure]:
    three = {
        100: (551.8, 554.0), 200: (1300.7, 663.9), 300: (1604.9, 1001.3), 400: (1683.8, 1196.3),
    }  # fmt: skip
    four = {
        100: (518.2, 521.2), 200: (1253.3, 623.7), 300: (1428.7, 1003.9), 400: (1503.2, 1200.6),
    }  # fmt: skip
    return [
        *_fir("rtx3080ti-pcie3", "pcie-3", three),
        *_fir("rtx3080ti-pcie4", "pcie-4", four),
        *_fir_traffic(),
        *_streams(),
        *_bandwidths(),
        Figure("first touch of 3 GiB by a kernel, ms", "gtx1080-pcie3", PASCAL, 386.6, "ms",
               "first_touch", (3 * GIB, 0)),
    ]  # fmt: skip
