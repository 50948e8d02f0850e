"""CUDA graphs on the simulated device: a replay gives the same bits as an eager run of the same
program, and a capture has no other effect.

Runs inside a process that is on the simulated device already:

    uvmalloc sim -- python -m pytest tests/sim/torch_operators
"""

from __future__ import annotations

import copy
import ctypes
import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

DEVICE = "cuda"
MIB = 1 << 20


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(20240501)
    yield
    gc.collect()
    torch.cuda.synchronize()


def warm_up(run: Callable[[], Any]) -> None:
    """Runs on a separate stream, as PyTorch's documentation requires before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)


def capture(run: Callable[[], Any], **options: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **options):
        result = run()
    return graph, result


def assert_identical(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype
    assert torch.equal(actual, expected)


# ---- the effects of a capture -------------------------------------------------------------------


def test_a_capture_changes_nothing_in_memory() -> None:
    x = torch.arange(6.0, device=DEVICE)
    before = x.clone()
    graph, result = capture(lambda: x.mul_(2) + 1)
    assert_identical(x, before)
    assert not torch.equal(result, before * 2 + 1), "the result appeared without a replay"
    graph.replay()
    assert_identical(x, before * 2)
    assert_identical(result, before * 2 + 1)


def test_a_stream_tells_that_it_is_being_captured() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    x = torch.zeros(1, device=DEVICE)
    _, seen = capture(lambda: (x.add_(1), torch.cuda.is_current_stream_capturing()))
    assert seen[1]
    assert not torch.cuda.is_current_stream_capturing()


def test_captured_operators_see_what_earlier_ones_would_have_made() -> None:
    # Indices that one operator of a capture computes must be in range when the next is tried out.
    table = torch.randn(50, 4, device=DEVICE)
    scores = torch.randn(7, 50, device=DEVICE)
    offset = torch.full((7,), 3, device=DEVICE)

    def run() -> Tensor:
        index = scores.argmax(1)
        index.add_(offset).remainder_(50)
        return F.embedding(index, table).cumsum(0)

    expected = run()
    graph, result = capture(run)
    graph.replay()
    assert_identical(result, expected)
    scores.copy_(torch.randn(7, 50))
    graph.replay()
    assert_identical(result, run())


def test_a_capture_looks_at_no_memory_that_an_earlier_capture_would_have_written() -> None:
    # As in make_graphed_callables, forward and backward are captured before either is launched, in
    # a pool with arbitrary bytes in its memory.
    images = torch.randn(2, 3, 16, 16, device=DEVICE, requires_grad=True)
    table = torch.randn(64, 100, device=DEVICE, requires_grad=True)
    pool = torch.cuda.graph_pool_handle()
    dirty, garbage = capture(
        lambda: [torch.full((size,), 1 << 60, device=DEVICE) for size in (6400, 6400, 384, 64)],
        pool=pool,
    )
    dirty.replay()
    del garbage

    def forward() -> Tensor:
        chosen = torch.arange(64, device=DEVICE).view(-1, 1).repeat(1, 100)
        return torch.gather(table, 0, chosen).sum() + F.max_pool2d(images, 2).sum()

    first, result = capture(forward, pool=pool)
    second, gradients = capture(lambda: torch.autograd.grad(result, (table, images)), pool=pool)
    first.replay()
    second.replay()
    expected = torch.autograd.grad(forward(), (table, images))
    for one, other in zip(gradients, expected, strict=True):
        assert_identical(one, other)


def test_an_operator_that_refuses_zeros_is_captured() -> None:
    divisors = torch.full((4,), 2, device=DEVICE)
    graph, quotient = capture(lambda: torch.arange(8, 12, device=DEVICE) // divisors)
    graph.replay()
    assert quotient.tolist() == [4, 4, 5, 5]
    weights = torch.tensor([0.0, 0.0, 1.0], device=DEVICE)
    graph, drawn = capture(lambda: torch.multinomial(weights, 5, replacement=True))
    graph.replay()
    assert drawn.tolist() == [2, 2, 2, 2, 2]


# ---- replays agree with eager runs --------------------------------------------------------------


def layers(x: Tensor) -> Tensor:
    weight = torch.linspace(-1, 1, 48, device=x.device).view(6, 8)
    hidden = F.gelu(F.layer_norm(x @ weight, (8,)))
    return torch.cat([hidden.softmax(-1), hidden.sort(-1)[0]], 1)


def in_place_and_views(x: Tensor) -> Tensor:
    y = x.clone()
    y.t()[1].zero_()
    y[:, ::2] += 2
    y.view(-1).narrow(0, 3, 5).mul_(-1)
    return y


def out_variants(x: Tensor) -> Tensor:
    out = torch.empty(4, 4, device=x.device)
    torch.mm(x, x.t(), out=out)
    grown = torch.empty(0, device=x.device)
    torch.mul(out, 3, out=grown)
    return grown


def several_results(x: Tensor) -> Tensor:
    values, indices = x.topk(3, 1)
    var, mean = torch.var_mean(x, 1)
    return torch.cat([values, indices.float(), var[:, None], mean[:, None]], 1)


def foreach(x: Tensor) -> Tensor:
    parts = [part.clone() for part in x.unbind(0)]
    torch._foreach_mul_(parts, 0.5)
    torch._foreach_add_(parts, parts, alpha=3)
    return torch.stack(torch._foreach_sqrt(torch._foreach_abs(parts)))


def strided_and_converting_copies(x: Tensor) -> Tensor:
    y = torch.zeros(6, 4, dtype=torch.float64, device=x.device)
    y.copy_(x.t())
    y[::2] = x.t()[::2].half()
    return y.to(torch.bfloat16)


def complex_numbers(x: Tensor) -> Tensor:
    z = torch.complex(x, x.flip(1))
    return torch.view_as_real(z.conj() * z + torch.fft.fft(x))


PROGRAMS = [
    layers, in_place_and_views, out_variants, several_results, foreach,
    strided_and_converting_copies, complex_numbers,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_replays_follow_their_inputs(program: Callable[[Tensor], Tensor]) -> None:
    x = torch.randn(4, 6, device=DEVICE)
    warm_up(lambda: program(x))
    graph, result = capture(lambda: program(x))
    for _ in range(3):
        x.copy_(torch.randn(4, 6))
        graph.replay()
        assert_identical(result, program(x))


def test_host_scalars_keep_the_value_they_had() -> None:
    x = torch.ones(3, device=DEVICE)
    scalar = torch.tensor(5.0)
    graph, result = capture(lambda: x * scalar)
    scalar.fill_(9)
    graph.replay()
    assert result.tolist() == [5, 5, 5]


def test_a_graph_is_launched_on_any_stream() -> None:
    x = torch.ones(3, device=DEVICE)
    graph, _ = capture(lambda: x.add_(1))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.replay()
    torch.cuda.current_stream().wait_stream(stream)
    graph.replay()
    assert x.tolist() == [3, 3, 3]


def test_forked_streams_are_part_of_the_graph() -> None:
    x = torch.randn(5, device=DEVICE)
    side = torch.cuda.Stream()

    def run() -> Tensor:
        main = torch.cuda.current_stream()
        left = x * 2
        side.wait_stream(main)
        with torch.cuda.stream(side):
            right = x.exp()
        y = left + 1
        main.wait_stream(side)
        return y + right

    graph, result = capture(run)
    x.copy_(torch.randn(5))
    graph.replay()
    assert_identical(result, x * 2 + 1 + x.exp())


# ---- copies between host and device -------------------------------------------------------------


def test_copies_from_and_to_pinned_memory_happen_at_each_replay() -> None:
    source = torch.arange(4.0).pin_memory()
    target = torch.zeros(4).pin_memory()
    x = torch.zeros(4, device=DEVICE)

    def run() -> None:
        x.copy_(source, non_blocking=True)
        x.mul_(2)
        target.copy_(x, non_blocking=True)

    graph, _ = capture(run)
    assert target.tolist() == [0, 0, 0, 0]
    graph.replay()
    torch.cuda.synchronize()
    assert target.tolist() == [0, 2, 4, 6]
    source.fill_(5)
    graph.replay()
    torch.cuda.synchronize()
    assert target.tolist() == [10, 10, 10, 10]


def test_a_copied_index_is_in_range_while_it_is_captured() -> None:
    table = torch.randn(3, 2, device=DEVICE)
    chosen = torch.tensor([2, 0]).pin_memory()
    index = torch.full((2,), 1 << 40, device=DEVICE)
    graph, result = capture(lambda: F.embedding(index.copy_(chosen, non_blocking=True), table))
    graph.replay()
    assert_identical(result, table[[2, 0]])


# ---- random numbers -----------------------------------------------------------------------------

DRAWS: dict[str, Callable[[], Tensor]] = {
    "randn": lambda: torch.randn(100, device=DEVICE),
    "uniform": lambda: torch.empty(100, device=DEVICE).uniform_(),
    "dropout": lambda: F.dropout(torch.ones(100, device=DEVICE), 0.5),
    "two": lambda: torch.stack([torch.rand(100, device=DEVICE), torch.rand(100, device=DEVICE)]),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_replays_draw_the_numbers_that_eager_runs_would(draw: Callable[[], Tensor]) -> None:
    graph, result = capture(draw)
    torch.manual_seed(7)
    eager = [draw() for _ in range(3)]
    torch.manual_seed(7)
    replayed = []
    for _ in range(3):
        graph.replay()
        replayed.append(result.clone())
    for one, other in zip(replayed, eager, strict=True):
        assert_identical(one, other)
    assert not torch.equal(replayed[0], replayed[1])
    assert_identical(draw(), [torch.manual_seed(7), *(draw() for _ in range(4))][-1])


def test_a_registered_generator_is_part_of_the_graph() -> None:
    generator = torch.Generator(DEVICE).manual_seed(3)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        result = torch.randn(10, generator=generator, device=DEVICE)
    generator.manual_seed(4)
    graph.replay()
    first = result.clone()
    graph.replay()
    generator.manual_seed(4)
    assert_identical(first, torch.randn(10, generator=generator, device=DEVICE))
    assert_identical(result, torch.randn(10, generator=generator, device=DEVICE))


# ---- memory -------------------------------------------------------------------------------------


def test_a_graph_reuses_the_memory_of_its_intermediates() -> None:
    x = torch.randn(MIB, device=DEVICE)

    def run() -> Tensor:
        y = x
        for _ in range(20):
            y = y + 1
        return y

    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, result = capture(run)
    assert torch.cuda.memory_reserved() - before < 10 * x.nbytes, "20 results of 4 MiB each"
    graph.replay()
    assert_identical(result, run())


def test_graphs_share_a_pool() -> None:
    pool = torch.cuda.graph_pool_handle()
    x = torch.randn(1000, device=DEVICE)
    first, middle = capture(lambda: x * 2, pool=pool)
    second, result = capture(lambda: middle + 1, pool=pool)
    third, last = capture(lambda: result.exp(), pool=first.pool())
    for _ in range(2):
        x.copy_(torch.randn(1000))
        for graph in (first, second, third):
            graph.replay()
        assert_identical(last, (x * 2 + 1).exp())


def test_a_graph_that_is_gone_gives_its_memory_back() -> None:
    x = torch.randn(MIB, device=DEVICE)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, result = capture(lambda: x + 1)
    graph.replay()
    torch.cuda.synchronize()
    del result, graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == before


# ---- autograd and training ----------------------------------------------------------------------


def test_a_backward_pass_is_captured() -> None:
    weight = torch.randn(6, 5, device=DEVICE, requires_grad=True)
    x = torch.randn(4, 6, device=DEVICE)

    def gradient() -> Tensor:
        (found,) = torch.autograd.grad((x @ weight).tanh().square().sum(), weight)
        return found

    warm_up(gradient)
    graph, result = capture(gradient)
    x.copy_(torch.randn(4, 6))
    graph.replay()
    assert_identical(result, gradient())


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.output = nn.Linear(16, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.output(self.encode(self.embed(tokens)))


class Training:
    """A training step with tensors that stay at their addresses."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> None:
        self.model, self.optimizer = model, optimizer
        self.tokens = torch.zeros_like(batch)

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=True)
        scores = self.model(self.tokens[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), self.tokens[:, 1:].flatten())
        loss.backward()
        self.optimizer.step()
        return loss


