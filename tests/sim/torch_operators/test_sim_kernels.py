"""PyTorch's CUDA operators on the simulated device give the results of its CPU operators.

Runs inside a process that is on the simulated device already:

    uvmalloc sim -- python -m pytest tests/sim/torch_operators
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import varlen

DEVICE = "cuda"


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(20240501)
    yield


def to_device(value: Any, device: str) -> Any:
    """Moves tensors, also in lists and tuples; a view becomes a view with the same strides."""
    if isinstance(value, Tensor):
        extent = 1 + sum(
            (n - 1) * step for n, step in zip(value.size(), value.stride(), strict=True)
        )
        elements = value.as_strided((extent,), (1,)) if value.numel() else value
        return elements.to(device).as_strided(value.size(), value.stride())
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(element, device) for element in value)
    return value


def assert_same(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    if isinstance(expected, Tensor):
        assert actual.device.type == DEVICE
        torch.testing.assert_close(actual.cpu(), expected, rtol=rtol, atol=atol)
    elif isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, rtol, atol)
    else:
        assert actual == expected


# ---- single operators ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    name: str
    run: Callable[..., Any]
    inputs: Callable[[], Sequence[Any]] = field(default=lambda: (torch.randn(4, 6),))
    rtol: float = 1e-5
    atol: float = 1e-6


def pair(*shape: int) -> Callable[[], Sequence[Tensor]]:
    return lambda: (torch.randn(shape), torch.randn(shape))


def half_pair(dtype: torch.dtype) -> Callable[[], Sequence[Tensor]]:
    return lambda: (torch.randn(3, 8, 16).to(dtype), torch.randn(3, 16, 4).to(dtype))


def integers(high: int, *shape: int) -> Tensor:
    return torch.randint(high, shape)


def complex_system() -> Sequence[Tensor]:
    return torch.randn(3, 3, dtype=torch.cfloat), torch.randn(2, 3, dtype=torch.cfloat)


def solve_from_the_right(a: Tensor, b: Tensor) -> Tensor:
    """Resolves the conjugation of the result, which the CPU kernel leaves to the reader."""
    return torch.linalg.solve(a, b, left=False).resolve_conj()


def lu_solve_from_the_right(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.lu_solve(*torch.linalg.lu_factor(a), b, left=False).resolve_conj()


CASES = [
    # elementwise, and the layouts of their inputs
    Case("add", torch.add, pair(4, 6)),
    Case("add_scalar_tensor", lambda x: x + torch.tensor(2.0), lambda: (torch.randn(4, 6),)),
    Case("mul_transposed", torch.mul, lambda: (torch.randn(6, 4).t(), torch.randn(4, 6))),
    Case("sub_expanded", torch.sub, lambda: (torch.randn(4, 6), torch.randn(1, 6).expand(4, 6))),
    Case("div_strided", torch.div, lambda: (torch.randn(8, 6)[::2], torch.rand(4, 12)[:, ::2] + 1)),
    Case("broadcast", torch.mul, lambda: (torch.randn(4, 1, 6), torch.randn(5, 1))),
    Case("type_promotion", torch.add, lambda: (integers(9, 4, 6), torch.randn(4, 6))),
    Case("complex", lambda x: (x.conj() * x).abs(), lambda: (torch.randn(5, dtype=torch.cfloat),)),
    Case("exp", torch.exp),
    Case("pow", lambda x: x.abs().pow(1.5)),
    Case("gelu", F.gelu),
    Case("silu", F.silu),
    Case("clamp", lambda x: x.clamp(-0.5, 0.5)),
    Case("where", lambda x: torch.where(x > 0, x, -x)),
    Case("comparison", lambda x, y: x < y, pair(4, 6)),
    Case("logical_not", lambda x: ~(x > 0)),
    Case("floor_divide", lambda x: x // 3, lambda: (integers(50, 4, 6),)),
    Case("bit_shift", lambda x: (x << 3) ^ 5, lambda: (integers(50, 4, 6),)),
    # reductions
    Case("sum", lambda x: x.sum()),
    Case("sum_dim", lambda x: x.sum(1, keepdim=True)),
    Case("mean_double", lambda x: x.double().mean(0)),
    Case("var_mean", lambda x: torch.var_mean(x, dim=1)),
    Case("norm", lambda x: torch.linalg.vector_norm(x, dim=0)),
    Case("max_dim", lambda x: tuple(x.max(1))),
    Case("argmin", lambda x: x.argmin(0)),
    Case("any", lambda x: (x > 2).any()),
    Case("logsumexp", lambda x: x.logsumexp(-1)),
    Case("cumsum", lambda x: x.cumsum(1)),
    Case("cumprod_transposed", lambda x: x.t().cumprod(0)),
    Case("softmax", lambda x: x.softmax(-1)),
    Case("log_softmax_to_float", lambda x: F.log_softmax(x.half(), 1, dtype=torch.float)),
    # sorting and searching
    Case("topk", lambda x: tuple(x.topk(3, dim=1))),
    Case("sort_descending", lambda x: tuple(x.sort(descending=True))),
    Case("argsort", lambda x: x.argsort(0)),
    Case("median", lambda x: tuple(x.median(1))),
    Case("unique", lambda x: torch.unique(x, return_counts=True), lambda: (integers(5, 30),)),
    Case("nonzero", lambda x: (x > 0).nonzero()),
    Case("masked_select", lambda x: x[x > 0]),
    Case("searchsorted", lambda x: torch.searchsorted(x.sort(1)[0], x)),
    Case("bincount", torch.bincount, lambda: (integers(7, 40),)),
    # shapes
    Case("cat", lambda x, y: torch.cat([x, y, x.t().reshape(4, 6)], 1), pair(4, 6)),
    Case("stack", lambda x, y: torch.stack([x, y], -1), pair(4, 6)),
    Case("permuted_contiguous", lambda x: x.permute(1, 0).contiguous()),
    Case("split", lambda x: [part * 2 for part in x.split(4, 1)]),
    Case("flip_roll", lambda x: x.flip(0).roll(2, 1)),
    Case("pad", lambda x: F.pad(x, (1, 2), value=3.0)),
    Case("tril", torch.tril),
    Case("repeat_interleave", lambda x: x.repeat_interleave(3, 0)),
    Case("as_strided", lambda x: x.as_strided((3, 3), (2, 5), 1) + 1),
    # indexing
    Case("index", lambda x, i: x[i], lambda: (torch.randn(9, 3), integers(9, 20))),
    Case("index_by_host", lambda x: x[torch.tensor([2, 0])]),
    Case("gather", lambda x, i: x.gather(1, i), lambda: (torch.randn(4, 6), integers(6, 4, 6))),
    Case("take_along_dim", lambda x: x.take_along_dim(x.argsort(1), 1)),
    Case(
        "index_put_accumulate",
        lambda x, i, y: x.clone().index_put_((i,), y, accumulate=True),
        lambda: (torch.randn(5, 3), integers(5, 20), torch.randn(20, 3)),
    ),
    Case(
        "scatter_add",
        lambda x, i, y: x.scatter_add(1, i, y),
        lambda: (torch.zeros(4, 6), integers(6, 4, 8), torch.randn(4, 8)),
    ),
    Case(
        "scatter", lambda x, i: x.scatter(1, i, 7.0), lambda: (torch.randn(4, 6), integers(6, 4, 2))
    ),
    Case("masked_fill", lambda x: x.masked_fill(x > 0, -1.0)),
    Case("embedding", F.embedding, lambda: (integers(10, 3, 5), torch.randn(10, 4))),
    # linear algebra
    Case("mm", lambda x, y: x @ y.t(), pair(7, 5)),
    Case("mv", torch.mv, lambda: (torch.randn(4, 6), torch.randn(6))),
    Case("bmm", torch.bmm, lambda: (torch.randn(3, 8, 16), torch.randn(3, 16, 4))),
    Case("bmm_bfloat16", torch.bmm, half_pair(torch.bfloat16), rtol=1e-2, atol=1e-2),
    Case("bmm_half", torch.bmm, half_pair(torch.half), rtol=1e-3, atol=1e-3),
    Case(
        "baddbmm",
        lambda b, x, y: torch.baddbmm(b, x, y, beta=0.5, alpha=2),
        lambda: (torch.randn(4), torch.randn(3, 8, 16), torch.randn(3, 16, 4)),
    ),
    Case(
        "addmm_bfloat16",
        lambda b, x, y: torch.addmm(b, x, y),
        lambda: tuple(torch.randn(s).bfloat16() for s in ((4,), (8, 16), (16, 4))),
        rtol=1e-2,
        atol=1e-2,
    ),
    Case("linear", F.linear, lambda: (torch.randn(2, 3, 5), torch.randn(4, 5), torch.randn(4))),
    Case("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), pair(2, 3, 4)),
    Case("cholesky", lambda x: torch.linalg.cholesky(x @ x.t() + torch.eye(4, device=x.device))),
    Case(
        "solve",
        torch.linalg.solve,
        lambda: (torch.randn(4, 4) + 4 * torch.eye(4), torch.randn(4, 2)),
    ),
    Case("solve_complex_from_the_right", solve_from_the_right, complex_system),
    Case("lu_solve_complex_from_the_right", lu_solve_from_the_right, complex_system),
    Case("fft", lambda x: torch.fft.rfft(x).abs()),
    # networks
    Case("conv1d", F.conv1d, lambda: (torch.randn(2, 3, 9), torch.randn(4, 3, 3), torch.randn(4))),
    Case(
        "conv2d_grouped",
        lambda x, w: F.conv2d(x, w, stride=2, padding=1, groups=2),
        lambda: (torch.randn(2, 4, 8, 8), torch.randn(6, 2, 3, 3)),
    ),
    Case(
        "conv_transpose2d",
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        lambda: (torch.randn(2, 4, 5, 5), torch.randn(4, 3, 3, 3)),
    ),
    Case(
        "conv2d_channels_last",
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        lambda: (torch.randn(2, 4, 8, 8), torch.randn(3, 4, 3, 3)),
    ),
    Case(
        "max_pool2d",
        lambda x: F.max_pool2d(x, 2, return_indices=True),
        lambda: (torch.randn(2, 3, 8, 8),),
    ),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2, 1), lambda: (torch.randn(2, 3, 8, 8),)),
    Case(
        "adaptive_pool", lambda x: F.adaptive_avg_pool2d(x, 3), lambda: (torch.randn(2, 3, 8, 8),)
    ),
    Case(
        "interpolate",
        lambda x: F.interpolate(x, scale_factor=2.0, mode="bilinear"),
        lambda: (torch.randn(2, 3, 4, 4),),
    ),
    Case("layer_norm", lambda x: F.layer_norm(x, (6,))),
    Case("group_norm", lambda x: F.group_norm(x, 2), lambda: (torch.randn(2, 4, 5),)),
    Case("rms_norm", lambda x: F.rms_norm(x, (6,))),
    Case("cross_entropy", F.cross_entropy, lambda: (torch.randn(8, 5), integers(5, 8))),
    Case(
        "binary_cross_entropy",
        F.binary_cross_entropy_with_logits,
        lambda: (torch.randn(8), torch.rand(8)),
    ),
    Case("one_hot", lambda x: F.one_hot(x, 6), lambda: (integers(6, 5),)),
    Case(
        "attention_causal",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda: tuple(torch.randn(2, 3, 7, 8) for _ in range(3)),
    ),
    # reading back
    Case("item", lambda x: pytest.approx(x.double().sum().item())),
    Case("tolist", lambda x: x.tolist()),
    Case("equal", lambda x: torch.equal(x, x.clone())),
    Case("repr", lambda x: str(x.cpu())),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_operator_agrees_with_the_cpu(case: Case) -> None:
    inputs = case.inputs()
    expected = case.run(*inputs)
    actual = case.run(*to_device(tuple(inputs), DEVICE))
    assert_same(actual, expected, case.rtol, case.atol)


FACTORIES: dict[str, Callable[[str], Tensor]] = {
    "zeros": lambda device: torch.zeros(3, 4, device=device),
    "full": lambda device: torch.full((3,), 7, device=device),
    "arange": lambda device: torch.arange(2, 20, 3, device=device),
    "linspace": lambda device: torch.linspace(0, 1, 11, device=device),
    "eye": lambda device: torch.eye(3, 5, device=device),
    "tril_indices": lambda device: torch.tril_indices(4, 4, device=device),
    "empty_result": lambda device: torch.zeros(0, 3, device=device).sum(0),
}


@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES.keys())
def test_factory_agrees_with_the_cpu(make: Callable[[str], Tensor]) -> None:
    assert_same(make(DEVICE), make("cpu"))


def test_repr_of_a_device_tensor() -> None:
    assert (
        repr(torch.tensor([1.5, 2.0], device=DEVICE)) == "tensor([1.5000, 2.0000], device='cuda:0')"
    )


# ---- out=, in place, resizing -------------------------------------------------------------------


def test_out_variant_writes_the_given_tensor() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    out = torch.empty(4, 6, device=DEVICE)
    address = out.data_ptr()
    assert torch.add(x.to(DEVICE), y.to(DEVICE), out=out) is out
    assert out.data_ptr() == address
    assert_same(out, x + y)


def test_out_variant_fills_a_strided_view() -> None:
    x = torch.randn(4, 6)
    base = torch.zeros(6, 8, device=DEVICE)
    torch.mul(x.to(DEVICE), 2, out=base.t()[1:5, :])
    expected = torch.zeros(6, 8)
    expected.t()[1:5, :] = x * 2
    assert_same(base, expected)


def test_out_variant_resizes_an_empty_tensor() -> None:
    x = torch.randn(64, 64)
    out = torch.empty(0, device=DEVICE)
    torch.matmul(x.to(DEVICE), x.to(DEVICE), out=out)
    assert out.shape == (64, 64)
    assert_same(out, x @ x, atol=1e-4)
    assert_same(out + 1, x @ x + 1, atol=1e-4)


@pytest.mark.parametrize("shape", [(0,), (2, 3)])
def test_out_variant_gets_the_lazy_bits_of_its_result(shape: tuple[int, ...]) -> None:
    a, b = complex_system()
    factors = torch.linalg.lu_factor(a)
    expected = torch.linalg.lu_solve(*factors, b, left=False)
    out = torch.empty(shape, dtype=torch.cfloat, device=DEVICE)
    torch.linalg.lu_solve(*to_device(tuple(factors), DEVICE), b.to(DEVICE), left=False, out=out)
    assert_same(out.resolve_conj(), expected.resolve_conj())


def test_each_replay_leaves_the_same_conjugation_to_readers() -> None:
    a, b = complex_system()
    factors = torch.linalg.lu_factor(a)
    expected = torch.linalg.lu_solve(*factors, b, left=False).resolve_conj()
    on_device = [tensor.to(DEVICE) for tensor in (*factors, b)]
    out = torch.empty_like(expected, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.linalg.lu_solve(*on_device, left=False, out=out)
    for _ in range(3):
        graph.replay()
        torch.testing.assert_close(out.resolve_conj().cpu(), expected)


def test_out_variant_resizes_within_its_memory() -> None:
    out = torch.empty(100, device=DEVICE)
    out.resize_(0)
    address = out.untyped_storage().data_ptr()
    torch.arange(10, out=out)
    assert out.untyped_storage().data_ptr() == address
    assert out.tolist() == list(range(10))


def test_in_place_keeps_identity_and_bumps_the_version() -> None:
    x = torch.randn(4, 6)
    device_x = x.to(DEVICE)
    version = device_x._version
    assert device_x.add_(1).mul_(2) is device_x
    assert device_x._version == version + 2
    assert_same(device_x, (x + 1) * 2)


def test_in_place_on_a_view_changes_the_base() -> None:
    x = torch.randn(4, 6)
    device_x = x.to(DEVICE)
    device_x.t()[2].zero_()
    x[:, 2] = 0
    assert_same(device_x, x)


def test_overlapping_write_is_refused() -> None:
    x = torch.zeros(1, device=DEVICE).expand(3)
    with pytest.raises(RuntimeError, match="single memory location"):
        x.add_(1)


def test_partly_overlapping_output_is_refused() -> None:
    x = torch.zeros(8, device=DEVICE)
    with pytest.raises(
        RuntimeError, match=r"single memory location|input tensors partially overlap"
    ):
        torch.add(x[1:], 1, out=x[:-1])


def test_lazy_clone_is_materialised_by_a_write_only() -> None:
    x = torch.arange(1000.0, device=DEVICE)
    clone = torch._lazy_clone(x)
    assert torch._C._is_cow_tensor(clone)
    assert (clone + x).sum().item() == 999000
    assert torch._C._is_cow_tensor(clone)
    clone.add_(1)
    assert not torch._C._is_cow_tensor(clone)
    assert x[0].item() == 0
    assert clone[0].item() == 1


# ---- copies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_copies_between_host_and_device(pinned: bool, non_blocking: bool) -> None:
    x = torch.randn(100, 30)
    source = x.pin_memory() if pinned else x
    device_x = source.to(DEVICE, non_blocking=non_blocking)
    back = device_x.to("cpu", non_blocking=non_blocking)
    torch.cuda.synchronize()
    assert torch.equal(back, x)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int32, torch.bool])
def test_converting_copy(dtype: torch.dtype) -> None:
    x = torch.randn(10, 6) * 5
    assert_same(x.to(DEVICE).to(dtype), x.to(dtype))
    assert_same(x.to(DEVICE, dtype), x.to(dtype))
    assert torch.equal(x.to(DEVICE).t().to("cpu", dtype), x.t().to(dtype))


def test_copy_into_a_strided_view_from_the_host() -> None:
    x = torch.randn(4, 6)
    base = torch.zeros(4, 12, device=DEVICE)
    base[:, ::2] = x
    expected = torch.zeros(4, 12)
    expected[:, ::2] = x
    assert_same(base, expected)


def test_foreach_copy_between_host_and_device() -> None:
    host = [torch.randn(3), torch.randn(4, 2)]
    device = [torch.zeros_like(x, device=DEVICE) for x in host]
    torch._foreach_copy_(device, host)
    assert_same(device, host)
    back = [torch.zeros_like(x) for x in host]
    torch._foreach_copy_(back, device)
    assert all(torch.equal(one, other) for one, other in zip(back, host, strict=True))


# ---- random numbers -----------------------------------------------------------------------------

RANDOM: dict[str, Callable[[], Tensor]] = {
    "rand": lambda: torch.rand(1000, device=DEVICE),
    "randn": lambda: torch.randn(1000, device=DEVICE),
    "randint": lambda: torch.randint(100, (1000,), device=DEVICE),
    "randperm": lambda: torch.randperm(1000, device=DEVICE),
    "bernoulli": lambda: torch.full((1000,), 0.5, device=DEVICE).bernoulli(),
    "multinomial": lambda: torch.ones(100, device=DEVICE).multinomial(50),
    "exponential": lambda: torch.empty(1000, device=DEVICE).exponential_(),
    "dropout": lambda: F.dropout(torch.ones(1000, device=DEVICE), 0.5),
}


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM.keys())
def test_equal_seeds_give_equal_numbers(draw: Callable[[], Tensor]) -> None:
    torch.manual_seed(7)
    first, second = draw(), draw()
    torch.manual_seed(7)
    assert torch.equal(draw(), first)
    assert torch.equal(draw(), second)
    assert not torch.equal(first, second)
    torch.manual_seed(8)
    assert not torch.equal(draw(), first)


def test_generator_argument_and_state() -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    first = torch.randn(10, generator=generator, device=DEVICE)
    state = generator.get_state()
    second = torch.randn(10, generator=generator, device=DEVICE)
    generator.set_state(state)
    assert torch.equal(torch.randn(10, generator=generator, device=DEVICE), second)
    assert not torch.equal(first, second)
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator"):
        torch.randn(10, device=DEVICE).normal_(generator=torch.Generator("cpu"))


def test_device_numbers_leave_the_host_generator_alone() -> None:
    state = torch.get_rng_state()
    torch.randn(10, device=DEVICE)
    F.dropout(torch.ones(10, device=DEVICE), 0.5)
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_scales_what_it_keeps() -> None:
    x = torch.ones(10000, device=DEVICE, requires_grad=True)
    y = F.dropout(x, 0.25)
    y.sum().backward()
    assert y.unique().tolist() == pytest.approx([0.0, 4 / 3])
    assert 0.2 < (y == 0).float().mean().item() < 0.3
    assert torch.equal(x.grad, y.detach())


# ---- training -----------------------------------------------------------------------------------


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        )  # fmt: skip
        self.classify = nn.Linear(64, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.features(x))


class TinyTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        self.norm = nn.LayerNorm(16)
        self.project = nn.Linear(16, 48)
        self.output = nn.Linear(16, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        q, k, v = (
            part.unflatten(-1, (4, 4)).transpose(1, 2)
            for part in self.project(self.norm(x)).split(16, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output((x + attended.transpose(1, 2).flatten(2)).mean(1))


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = cell(6, 8, num_layers=2, batch_first=True)
        self.output = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.cell(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 16), nn.RMSNorm(16),
        nn.Tanh(), nn.Linear(16, 5),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "mlp": (mlp, lambda: torch.randn(16, 12)),
    "cnn": (ConvNet, lambda: torch.randn(16, 1, 8, 8)),
    "transformer": (TinyTransformer, lambda: integers(11, 16, 7)),
    "lstm": (lambda: Recurrent(nn.LSTM), lambda: torch.randn(16, 5, 6)),
    "gru": (lambda: Recurrent(nn.GRU), lambda: torch.randn(16, 5, 6)),
    "encoder_layer": (
        lambda: nn.Sequential(
            nn.TransformerEncoderLayer(12, 3, 24, dropout=0.0, batch_first=True),
            nn.Flatten(), nn.Linear(48, 5),
        ),
        lambda: torch.randn(16, 4, 12),
    ),
}  # fmt: skip

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
    "adamw_foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "adamw_fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
    "adam_single": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=False),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, lr=0.001),
}


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, steps: int = 4
) -> list[float]:
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_on_both(
    make_model: Callable[[], nn.Module],
    make_input: Callable[[], Tensor],
    make_optimizer: Callable[[Any], torch.optim.Optimizer],
) -> tuple[list[float], list[float]]:
    host_model = make_model()
    device_model = copy.deepcopy(host_model).to(DEVICE)
    x, y = make_input(), integers(5, 16)
    expected = train(host_model, make_optimizer(host_model.parameters()), x, y)
    actual = train(
        device_model, make_optimizer(device_model.parameters()), x.to(DEVICE), y.to(DEVICE)
    )
    for name, value in device_model.state_dict().items():
        assert_same(value, host_model.state_dict()[name], rtol=1e-3, atol=1e-4)
    host_model.eval()
    device_model.eval()
    with torch.no_grad():
        assert_same(device_model(x.to(DEVICE)), host_model(x), rtol=1e-3, atol=1e-3)
    return actual, expected


@pytest.mark.parametrize("model", MODELS)
def test_training_agrees_with_the_cpu(model: str) -> None:
    actual, expected = losses_on_both(*MODELS[model], OPTIMIZERS["sgd"])
    assert actual == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizer_agrees_with_the_cpu(optimizer: str) -> None:
    actual, expected = losses_on_both(*MODELS["mlp"], OPTIMIZERS[optimizer])
    assert actual == pytest.approx(expected, rel=1e-5)


def test_gradient_scaler_skips_a_step_with_infinite_gradients() -> None:
    model = nn.Linear(4, 1).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    before = model.weight.detach().clone()
    scaler.scale((model(torch.full((2, 4), float("inf"), device=DEVICE))).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(model.weight, before)
    assert scaler.get_scale() == 512.0
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 4, device=DEVICE)).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_same(model.weight.detach(), before.cpu() - 0.2, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_trains(dtype: torch.dtype) -> None:
    model = ConvNet().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = torch.randn(16, 1, 8, 8, device=DEVICE), integers(5, 16).to(DEVICE)
    losses = []
    for _ in range(3):
        with torch.autocast(DEVICE, dtype=dtype):
            output = model(x)
            loss = F.cross_entropy(output, y)
        assert output.dtype == dtype
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_dropout_training_repeats_under_a_seed() -> None:
    def run() -> list[float]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(12, 32), nn.Dropout(0.5), nn.Linear(32, 5)).to(DEVICE)
        x, y = torch.randn(16, 12), integers(5, 16)
        return train(model, OPTIMIZERS["sgd"](model.parameters()), x.to(DEVICE), y.to(DEVICE))

    assert run() == run()


def test_second_derivatives_agree_with_the_cpu() -> None:
    x, w = torch.randn(2, 2, 6, 6), torch.randn(3, 2, 3, 3)

    def penalty(device: str) -> Tensor:
        weight = w.to(device).requires_grad_()
        (gradient,) = torch.autograd.grad(
            F.conv2d(x.to(device), weight).tanh().sum(), weight, create_graph=True
        )
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    assert_same(penalty(DEVICE), penalty("cpu"), rtol=1e-4, atol=1e-4)


# ---- nested tensors -----------------------------------------------------------------------------


def nested_pair(*shapes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Returns the same nested tensor on the host and on the device."""
    parts = [torch.randn(shape) for shape in shapes or ((2, 6), (4, 6), (1, 6))]
    host, device = (torch.nested.nested_tensor(parts, device=device) for device in ("cpu", DEVICE))
    return host, device


