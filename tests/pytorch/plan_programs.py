"""Random programs for torch.export: models as text, with the arguments of a call.

Each statement is tried on tensors without data, for two sizes of the inputs. Statements that
fail there are left out, so most programs can be exported. A seed decides everything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

LARGEST = 12  # the largest n and m that plans are made for
TRIED = ({"n": 3, "m": 4}, {"n": 6, "m": 5})
EXPORTED = {"n": 4, "m": 6}
MOST_ELEMENTS = 4096
# Builtins, and names that torch.export itself gives to values. With "torch", "device" or "dict",
# the code of program.module() would fail.
NAMES = (
    "input", "type", "id", "max", "min", "x", "self_", "filter", "None_", "range", "tensor",
    "arg_0", "add", "mul", "relu", "output", "b_b0", "sum", "print", "len", "_guards_fn", "forward",
)  # fmt: skip
Shape = tuple[int | str, ...]
SHAPES: tuple[Shape, ...] = (
    ("n", 4), ("n", "m"), ("n",), (4,), (4, "n"), (2, "m", 4), ("n", 2, 4), (), ("m", 4), (4, 4),
    (1, 2, "n", "m"),
)  # fmt: skip

UNARY = (
    "torch.relu({a})", "{a}.sin()", "-{a}", "{a} * 2", "{a} + 1", "{a}.clone()", "{a}.double()",
    "{a}.to(torch.bfloat16)", "{a} > 0", "{a}.long()", "{a}.cumsum(0)",
    "torch.softmax({a}.float(), -1)", "{a}.sort(dim=0)[0]", "{a}.argsort(-1)", "{a}.sum()",
    "{a}.sum(0)", "{a}.mean(-1, keepdim=True)", "{a}.amax(0)", "{a}.float().var(-1)",
    "F.gelu({a}.float())", "F.dropout({a}, 0.5, training=False)",
    "F.dropout({a}.float(), 0.5, training=True)", "F.linear({a}.float(), self.w)",
    "F.linear({a}, self.w)", "{a}.float() @ self.w", "torch.mm({a}, self.w).relu() + 1",
    "F.linear({a}.float(), self.w).sin() * 2",
    "torch.mm(torch.mm({a}.float(), self.w), self.w) - 1",
    "torch.addmm({a}.float(), self.w, self.w).sum(0)", "torch.mm(self.w + 1, self.w).relu() * {a}",
    "F.layer_norm({a}.float(), (4,), self.w[0], self.w[1])", "self.conv({a}.float())",
    "torch.rand_like({a}.float())", "torch.zeros({a}.shape)", "torch.full_like({a}, 3)",
    "torch.arange({a}.shape[0])", "{a}.shape[0] * {b}",
    "torch.ones(math.ceil({a}.shape[0] / 2), 4)",
    "torch.full((round({a}.shape[-1] * 0.7), 2), 1.5)",
    "F.interpolate({a}, scale_factor=1.5, recompute_scale_factor=True)",
    "F.interpolate({a}, size=({b}.shape[0], 3))", "torch.ones(int({a}.shape[0] * 1.5)).cumsum(0)",
    "torch.cat([{a}, {a}], 0)", "torch.nonzero({a} > 0).sum()", "{a}[{a} > 0].sum() * 2",
    "F.pad({a}, (1, 1))", "torch.tril({a})", "{a}.flip(0)", "{a}.roll(1, 0)", "{a}.repeat(2, 1)",
    "F.avg_pool1d({a}, 2)", "torch.einsum('ij->ji', {a})", "{a} / 3", "{a}.contiguous()",
    "torch.tensor([1.0, 2.0, 3.0, 4.0]) * {a}", "{a}.float().std(0, keepdim=True)",
)  # fmt: skip
BINARY = (
    "{a} + {b}", "{a} * {b}", "torch.where({a} > 0, {a}, {b})", "torch.maximum({a}, {b})",
    "torch.cat([{a}, {b}], 0)", "torch.cat([{a}, {b}], -1)", "torch.stack([{a}, {b}])", "{a} @ {b}",
    "{a} @ {b}.transpose(-1, -2)", "{a} - {b}.sum()", "torch.addcmul({a}, {a}, {b})",
    "torch.lerp({a}.float(), {b}.float(), 0.3)", "{a}.unsqueeze(0) + {b}", "torch.outer({a}, {b})",
    "F.embedding({a}.long().clamp(0, 1), {b}.float())", "{a} // 2 + {b}",
)  # fmt: skip
VIEWS = (
    "{a}.transpose(0, -1)", "{a}[1:]", "{a}[..., ::2]", "{a}.unsqueeze(0)", "{a}.reshape(-1)",
    "{a}.flatten()", "{a}.view(-1)", "{a}.chunk(2)[0]", "{a}.chunk(2, -1)[1]", "{a}.diagonal()",
    "{a}.select(0, 0)", "{a}.narrow(-1, 0, 1)", "{a}.expand(2, *{a}.shape)", "{a}.t()",
    "{a}.detach()", "{a}.squeeze()", "{a}.movedim(0, -1)", "{a}.split(1)[0]", "{a}.unbind(0)[0]",
    "{a}.unfold(-1, 2, 1)", "{a}.view_as({b})", "{a}.mT", "{a}.float()", "{a}.contiguous()",
    "self.b0", "self.b1", "self.b1[1:]", "self.w", "{a}",
    "torch.view_as_real(torch.complex({a}, {a}))",
)  # fmt: skip
IN_PLACE = (
    "{a}.add_(1)", "{a}.mul_({b})", "{a}.relu_()", "{a}.zero_()", "{a}.copy_({b})", "{a}[0] = 1",
    "{a}[1:].add_({b}[1:])", "{a}.clamp_(max=0.5)", "{a}.masked_fill_({a} > 0, 2)",
    "{a}.fill_(0.25)", "{a}[..., ::2].mul_(3)", "{a}.unsqueeze_(0)", "{a}.t_()", "{a}.squeeze_()",
    "{a}.transpose_(0, -1)", "self.b0.add_({a}.float().sum())", "self.b1.mul_(0.5).add_(1)",
    "self.b1.copy_({a}.flatten()[:4])", "self.b1[1:] += {a}.float().mean()", "self.b2.add_(1)",
    "{a}.transpose(0, -1).add_(2)", "{a}.sub_({b}.mean())",
    "{a}.index_fill_(0, torch.tensor([0]), 7)", "{a}.cumsum_(0)", "{a}.diagonal().fill_(5)",
    "torch.add({a}, 1, out={b})",
)  # fmt: skip
BRANCHES = (
    "{a} * 2 if {b}.shape[0] % 2 == 0 else {a} * 3",
    "{a} + 1 if {b}.shape[0] > 4 else {a} - 1",
    "{a} + 1 if {a}.shape[0] == {b}.shape[0] else {a} * 5",
    "{a} - 1 if {a}.dtype == torch.float32 else {a} - 2",
)
# The results of statements that tensors without data cannot run.
WITHOUT_DATA = {
    "torch.nonzero({a} > 0).sum()": "torch.zeros((), dtype=torch.long, device='meta')",
    "{a}[{a} > 0].sum() * 2": "{a}.sum()",
}
CONSTRUCTOR = """
import math, torch
import torch.nn.functional as F

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.arange(16.0).reshape(4, 4).sin())
        self.conv = torch.nn.Conv1d(2, 3, 1)
        self.register_buffer("b0", torch.zeros(()))
        self.register_buffer("b1", torch.ones(4))
        self.register_buffer("b2", torch.zeros(2), persistent=False)