def test_a_captured_training_step_of_a_transformer_trains_as_the_eager_one() -> None:
    # Each token is the token before it plus one, modulo 11.
    starts = torch.randint(11, (23, 4, 1), device=DEVICE)
    batches = (starts + torch.arange(9, device=DEVICE)) % 11
    start = Transformer().to(DEVICE)

    def training() -> Training:
        model = copy.deepcopy(start)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)
        return Training(model, optimizer, batches[0])

    def warm(trained: Training) -> None:
        for batch in batches[:3]:
            trained.tokens.copy_(batch)
            trained.step()

    eager = training()
    torch.manual_seed(5)
    warm(eager)
    expected = []
    for batch in batches[3:]:
        eager.tokens.copy_(batch)
        expected.append(eager.step().item())

    graphed = training()
    torch.manual_seed(5)
    warm_up(lambda: warm(graphed))
    graph, loss = capture(graphed.step)
    losses = []
    for batch in batches[3:]:
        graphed.tokens.copy_(batch)
        graph.replay()
        losses.append(loss.item())

    assert len(losses) == 20
    assert losses == expected
    assert losses[-1] < losses[0]
    for one, other in zip(graphed.model.parameters(), eager.model.parameters(), strict=True):
        assert_identical(one.detach(), other.detach())