def assert_same_parts(actual: Tensor, expected: Tensor) -> None:
    assert_same(actual.unbind(), expected.unbind(), rtol=1e-4, atol=1e-5)


def test_a_nested_tensor_is_padded() -> None:
    host, device = nested_pair()
    assert_same(device.to_padded_tensor(0.0), host.to_padded_tensor(0.0))
    assert_same(device.to_padded_tensor(7.0, (3, 5, 8)), host.to_padded_tensor(7.0, (3, 5, 8)))


def test_a_nested_tensor_is_made_from_a_padded_one() -> None:
    padded, sizes = torch.randn(3, 4, 6), torch.tensor([[2, 6], [4, 6], [1, 6]])
    assert_same_parts(
        torch._nested_from_padded(padded.to(DEVICE), sizes),
        torch._nested_from_padded(padded, sizes),
    )


def test_products_of_nested_tensors_agree_with_the_cpu() -> None:
    host, device = nested_pair()
    assert_same_parts(device @ device.transpose(1, 2), host @ host.transpose(1, 2))


def test_attention_of_nested_tensors_agrees_with_the_cpu() -> None:
    host, device = nested_pair((2, 3, 8), (2, 5, 8))
    assert_same_parts(
        F.scaled_dot_product_attention(device, device, device),
        F.scaled_dot_product_attention(host, host, host),
    )