"""


@dataclass(frozen=True)
class Tensor:
    """A tensor among the inputs of a program."""

    shape: Shape
    dtype: torch.dtype

    def size(self, sizes: dict[str, int]) -> list[int]:
        return [each if isinstance(each, int) else sizes[each] for each in self.shape]


@dataclass
class Program:
    """A model as text, and the structure of its arguments with a Tensor for each tensor."""

    text: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    shapes: str  # "static"; "named": Dim(...); "auto": Dim.AUTO
    beyond_bound: str
    tensors: list[Tensor] = field(default_factory=list)

    def model(self) -> torch.nn.Module:
        found: dict[str, Any] = {}
        exec(compile(self.text, "program", "exec"), found)
        torch.manual_seed(0)
        return found["Model"]().eval()

    def dynamic_shapes(self) -> Any:
        if self.shapes == "static":
            return None
        named = {name: torch.export.Dim(name, min=2, max=LARGEST) for name in ("n", "m")}

        def of(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return None
            return {
                place: named[size] if self.shapes == "named" else torch.export.Dim.AUTO
                for place, size in enumerate(leaf.shape)
                if isinstance(size, str)
            }

        positional = dict(zip(self.names(), self.arguments, strict=True))
        return {name: mapped(of, value) for name, value in (positional | self.options).items()}

    def names(self) -> list[str]:
        signature = self.text.split("def forward(self", 1)[1].split("):", 1)[0]
        return [name.strip() for name in signature.split("*")[0].split(",") if name.strip()]


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """Returns the same containers with function(leaf) for each leaf."""
    if isinstance(value, dict):
        return {key: mapped(function, each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, each) for each in value)
    return function(value)


def paths(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yields the leaves of containers, each with the expression that reads the leaf."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from paths(each, f"{path}[{key!r}]")
    elif isinstance(value, tuple | list):
        for place, each in enumerate(value):
            yield from paths(each, f"{path}[{place}]")
    else:
        yield path, value


class Writer:
    """Writes the statements of one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.tensors: list[str] = []
        self.numbers: list[str] = []
        self.trials: list[dict[str, Any]] = []

    def argument(self, depth: int = 0) -> Any:
        """Returns the structure of one random argument."""
        random = self.random
        kind = random.random()
        if depth < 2 and kind < 0.2:
            return {key: self.argument(depth + 1) for key in random.sample("abcd", 2)}
        if depth < 2 and kind < 0.35:
            container = random.choice((tuple, list))
            return container(self.argument(depth + 1) for _ in range(random.randint(1, 2)))
        if kind < 0.45:
            return random.choice((None, 2, 0.5, True, "word"))
        dtypes = (torch.float32,) * 5 + (torch.float64, torch.int64, torch.bool)
        return Tensor(random.choice(SHAPES), random.choice(dtypes))

    def begin(self, leaves: list[Any]) -> None:
        """Gives the names x0, x1, ... to the leaves of the arguments."""
        found: dict[str, Any] = {}
        exec(CONSTRUCTOR, found)
        for sizes in TRIED:
            model = found["Model"]().to("meta").eval()
            self.trials.append({**found, "self": model})
            for place, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor):
                    leaf = torch.empty(leaf.size(sizes), dtype=leaf.dtype, device="meta")
                self.trials[-1][f"x{place}"] = leaf
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, Tensor):
                self.tensors.append(f"x{place}")
            elif isinstance(leaf, int | float):
                self.numbers.append(f"x{place}")

    def statement(self) -> None:
        random = self.random
        kinds = (UNARY, BINARY, VIEWS, IN_PLACE, BRANCHES)
        kind = random.choices(kinds, (8, 5, 5, 4, 1))[0]
        template = random.choice(kind)
        # Prefers recent values, so that programs are deep rather than wide.
        recent = self.tensors[-3:]
        a, b = (random.choice(recent if random.random() < 0.6 else self.tensors) for _ in "ab")
        if self.numbers and random.random() < 0.1:
            template, b = "{a} * {b}", random.choice(self.numbers)
        name = "" if kind is IN_PLACE else f"v{len(self.lines)} = "
        line = name + template.format(a=a, b=b)
        tried = name + WITHOUT_DATA.get(template, template).format(a=a, b=b)
        if not self.runs(tried):
            return
        self.lines.append(line)
        if name:
            self.tensors.append(name.split()[0])

    def runs(self, line: str) -> bool:
        """Returns whether the statement runs for all sizes. A failed statement has changed
        nothing."""
        name = line.split(" = ")[0]
        try:
            for trial in self.trials:
                with torch.no_grad(), torch.device("meta"):
                    exec(line, trial)
                value = trial.get(name)
                if name != line and not (0 < value.numel() <= MOST_ELEMENTS and value.dim() < 6):
                    return False
        except Exception:
            return False
        return True

    def body(self, count: int) -> list[str]:
        for _ in range(20 * count):
            if len(self.lines) < count:
                self.statement()
        lines, place = [], 0
        while place < len(self.lines):  # puts some of the lines into a block
            if self.random.random() < 0.1:
                lines.append("with torch.no_grad():")
                some = self.lines[place : place + self.random.randint(1, 3)]
                lines += ["    " + line for line in some]
                place += len(some)
            else:
                lines.append(self.lines[place])
                place += 1
        return lines

    def result(self) -> str:
        random = self.random
        some = [random.choice(self.tensors[-6:] + self.tensors[:3]) for _ in range(3)]
        return random.choice(
            (
                f"{some[0]}",
                f"({some[0]}, {some[1]}, {some[2]})",
                f"{{'r': {some[0]}, 's': [{some[1]}, None, {some[1]}]}}",
                f"({some[0]}, {some[0]}.shape[0] if {some[0]}.dim() else 3, self.b1)",
                f"[{some[0]}.clone(), ({some[1]}, 'word', 1.5)]",
            )
        )