def test_graphed_callables_train_as_plain_ones() -> None:
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(DEVICE)
    graphed = torch.cuda.make_graphed_callables(
        copy.deepcopy(plain), (torch.randn(5, 6, device=DEVICE),)
    )
    for _ in range(3):
        x = torch.randn(5, 6, device=DEVICE)
        results = []
        for model in (plain, graphed):
            model.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
            results.append([parameter.detach().clone() for parameter in model.parameters()])
        for one, other in zip(*results, strict=True):
            assert_identical(one, other)


def test_a_compiled_model_runs_in_a_tree_of_graphs() -> None:
    launches = ctypes.CDLL("libuvmsim.so").uvmsim_call_count
    launches.restype = ctypes.c_uint64
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).to(DEVICE)
    compiled = torch.compile(model, backend="cudagraphs")
    before = launches(b"cudaGraphLaunch")
    for _ in range(5):
        torch.compiler.cudagraph_mark_step_begin()
        x = torch.randn(3, 8, device=DEVICE)
        results = []
        for run in (compiled, model):
            model.zero_grad(set_to_none=True)
            y = run(x)
            y.square().sum().backward()
            results.append([y.detach().clone()] + [p.grad.clone() for p in model.parameters()])
        for one, other in zip(*results, strict=True):
            assert_identical(one, other)
    assert launches(b"cudaGraphLaunch") > before