def test_attention_of_many_heads_on_a_nested_tensor_agrees_with_the_cpu() -> None:
    host, device = nested_pair((3, 16), (5, 16))
    model = nn.MultiheadAttention(16, 4, batch_first=True).eval()
    with torch.no_grad():
        expected = model(host, host, host, need_weights=False)[0]
        model.to(DEVICE)
        assert_same_parts(model(device, device, device, need_weights=False)[0], expected)


def test_an_encoder_with_a_padding_mask_agrees_with_the_cpu() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    x, padding = torch.randn(3, 5, 16), torch.arange(5) >= torch.tensor([[3], [5], [1]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        actual = model.to(DEVICE)(x.to(DEVICE), src_key_padding_mask=padding.to(DEVICE))
    assert_same(actual, expected, rtol=1e-4, atol=1e-5)


# ---- attention over sequences of different lengths ----------------------------------------------

LENGTHS_Q, LENGTHS_K = [5, 1, 8], [5, 7, 3]


def offsets_of(lengths: list[int], device: str = DEVICE) -> Tensor:
    return torch.tensor([0, *lengths], device=device).cumsum(0).int()


def packed_inputs(dtype: torch.dtype, key_heads: int = 4) -> list[Tensor]:
    """Queries, keys, values of LENGTHS_Q and LENGTHS_K, and the gradient of the result."""
    shapes = [(sum(LENGTHS_Q), 4), *[(sum(LENGTHS_K), key_heads)] * 2, (sum(LENGTHS_Q), 4)]
    return [torch.randn(*shape, 16).to(dtype) for shape in shapes]


def attended(
    query: Tensor, key: Tensor, value: Tensor, left: int = -1, right: int = -1
) -> tuple[Tensor, Tensor]:
    """Each sequence for itself: results, and logarithms of the sums of their weights."""
    results, sums = [], []
    parts = zip(query.split(LENGTHS_Q), key.split(LENGTHS_K), value.split(LENGTHS_K), strict=True)
    for q, k, v in parts:
        q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (q, k, v))
        k, v = (each.repeat_interleave(q.size(1) // k.size(1), 1) for each in (k, v))
        distance = torch.arange(k.size(2)) - torch.arange(q.size(2))[:, None]
        distance = distance - (k.size(2) - q.size(2))
        mask = torch.ones_like(distance, dtype=torch.bool)
        if left >= 0:
            mask &= distance >= -left
        if right >= 0:
            mask &= distance <= right
        result = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        results.append(result.nan_to_num().squeeze(0).transpose(0, 1))
        scores = (q @ k.transpose(2, 3) * 16**-0.5).masked_fill(~mask, -torch.inf)
        sums.append(scores.logsumexp(-1).squeeze(0))
    whole = torch.cat(sums, 1)
    return torch.cat(results), whole.masked_fill(whole == -torch.inf, torch.inf)


@pytest.mark.parametrize("dtype", [torch.half, torch.bfloat16])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (2, 1)])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_attention_of_packed_sequences_is_that_of_each(
    dtype: torch.dtype, window: tuple[int, int], key_heads: int
) -> None:
    *inputs, gradient = packed_inputs(dtype, key_heads)
    host = [each.float().requires_grad_() for each in inputs]
    expected, expected_sums = attended(*host, *window)
    expected.backward(gradient.float())

    device = [each.to(DEVICE).requires_grad_() for each in inputs]
    options: dict[str, Any] = {"return_aux": varlen.AuxRequest(lse=True), "window_size": window}
    if key_heads != 4 and "enable_gqa" in inspect.signature(varlen.varlen_attn).parameters:
        options["enable_gqa"] = True
    actual, sums = varlen.varlen_attn(
        *device, offsets_of(LENGTHS_Q), offsets_of(LENGTHS_K), 8, 7, **options
    )
    actual.backward(gradient.to(DEVICE))
    assert actual.dtype == dtype
    # The inputs are exact; results are rounded once to 11 or 8 bits.
    near = {"rtol": 2e-3, "atol": 2e-3} if dtype == torch.half else {"rtol": 1e-2, "atol": 1e-2}
    assert_same(sums, expected_sums.detach(), rtol=1e-4, atol=1e-4)
    assert_same(actual.detach().float(), expected.detach(), **near)
    for one, other in zip(device, host, strict=True):
        assert one.grad is not None and one.grad.dtype == dtype
        assert_same(one.grad.float(), other.grad, **near)


def test_causal_attention_of_packed_sequences_to_themselves() -> None:
    query, key, value = (torch.randn(sum(LENGTHS_Q), 4, 16).half() for _ in range(3))
    parts = zip(*(each.float().split(LENGTHS_Q) for each in (query, key, value)), strict=True)
    expected = torch.cat([
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in part), is_causal=True)
        .transpose(0, 1) for part in parts
    ])  # fmt: skip
    device = [each.to(DEVICE) for each in (query, key, value)]
    offsets = offsets_of(LENGTHS_Q)
    actual = varlen.varlen_attn(*device, offsets, offsets, 8, 8, window_size=(-1, 0))
    assert_same(actual.float(), expected, rtol=2e-3, atol=2e-3)
    if hasattr(varlen, "varlen_attn_out"):  # newer versions of torch
        for window in ((-1, 0), (2, 1)):
            out = torch.empty_like(actual)
            varlen.varlen_attn_out(out, *device, offsets, offsets, 8, 8, window_size=window)
            whole = varlen.varlen_attn(*device, offsets, offsets, 8, 8, window_size=window)
            assert torch.equal(out, whole)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_without_offsets_is_the_dense_one(causal: bool) -> None:
    host = [torch.randn(2, 6, 4, 16).half().float().requires_grad_() for _ in range(3)]
    expected = F.scaled_dot_product_attention(
        *(each.transpose(1, 2) for each in host), is_causal=causal, scale=0.5
    ).transpose(1, 2)
    device = [each.detach().half().to(DEVICE).requires_grad_() for each in host]
    actual, sums, *_ = torch.ops.aten._flash_attention_forward(
        *device, None, None, 6, 6, 0.0, causal, False, scale=0.5
    )
    assert sums.shape == (2, 4, 6)
    assert_same(actual.detach().float(), expected.detach(), rtol=2e-3, atol=2e-3)
    gradient = torch.randn(2, 6, 4, 16).half()
    expected.backward(gradient.float())
    actual.backward(gradient.to(DEVICE))
    for one, other in zip(device, host, strict=True):
        assert_same(one.grad.float(), other.grad, rtol=4e-3, atol=4e-3)


