"""export_here MODEL eager|planned|instance FOLDER: one program of the comparison, in this process.

Prints JSON: the most device memory that PyTorch's allocator held during a run with the largest
input, without the model's weights. "instance" writes the model's packing problem to FOLDER and
counts, of 50 inputs of random sizes, those with other result bits than the model itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from random import Random

import torch
import uvmalloc

from bench.pipelines.models import build, export, random_input

SHAPES = 50


def peak_bytes(run: object, inputs: torch.Tensor) -> dict[str, int]:
    """Returns the peak of three runs."""
    before = torch.cuda.memory_allocated()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    with torch.no_grad():
        for _ in range(3):
            run(inputs)  # type: ignore[operator]
    torch.cuda.synchronize()
    return {
        "reserved": torch.cuda.max_memory_reserved() - before,
        "allocated": torch.cuda.max_memory_allocated() - before,
    }


def main() -> None:
    name, way, folder = sys.argv[1:]
    if way == "instance":
        model, _, program = export(name, "cpu")
        planned = uvmalloc.plan_storage(program)
        (Path(folder) / f"{name}.csv").write_text(planned.to_csv())
        random = Random(1)
        inputs = [random_input(name, random) for _ in range(SHAPES)]
        with torch.no_grad():
            different = sum(not torch.equal(planned(each), model(each)) for each in inputs)
        sizes = {"arena": planned.arena_bytes, "bound": planned.lower_bound_bytes}
        print(json.dumps({**sizes, "shapes": SHAPES, "different": different}))
    elif way == "eager":
        model, inputs, _ = build(name, "cuda")
        print(json.dumps(peak_bytes(model, inputs)))
    else:
        _, inputs, program = export(name, "cuda")
        planned = uvmalloc.plan_storage(program)
        print(json.dumps({**peak_bytes(planned, inputs), "arena": planned.arena_bytes}))


if __name__ == "__main__":
    main()
