"""Random exported programs: compares uvmalloc.plan_storage with program.module().

    python -m tests.pytorch.plan_fuzz [--programs N] [--seconds S] [--seed K] [--device cuda]

Each program runs several times from one plan: with other sizes, strides, types, aliases and
modes, and with arguments that the program does not accept. Errors, results, their memory layout,
shared memory and all writes must be the same. Prints the programs that differ; the exit code is
1 if one differs. `--faults` breaks plan_storage in several ways, and then the exit code is 1 if
one fault is not found.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import copy
import itertools
import logging
import math
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from random import Random
from typing import Any
from unittest import mock

import torch
import uvmalloc
from torch.utils import _pytree as pytree
from uvmalloc.pipelines import exported_graphs, plan_arena, storage_plans

from tests.pytorch.plan_programs import (
    EXPORTED,
    LARGEST,
    Program,
    Tensor,
    mapped,
    random_program,
)

RUNS = 8
THREAD_RUNS = 20
MODES = ("no_grad", "no_grad", "inference", "autocast", "double", "inference autocast")
counts: collections.Counter[str] = collections.Counter()


class Difference(Exception):
    """A difference between a plan and the module."""


# ---- the arguments of a run


def values(leaf: Tensor, sizes: dict[str, int], random: Random) -> torch.Tensor:
    """Returns random elements in one of a few layouts."""
    size = leaf.size(sizes)
    layout = random.choices(("dense", "reversed", "strided"), (6, 1, 1))[0]
    dtype = leaf.dtype
    if dtype.is_floating_point and random.random() < 0.05:
        dtype = random.choice((torch.float64, torch.bfloat16))
    if random.random() < 0.03:
        size = size[:-1] + [each + 1 for each in size[-1:]]
    elif random.random() < 0.02:
        size = [*size, 2]
    given = size[::-1] if layout == "reversed" else size
    if layout == "strided" and size:
        given = [*size[:-1], 2 * size[-1]]
    made = (torch.randn(given) * 2).to(dtype)
    if layout == "reversed" and size:
        return made.permute(*reversed(range(len(size))))
    return made[..., ::2] if layout == "strided" and size else made


def call_of(program: Program, seed: int, sizes: dict[str, int], is_odd: bool = False) -> Any:
    """Returns new arguments for one run; with `is_odd`, perhaps of another kind."""
    random = Random(seed)
    torch.manual_seed(seed)
    made: list[torch.Tensor] = []

    def of(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            if is_odd and random.random() < 0.2:
                return random.choice((None, 3, 1.5, False, "other"))
            return leaf
        if not is_odd:
            tensor = (torch.randn(leaf.size(sizes)) * 2).to(leaf.dtype)
        elif random.random() < 0.03:
            return random.choice((None, 2))
        else:
            tensor = values(leaf, sizes, random)
            same = [each for each in made if each.shape == tensor.shape]
            if same and random.random() < 0.2:
                tensor = random.choice((same[0], same[0].view_as(same[0])))
        made.append(tensor)
        return tensor

    arguments = mapped(of, program.arguments)
    options = mapped(of, program.options)
    if is_odd and random.random() < 0.1:
        action = random.choice(("more", "fewer", "name", "order"))
        if action == "more":
            arguments = (*arguments, torch.ones(2))
        elif action == "fewer" and arguments:
            arguments = arguments[:-1]
        elif action == "name" and arguments:
            options = {**options, program.names()[len(arguments) - 1]: arguments[-1]}
            arguments = arguments[:-1]
        else:
            options = dict(reversed(options.items()))
    return arguments, options


@contextlib.contextmanager
def mode(name: str, device: str) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        # A planned run computes no gradients.
        stack.enter_context(torch.no_grad())
        if "inference" in name:
            stack.enter_context(torch.inference_mode())
        if "autocast" in name:
            stack.enter_context(torch.autocast(device, torch.bfloat16))
        before = torch.get_default_dtype()
        if name == "double":
            torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


# ---- one run, described


def bits(tensor: torch.Tensor) -> bytes:
    dense = tensor.detach().cpu().contiguous()
    # Even a dense tensor of one element may have another stride.
    flat = dense.as_strided((dense.numel(),), (1,))
    return flat.view(torch.uint8).numpy().tobytes() if dense.numel() else b""


def described(leaves: list[Any]) -> list[Any]:
    """Returns values, layouts, and which leaves are the same or share memory."""
    objects: dict[int, int] = {}
    storages: dict[int, int] = {}
    found = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            found.append((type(leaf), leaf))
            continue
        same = objects.setdefault(id(leaf), len(objects))
        memory = storages.setdefault(leaf.untyped_storage()._cdata, len(storages))
        looks = (leaf.dtype, leaf.shape, leaf.stride(), leaf.is_inference(), leaf.requires_grad)
        found.append((same, memory, looks, bits(leaf)))
    return found


class Subject:
    """The module or the plan, with the buffers that it writes to."""

    def __init__(self, call: Callable[..., Any], module: torch.nn.Module) -> None:
        self.call = call
        self.state = [value for _, value in sorted(module.named_buffers())]
        self.state += [value for _, value in sorted(module.named_parameters())]
        self.kept: list[tuple[torch.Tensor, bytes]] = []

    def run(self, call: Any, where: str, seed: int | None, device: str) -> tuple[Any, Any]:
        """Returns an error or the results, and everything that can be seen after the run."""
        arguments, options = call
        if seed is not None:
            torch.manual_seed(seed)
        error = result = None
        with mode(where, device):
            try:
                result = self.call(*arguments, **options)
            except Exception as raised:
                error = raised
        leaves, structure = pytree.tree_flatten(result)
        given = pytree.tree_leaves((arguments, options))
        written = {each.untyped_storage()._cdata for each in [*given, *self.state]
                   if isinstance(each, torch.Tensor)}  # fmt: skip
        for leaf in leaves:
            if isinstance(leaf, torch.Tensor) and leaf.untyped_storage()._cdata not in written:
                self.kept.append((leaf, bits(leaf)))
        return error, (str(structure), described([*leaves, *given, *self.state]))


def check_same(found: Any, wanted: Any, what: str) -> None:
    (error, seen), (wanted_error, wanted_seen) = found, wanted
    if type(error) is not type(wanted_error):
        raise Difference(f"{what}: the plan: {error!r}; the module: {wanted_error!r}") from error
    counts["errors" if error is not None else "results"] += 1
    if seen != wanted_seen:
        pairs = zip(seen[1], wanted_seen[1], strict=False)
        first = next((pair for pair in pairs if pair[0] != pair[1]), (seen[0], wanted_seen[0]))
        raise Difference(f"{what}: the plan: {first[0]}; the module: {first[1]}")


# ---- one program


def compare(program: Program, seed: int, device: str) -> None:
    """Raises Difference. Counts the reasons why a program cannot be compared."""
    random = Random(seed)
    model = program.model().to(device)
    arguments, options = call_of(program, seed, EXPORTED)
    try:
        exported = torch.export.export(
            model, arguments, options, dynamic_shapes=program.dynamic_shapes()
        )
        if random.random() < 0.5:
            exported = exported.run_decompositions({} if random.random() < 0.5 else None)
        module = copy.deepcopy(exported).module()
    except Exception as error:
        counts[f"not exported: {type(error).__name__}"] += 1
        return
    names = [str(each) for each in exported.range_constraints if str(each).startswith("s")]
    bounds = dict.fromkeys(names, LARGEST) if program.shapes == "auto" else {}
    try:
        planned = uvmalloc.plan_storage(
            exported, upper_bounds=bounds, beyond_bound=program.beyond_bound
        )
    except ValueError as error:
        if "has a part that is a" not in str(error) and "has no symbolic size" not in str(error):
            raise Difference(f"plan_storage: {error}") from error
        counts["not planned"] += 1
        return
    counts["programs"] += 1
    counts["with an arena"] += planned.arena_bytes > 0
    if any(spec.kind.name.endswith("MUTATION") for spec in exported.graph_signature.output_specs):
        counts["with mutations"] += 1
    subjects = Subject(planned, planned._module), Subject(module, module)
    modes = random.choices(MODES, k=2)
    for number in range(RUNS):
        run_both(
            program,
            subjects,
            seed * RUNS + number,
            random,
            random.choice(modes),
            device,
            f"run {number}",
        )
    for subject in subjects:
        if any(bits(tensor) != before for tensor, before in subject.kept):
            raise Difference("an earlier result was written again")
    run_in_threads(program, subjects, seed, device)


def run_both(
    program: Program, subjects: tuple[Subject, Subject], seed: int, random: Random,
    where: str, device: str, what: str,
) -> None:  # fmt: skip
    largest = LARGEST + 2 if random.random() < 0.3 else LARGEST
    sizes = {name: random.randint(2, largest) for name in ("n", "m")}
    if random.random() < 0.4:
        sizes = dict(EXPORTED)
    is_odd = random.random() < 0.4
    what = f"{what}, {sizes}, {where}{', odd' if is_odd else ''}"
    with torch.inference_mode(random.random() < 0.1):
        calls = [call_of(program, seed, sizes, is_odd) for _ in subjects]
    is_beyond = program.shapes == "auto" and program.beyond_bound == "refuse" and any(
        size > LARGEST for leaf in pytree.tree_leaves(calls[0])
        if isinstance(leaf, torch.Tensor) for size in leaf.shape
    )  # fmt: skip
    plan, module = subjects
    found = plan.run(calls[0], where, seed, device)
    if is_beyond and isinstance(found[0], ValueError) and "accepted: at most" in str(found[0]):
        counts["refused"] += 1
        return
    check_same(found, module.run(calls[1], where, seed, device), what)


def run_in_threads(
    program: Program, subjects: tuple[Subject, Subject], seed: int, device: str
) -> None:
    """Compares on two threads at once, if the program keeps nothing and draws no random numbers."""
    if "self.b" in program.text.split("def body")[1] or "rand" in program.text:
        return
    if "training=True" in program.text:
        return
    plan, module = subjects
    calls = [
        [call_of(program, seed + each, EXPORTED) for _ in range(THREAD_RUNS)] for each in range(2)
    ]
    wanted = [
        module.run(call_of(program, seed + each, EXPORTED), "no_grad", 0, device)
        for each in range(2)
    ]
    if any(error is not None for error, _ in wanted):
        return
    different: list[str] = []
    start = threading.Barrier(2)

    def run(number: int) -> None:
        start.wait()
        for call in calls[number]:
            found = plan.run(call, "no_grad", None, device)
            if found[0] is not None or found[1] != wanted[number][1]:
                different.append(f"thread {number}: {found}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    counts["in threads"] += 1
    if different:
        raise Difference(f"in threads: {different[0]}")


# ---- faults


def without_guards(module: Any, body: Any) -> Any:
    for node in module.graph.find_nodes(op="call_module", target="_guards_fn"):
        module.graph.erase_node(node)
    return exported_graphs.with_body(module, body)


class WithoutMutations(exported_graphs.FlatModule):
    def __init__(self, module: Any) -> None:
        super().__init__(module)
        copy = torch.ops.aten.copy_.default
        self.operators = [
            each for each in self.operators if each.target is not copy or each in self.outputs
        ]


class InTheCallersMode(plan_arena.PlanArena):
    def tensor(self, storage: int, like: torch.Tensor) -> torch.Tensor | None:
        made = super().tensor(storage, like)
        if made is None:
            return None
        layout = made.storage_offset(), made.shape, made.stride()
        return torch.empty(0, dtype=made.dtype).set_(made.untyped_storage(), *layout)


class WithoutTurns(plan_arena.PlanArena):
    def turn(self) -> Any:
        return contextlib.nullcontext()


conditions = storage_plans._conditions
# By name: the function of storage_plans to replace, the replacement, and the number of a program
# that shows the fault, or that comes shortly before such a program.
FAULTS: dict[str, tuple[str, Any, int]] = {
    "guards": ("with_body", without_guards, 1),
    "mutations": ("FlatModule", WithoutMutations, 1),
    "mode": ("PlanArena", InTheCallersMode, 18),
    "turns": ("PlanArena", WithoutTurns, 1),
    "escapes": ("escaping", lambda operators, outputs: set(), 1),
    "lifetimes": ("aliased", lambda node: [], 36),
    "conditions": ("_conditions", lambda given, device: (None, False), 22),
    "autocast": ("_conditions", lambda given, device: (conditions(given, device)[0], False), 22),
}


def differences(seeds: Iterable[int], device: str) -> Iterator[tuple[int, Program, Difference]]:
    for seed in seeds:
        program = random_program(seed)
        try:
            compare(program, seed, device)
        except Difference as difference:
            yield seed, program, difference


def plant_faults(device: str) -> int:
    """Returns how many faults of plan_storage the comparison does not find in a few programs."""
    missed = 0
    for fault, (name, replacement, first) in FAULTS.items():
        with mock.patch.object(storage_plans, name, replacement):
            found = next(differences(range(first, first + 100), device), None)
        print(f"{fault}: {'not found' if found is None else f'program {found[0]}'}")
        missed += found is None
    return missed


def until(end: float, seeds: Iterable[int]) -> Iterator[int]:
    return itertools.takewhile(lambda _: time.monotonic() < end, seeds)


def main() -> int:
    parser = argparse.ArgumentParser(prog="plan_fuzz", description="plan_storage against module()")
    parser.add_argument("--programs", type=int, help="end after this number")
    parser.add_argument("--seconds", type=float, help="end after that time; 60 without --programs")
    parser.add_argument("--seed", type=int, default=1, help="of the first program")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--faults", action="store_true", help="find faults that are planted")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    torch.set_num_threads(1)
    if options.device != "cpu":
        torch.set_default_device(options.device)
    if options.faults:
        return plant_faults(options.device) != 0
    end = time.monotonic() + (options.seconds or (math.inf if options.programs else 60))
    seeds = range(options.seed, options.seed + (options.programs or sys.maxsize))
    different = 0
    for seed, program, difference in differences(until(end, seeds), options.device):
        different += 1
        print(f"--- seed {seed}: {difference}\n{program.text}\n{program}", file=sys.stderr)
        traceback.print_exception(difference)
    for what, count in sorted(counts.items()):
        print(f"{count:6} {what}")
    print(f"{different} differ")
    return different != 0


if __name__ == "__main__":
    sys.exit(main())