def test_keys_beyond_the_used_ones_do_not_count() -> None:
    query, key, value, _ = (each.to(DEVICE) for each in packed_inputs(torch.half))

    def attend(used: list[int] | None) -> Tensor:
        result: Tensor = torch.ops.aten._flash_attention_forward(
            query, key, value, offsets_of(LENGTHS_Q), offsets_of(LENGTHS_K), 8, 7, 0.0, False,
            False, seqused_k=None if used is None else torch.tensor(used, device=DEVICE).int(),
        )[0]  # fmt: skip
        return result

    whole, some = attend(None), attend([5, 1, 3])
    assert_same(some[:5], whole[:5].cpu())
    assert_same(some[5:6], value[5:6].cpu())  # one key has all the weight
    assert_same(some[6:], whole[6:].cpu())


def test_flash_attention_is_captured() -> None:
    query, key, value, _ = (each.to(DEVICE) for each in packed_inputs(torch.half))
    offsets = [offsets_of(LENGTHS_Q), offsets_of(LENGTHS_K)]

    def run() -> Tensor:
        result: Tensor = torch.ops.aten._flash_attention_forward(
            query, key, value, *offsets, 8, 7, 0.0, True, False
        )[0]
        return result

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    query.copy_(torch.randn(query.shape))
    graph.replay()
    assert torch.equal(captured, run())