def random_program(seed: int) -> Program:
    random = Random(seed)
    writer = Writer(random)
    names = random.sample(NAMES, random.randint(1, 4))
    positional = random.randint(0, len(names))
    arguments = [writer.argument() for _ in names]
    if not any(isinstance(leaf, Tensor) for _, leaf in paths(arguments, "")):
        arguments[0] = Tensor(("n", 4), torch.float32)
    leaves = [leaf for name, value in zip(names, arguments, strict=True)
              for leaf in paths(value, name)]  # fmt: skip
    writer.begin([leaf for _, leaf in leaves])
    lines = writer.body(random.randint(3, 14))
    stars = "" if positional == len(names) else ", *"
    signature = "".join(f", {name}" for name in names[:positional]) + stars
    signature += "".join(f", {name}" for name in names[positional:])
    inner = ", ".join(f"x{place}" for place in range(len(leaves)))
    text = CONSTRUCTOR + f"    def forward(self{signature}):\n"
    text += f"        return self.body({', '.join(path for path, _ in leaves)})\n"
    text += f"    def body(self, {inner}):\n"
    text += "".join(f"        {line}\n" for line in [*lines, f"return {writer.result()}"])
    program = Program(
        text,
        tuple(arguments[:positional]),
        dict(zip(names[positional:], arguments[positional:], strict=True)),
        random.choice(("static", "named", "auto", "auto")),
        random.choice(("refuse", "fall back")),
    )
    program.tensors = [leaf for _, leaf in leaves if isinstance(leaf, Tensor)]
    return program