# ---- errors -------------------------------------------------------------------------------------

FORBIDDEN: dict[str, Callable[[Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream_synchronize": lambda x: torch.cuda.current_stream().synchronize(),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("run", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_what_waits_for_the_device_fails_the_capture_only(run: Callable[[Tensor], Any]) -> None:
    x = torch.arange(-2.0, 3.0, device=DEVICE)
    refusals: list[str] = []

    def attempt() -> None:
        x.add_(1)
        try:
            run(x)
        except RuntimeError as refusal:
            refusals.append(str(refusal))

    with pytest.raises(RuntimeError, match="previous error during capture"):
        capture(attempt)
    assert refusals and "not permitted when stream is capturing" in refusals[0]
    assert not torch.cuda.is_current_stream_capturing()
    torch.cuda.synchronize()
    assert x.tolist() == [-2, -1, 0, 1, 2]
    graph, result = capture(lambda: x * 2)
    graph.replay()
    assert result.tolist() == [-4, -2, 0, 2, 4]


PAGEABLE_COPIES: dict[str, Callable[[Tensor], Tensor]] = {
    "to_device": lambda x: x.copy_(torch.ones(4), non_blocking=True),
    "to_host": lambda x: x.cpu(),
}


@pytest.mark.parametrize("run", PAGEABLE_COPIES.values(), ids=PAGEABLE_COPIES.keys())
def test_a_copy_of_memory_that_is_not_pinned_is_refused(run: Callable[[Tensor], Tensor]) -> None:
    x = torch.zeros(4, device=DEVICE)
    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        capture(lambda: run(x))
    assert (x + 1).tolist() == [1, 1, 1, 1]


def test_a_wait_of_another_thread_depends_on_the_mode() -> None:
    refusals: list[str] = []

    def wait(stream: torch.cuda.Stream) -> None:
        try:
            stream.synchronize()
        except RuntimeError as refusal:
            refusals.append(str(refusal))

    def run_beside(mode: str) -> None:
        x = torch.zeros(4, device=DEVICE)

        def run() -> None:
            x.add_(1)
            other = threading.Thread(target=wait, args=(torch.cuda.Stream(),))
            other.start()
            other.join()
            x.add_(1)

        graph, _ = capture(run, capture_error_mode=mode)
        graph.replay()
        assert x.tolist() == [2, 2, 2, 2]

    run_beside("thread_local")
    with pytest.raises(RuntimeError, match="previous error during capture"):
        run_beside("global")
    assert refusals and "not permitted when stream is capturing" in refusals[0]
    run_beside("thread_local")


def test_an_operator_that_fails_at_a_replay_fails_the_launch(
    capfd: pytest.CaptureFixture[str],
) -> None:
    table = torch.randn(3, 2, device=DEVICE)
    index = torch.zeros(2, dtype=torch.long, device=DEVICE)
    graph, result = capture(lambda: F.embedding(index, table))
    index.fill_(99)
    with pytest.raises(RuntimeError, match="launch failure"):
        graph.replay()
    assert (
        "uvmsim: aten::index_select failed in the launch of a CUDA graph: "
        "index out of range in self\n" in capfd.readouterr().err
    )
    index.fill_(1)
    graph.replay()
    assert_identical(result, table[[1, 1]])


def test_a_graph_that_is_kept_is_instantiated_by_hand() -> None:
    x = torch.zeros(4, device=DEVICE)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        x.add_(1).mul_(2)
    assert graph.raw_cuda_graph() != 0
    graph.instantiate()
    graph.replay()
    graph.instantiate()
    graph.replay()
    assert x.tolist() == [6, 6, 6, 6]