FLASH_REFUSALS: dict[str, tuple[str, dict[str, Any]]] = {
    "float": ("accepts the dtypes fp16 and bf16", {"query": torch.float}),
    "long offsets": ("offsets of sequences must have type int32", {"offsets": torch.long}),
    "dropout": ("with dropout is not available on the simulated device", {"dropout": 0.5}),
    "alibi": ("with alibi_slopes is not available on the simulated device", {"alibi": True}),
}


@pytest.mark.parametrize(("message", "change"), FLASH_REFUSALS.values(), ids=FLASH_REFUSALS.keys())
def test_flash_attention_refuses_by_name(message: str, change: dict[str, Any]) -> None:
    query, key, value, _ = (each.to(DEVICE) for each in packed_inputs(torch.half))
    with pytest.raises(RuntimeError, match=message):
        torch.ops.aten._flash_attention_forward(
            query.to(change.get("query", torch.half)), key, value,
            offsets_of(LENGTHS_Q).to(change.get("offsets", torch.int)), offsets_of(LENGTHS_K),
            8, 7, change.get("dropout", 0.0), False, False,
            alibi_slopes=torch.ones(4, device=DEVICE) if "alibi" in change else None,
        )  # fmt: skip


# ---- sparse tensors -----------------------------------------------------------------------------


def sparse_pair() -> tuple[Tensor, Tensor]:
    """Returns the same uncoalesced matrix of rows on the host and on the device."""
    indices = torch.tensor([[3, 0, 3, 5, 0]])
    host = torch.sparse_coo_tensor(indices, torch.randn(5, 4), (6, 4))
    return host, host.to(DEVICE)


def assert_same_bits(actual: Any, expected: Any) -> None:
    assert actual.device.type == DEVICE
    assert actual.layout == expected.layout
    if expected.layout == torch.sparse_coo:
        assert actual.is_coalesced() == expected.is_coalesced()
        assert_same_bits(actual._indices(), expected._indices())
        assert_same_bits(actual._values(), expected._values())
    else:
        assert torch.equal(actual.cpu(), expected)


def added_to_dense(sparse: Tensor) -> Tensor:
    dense = torch.linspace(-1, 1, 24, device=sparse.device).view(6, 4)
    return dense.add(sparse, alpha=0.5).add_(sparse)


def written_in_place(sparse: Tensor) -> Tensor:
    kept = sparse.clone()
    result = kept.mul_(3).add_(sparse).div_(2)
    assert result is kept
    return kept


def written_to_an_output(sparse: Tensor) -> Tensor:
    out = torch.zeros(1, 4, device=sparse.device).to_sparse(1)
    result: Tensor = torch.add(sparse, sparse, alpha=2, out=out)
    assert result is out
    return out


def of_two_dimensions(sparse: Tensor) -> Tensor:
    return sparse.to_dense().relu().to_sparse()


def masked_by(sparse: Tensor) -> Tensor:
    dense = torch.arange(24.0, device=sparse.device).view(6, 4)
    return dense.sparse_mask(sparse.coalesce())


SPARSE_PROGRAMS: dict[str, Callable[[Tensor], Tensor]] = {
    "coalesce": lambda x: x.coalesce(),
    "add": lambda x: x + x.coalesce(),
    "add_dense": added_to_dense,
    "in_place": written_in_place,
    "out": written_to_an_output,
    "scaled": lambda x: x.coalesce() * 0.3,
    "pow_sqrt": lambda x: x.coalesce().pow(2).sqrt(),
    "mul": lambda x: x * x,
    "sum": lambda x: torch.sparse.sum(x, 0),
    "sum_all": lambda x: x.sum(),
    "norm": lambda x: x.norm(),
    "sparse_mask": masked_by,
    "from_dense": of_two_dimensions,
    "product": lambda x: torch.sparse.mm(of_two_dimensions(x), torch.ones(4, 2, device=x.device)),
    "sparse_product": lambda x: torch.sparse.mm(of_two_dimensions(x), of_two_dimensions(x).t()),
    "softmax": lambda x: torch.sparse.softmax(of_two_dimensions(x), 1),
    "rows": lambda x: x.index_select(0, torch.tensor([5, 3], device=x.device)),
    "cat": lambda x: torch.cat([x, x]),
    "transposed": lambda x: of_two_dimensions(x).t(),
    "zeroed": lambda x: x.clone().zero_(),
    "half": lambda x: x.half().coalesce(),
}


@pytest.mark.parametrize("program", SPARSE_PROGRAMS.values(), ids=SPARSE_PROGRAMS.keys())
def test_sparse_operators_give_the_bits_of_the_cpu(program: Callable[[Tensor], Tensor]) -> None:
    host, device = sparse_pair()
    assert_same_bits(program(device), program(host))
    assert_same_bits(device, host)


SPARSE_OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SparseAdam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.1),
    "SparseAdam_maximize": lambda p: torch.optim.SparseAdam(p, lr=0.1, maximize=True),
    "Adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, foreach=False),
    "Adagrad_foreach": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1, foreach=True),
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=0.1, foreach=False),
    "SGD_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("kind", ["Embedding", "EmbeddingBag"])
@pytest.mark.parametrize("optimizer", SPARSE_OPTIMIZERS.values(), ids=SPARSE_OPTIMIZERS.keys())
def test_training_with_sparse_gradients_gives_the_bits_of_the_cpu(
    kind: str, optimizer: Callable[[Any], torch.optim.Optimizer]
) -> None:
    made = {
        "Embedding": lambda: nn.Embedding(20, 4, sparse=True),
        "EmbeddingBag": lambda: nn.EmbeddingBag(20, 4, mode="sum", sparse=True),
    }
    host = made[kind]()
    device = copy.deepcopy(host).to(DEVICE)
    start = host.weight.detach().clone()
    batches = [torch.randint(20, (3, 4)) for _ in range(4)]
    for table in (host, device):
        step = optimizer(table.parameters())
        for batch in batches:
            step.zero_grad()
            for part in batch.split([1, 2]):  # the gradients of two backward passes are added
                table(part.to(table.weight.device)).square().sum().backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            step.step()
    assert not torch.equal(host.weight, start)
    assert_same_bits(device.weight.detach(), host.weight.detach())


def test_a_graph_of_sparse_tensors_is_refused_by_name() -> None:
    sparse = sparse_pair()[1]
    dense = torch.zeros(6, 4, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with (
        pytest.raises(NotImplementedError, match="graphs of sparse tensors are not available"),
        torch.cuda.graph(graph),
    ):
        dense.add_(sparse)


# ---- compiled and profiled programs -------------------------------------------------------------


def test_a_scripted_function_runs_unfused() -> None:
    @torch.jit.script
    def run(x: Tensor) -> Tensor:
        return x * 2 + x.sigmoid()

    x = torch.randn(4, 6)
    for _ in range(4):  # the third call would be compiled
        assert_same(run(x.to(DEVICE)), x * 2 + x.sigmoid())


def test_the_profiler_records_the_host() -> None:
    x = torch.ones(3, device=DEVICE)
    with torch.profiler.profile() as profile:
        x.sum()
    assert "aten::sum" in {event.key for event in profile.key_averages()}


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "run",
    [
        lambda x: x.to(DEVICE) + x,
        lambda x: x.to(DEVICE) @ x,
        lambda x: torch.cat([x.to(DEVICE), x]),
        lambda x: F.linear(x.to(DEVICE), x),
    ],
    ids=["add", "mm", "cat", "linear"],
)
def test_mixed_devices_are_refused(run: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        run(torch.randn(4, 4))


def test_shape_errors_are_those_of_the_cpu() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.randn(2, 3, device=DEVICE) @ torch.randn(2, 3, device=DEVICE)


COMPRESSED: dict[str, Callable[[], Any]] = {
    "csr_product": lambda: (
        torch.sparse_csr_tensor(
            torch.tensor([0, 1, 3], device=DEVICE),
            torch.tensor([2, 0, 2], device=DEVICE),
            torch.tensor([1.0, 2.0, 3.0], device=DEVICE),
            (2, 3),
        )
        @ torch.ones(3, 2, device=DEVICE)
    ),
    "dense_to_csr": lambda: torch.eye(3, device=DEVICE).to_sparse_csr() @ torch.eye(3).cuda(),
    "coo_to_csr": lambda: of_two_dimensions(sparse_pair()[1]).to_sparse_csr(),
}


@pytest.mark.parametrize("run", COMPRESSED.values(), ids=COMPRESSED.keys())
def test_compressed_sparse_tensors_are_refused_by_name(run: Callable[[], Any]) -> None:
    with pytest.raises(
        NotImplementedError,
        match="compressed sparse tensors are not available on the simulated device, "
        "which accepts strided and COO tensors",
    ):
        run()


def test_a_wrong_call_of_a_sparse_operator_keeps_its_error() -> None:
    sparse = sparse_pair()[1]
    assert sparse._nnz() == 5
    with pytest.raises(RuntimeError, match="Cannot get indices on an uncoalesced tensor"):
        sparse.indices()


def test_work_on_another_stream() -> None:
    stream = torch.cuda.Stream()
    x = torch.ones(1000, device=DEVICE)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        y = x * 2
    torch.cuda.current_stream().wait_stream(stream)
    assert y.sum().item() == 2000


# Each product with half operands: computed in float and rounded once, as tensor cores do.
HALF_PRODUCTS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "mm": (torch.mm, [(70, 90), (90, 50)]),
    "bmm": (torch.bmm, [(3, 70, 90), (3, 90, 50)]),
    "addmm": (torch.addmm, [(50,), (70, 90), (90, 50)]),
    "baddbmm": (torch.baddbmm, [(3, 70, 50), (3, 70, 90), (3, 90, 50)]),
    "linear": (F.linear, [(70, 90), (50, 90), (50,)]),
    "conv1d": (F.conv1d, [(2, 8, 40), (8, 8, 3)]),
    "conv2d": (F.conv2d, [(2, 8, 20, 20), (8, 8, 3, 3)]),
    "conv_transpose2d": (F.conv_transpose2d, [(2, 8, 20, 20), (8, 8, 3, 3)]),
}


@pytest.mark.parametrize("name", list(HALF_PRODUCTS))
def test_half_products_are_rounded_once(name: str) -> None:
    function, shapes = HALF_PRODUCTS[name]
    halves = [torch.randn(shape).half() for shape in shapes]
    wanted = function(*(half.float() for half in halves)).half()
    found = function(*(half.to(DEVICE) for half in halves))
    assert found.dtype == torch.half
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-3, atol=1e-3)


def test_half_products_write_to_their_outputs() -> None:
    left, right = torch.randn(70, 90).half(), torch.randn(90, 50).half()
    wanted = (left.float() @ right.float()).half()
    out = torch.empty(0, dtype=torch.half, device=DEVICE)
    given = torch.mm(left.to(DEVICE), right.to(DEVICE), out=out)
    assert given is out
    torch.testing.assert_close(out.cpu(), wanted, rtol=1e-3, atol=1e-3)
    base = torch.ones(70, 50, dtype=torch.half, device=DEVICE)
    kept = base.addmm_(left.to(DEVICE), right.to(DEVICE))
    assert kept is base
    torch.testing.assert_close(base.cpu(), wanted + 1, rtol=1e-2, atol=1e-2)


def test_half_gradients_of_a_convolution() -> None:
    layer = nn.Conv2d(4, 4, 3).to(DEVICE).half()
    layer(torch.randn(2, 4, 8, 8, device=DEVICE).half()).float().sum().backward()
    same = nn.Conv2d(4, 4, 3).to(DEVICE)
    assert layer.weight.grad is not None
    assert layer.weight.grad.dtype == torch.half
    assert layer.weight.grad.isfinite().all()
    assert layer.weight.grad.shape == same.weight.shape


@pytest.mark.parametrize("name", ["addmm", "baddbmm"])
def test_products_with_an_output_type(name: str) -> None:
    function, shapes = HALF_PRODUCTS[name]
    halves = [torch.randn(shape).half() for shape in shapes]
    on_device = [half.to(DEVICE) for half in halves]
    found = function(*on_device, out_dtype=torch.float)
    assert found.dtype == torch.float
    wanted = function(*(half.float() for half in halves))
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(HALF_PRODUCTS))
def test_operands_of_two_types_are_refused(name: str) -> None:
    function, shapes = HALF_PRODUCTS[name]
    operands = [torch.randn(shape).half().to(DEVICE) for shape in shapes]
    operands[-1] = operands[-1].float()
    with pytest.raises(RuntimeError, match=r"type|dtype"):
        function(*operands)


@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
def test_outputs_with_a_type_of_their_own(name: str) -> None:
    function, shapes = HALF_PRODUCTS[name]
    operands = [torch.randn(shape).half().to(DEVICE) for shape in shapes]
    out = torch.empty(0, device=DEVICE)
    assert function(*operands, out_dtype=torch.float, out=out) is out
    torch.testing.assert_close(out, function(*operands, out_dtype=torch.float))
    for wrong in (torch.double, torch.int, torch.bfloat16):
        with pytest.raises(RuntimeError, match="out_dtype must be the same as input dtype"):
            function(*operands, out_dtype=wrong)


@pytest.mark.parametrize("dtype", [torch.float, torch.half, torch.double])
def test_the_parts_of_a_batch_norm_over_processes_make_the_whole(dtype: torch.dtype) -> None:
    """As SyncBatchNorm calls them, with the samples of two processes of unequal sizes."""
    double = torch.double
    whole = torch.randn(7, 3, 4, 5, dtype=double).to(dtype)
    weight, bias = torch.rand(3) + 0.5, torch.randn(3)
    gradient = torch.randn(7, 3, 4, 5, dtype=double).to(dtype)
    norm = nn.BatchNorm2d(3, momentum=0.2, dtype=double)
    with torch.no_grad():
        norm.weight.copy_(weight)
        norm.bias.copy_(bias)
    x = whole.to(double).requires_grad_()
    expected = norm(x)
    expected.backward(gradient.to(double))

    parts = [each.to(DEVICE) for each in whole.split([2, 5])]
    gradients = [each.to(DEVICE) for each in gradient.split([2, 5])]
    stats = [torch.batch_norm_stats(each, 1e-5) for each in parts]
    running_mean, running_var = torch.zeros(3, device=DEVICE), torch.ones(3, device=DEVICE)
    counts = torch.tensor([[40.0], [100.0]], device=DEVICE)
    mean, invstd = torch.batch_norm_gather_stats_with_counts(
        parts[0], torch.stack([each[0] for each in stats]), torch.stack([s[1] for s in stats]),
        running_mean, running_var, 0.2, 1e-5, counts,
    )  # fmt: skip
    near = {"rtol": 2e-3, "atol": 4e-3} if dtype == torch.half else {"rtol": 1e-4, "atol": 1e-5}

    def assert_near(value: Tensor, wanted: Tensor | None) -> None:
        assert wanted is not None
        torch.testing.assert_close(value.cpu().to(double), wanted.to(double), **near)

    assert norm.running_mean is not None and norm.running_var is not None
    assert_near(running_mean, norm.running_mean)
    assert_near(running_var, norm.running_var)
    scale, shift = weight.to(DEVICE), bias.to(DEVICE)
    outputs = [torch.batch_norm_elemt(each, scale, shift, mean, invstd, 1e-5) for each in parts]
    assert all(each.dtype == dtype for each in outputs)
    assert_near(torch.cat(outputs), expected.detach())
    reduced = [
        torch.batch_norm_backward_reduce(g, each, mean, invstd, scale, True, True, True)
        for g, each in zip(gradients, parts, strict=True)
    ]
    sum_dy, product, grad_weight, grad_bias = (sum(column) for column in zip(*reduced, strict=True))
    assert_near(grad_weight, norm.weight.grad)
    assert_near(grad_bias, norm.bias.grad)
    grads = [
        torch.batch_norm_backward_elemt(
            g, each, mean, invstd, scale, sum_dy, product, counts.view(-1).to(torch.int)
        )
        for g, each in zip(gradients, parts, strict=True)
    ]
    assert_near(torch.cat(grads), x.grad)


def test_parts_of_a_batch_norm_with_one_count_and_running_statistics() -> None:
    x = torch.randn(6, 2, 3, device=DEVICE)
    mean, var = torch.batch_norm_update_stats(x, None, None, 0.1)
    torch.testing.assert_close(mean, x.mean((0, 2)))
    torch.testing.assert_close(var, x.var((0, 2), correction=0))
    means, invstds = (torch.stack([each, each]) for each in torch.batch_norm_stats(x, 1e-5))
    both = torch.batch_norm_gather_stats(x, means, invstds, None, None, 0.1, 1e-5, 18)
    torch.testing.assert_close(both, torch.batch_norm_stats(x, 1e-5))


@pytest.mark.parametrize("name", ["rfft", "fft", "ifft", "irfft", "hfft", "rfft2", "irfft2"])
def test_a_transform_of_half_is_that_of_float_rounded(name: str) -> None:
    x = torch.randn(8, 16).half()
    if "irfft" in name or name in ("fft", "ifft", "hfft"):
        x = torch.complex(x.float(), torch.randn(8, 16)).to(torch.complex32)
    function = getattr(torch.fft, name)
    got = function(x.to(DEVICE))
    wanted = function(x.to(torch.complex64 if x.is_complex() else torch.float))
    assert got.dtype == (torch.complex32 if wanted.is_complex() else torch.half)
    torch.testing.assert_close(
        got.cpu().to(wanted.dtype), wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max())
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_a_histogram_of_integers_has_their_type(dtype: torch.dtype) -> None:
    x = torch.tensor([0, 1, 1, 2, 3, 7, 9], dtype=dtype, device=DEVICE)
    assert torch.histc(x, bins=5, min=0, max=10).cpu().tolist() == [3, 2, 0, 1, 1]
    assert torch.histc(x, bins=5, min=0, max=10).dtype == dtype
