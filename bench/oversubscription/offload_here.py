"""Runs a stack of layers whose weights are on the host, and prints the figures of each step.

`python -m bench.oversubscription.offload_here WAY RESIDENT STEPS` under `uvmalloc sim --native`.
RESIDENT layers keep their weights on the device. The others are copied from pinned memory into two
buffers in turn, on a stream of their own, each layer while the one before it runs. WAY:

* `streaming`: the layers are frozen, as in a server with offloaded weights.
* `dense`: they are trained. Backward needs the weights again, in the opposite order. Gradients go
  to the host on a third stream, and the host updates the weights there. Time is virtual, so the
  host's work takes none.

The layers, batches and results are those of programs/stacks.py. The output is JSON, as that of
live_steps_here.py, but with the device memory that PyTorch has reserved at most.
"""

from __future__ import annotations

import collections
import itertools
import json
import sys
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from bench.oversubscription.programs import Step
from bench.oversubscription.programs.stacks import (
    RATE,
    ROWS,
    STREAMED_LAYERS,
    STREAMED_WIDTH,
    TRAINED_LAYERS,
    TRAINED_WIDTH,
    layers_on_host,
    run_layer,
)  # fmt: skip
from bench.simulated_counters import load_simulator, read_machine

Weights = tuple[Tensor, Tensor]  # weight, bias


def _weights(layers: Sequence[nn.Linear]) -> list[Weights]:
    return [(each.weight.detach(), each.bias.detach()) for each in layers]


def _on_device(weights: Sequence[Weights]) -> list[Weights]:
    return [(weight.to("cuda"), bias.to("cuda")) for weight, bias in weights]


def _pinned(weights: Sequence[Weights]) -> list[Weights]:
    return [(weight.pin_memory(), bias.pin_memory()) for weight, bias in weights]


class DoubleBuffer:
    """Two copies of layers' weights on the device. Neighbours have different ones."""

    def __init__(self, sources: Sequence[Weights]) -> None:
        self._sources = sources
        self._slots = _on_device(sources[:2])
        self._layers = [-1, -1]
        self._copies = torch.cuda.Stream()
        self._arrived, self._used = ([torch.cuda.Event() for _ in range(2)] for _ in range(2))

    def forget(self) -> None:
        """The sources have changed."""
        self._layers = [-1, -1]

    def fetch(self, layer: int) -> None:
        """Copies the layer after the last use of its buffer, if the buffer has another layer."""
        slot = layer % 2
        if self._layers[slot] == layer:
            return
        self._layers[slot] = layer
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(self._used[slot])
            for copy, source in zip(self._slots[slot], self._sources[layer], strict=True):
                copy.copy_(source, non_blocking=True)
            self._arrived[slot].record()

    def each(self, layers: Sequence[int]) -> Iterator[Weights]:
        """Yields the weights of neighbours in order. The next layer arrives while one is used."""
        for place, layer in enumerate(layers):
            for wanted in layers[place : place + 2]:
                self.fetch(wanted)
            torch.cuda.current_stream().wait_event(self._arrived[layer % 2])
            yield self._slots[layer % 2]
            self._used[layer % 2].record()


def streaming(resident: int) -> Step:
    layers = layers_on_host(STREAMED_LAYERS, STREAMED_WIDTH)
    kept, streamed = _on_device(_weights(layers[:resident])), _pinned(_weights(layers[resident:]))
    buffer = DoubleBuffer(streamed)

    @torch.no_grad()
    def step() -> str:
        buffer.fetch(0)
        x = torch.randn(ROWS, STREAMED_WIDTH).to("cuda")
        for weights in itertools.chain(kept, buffer.each(range(len(streamed)))):
            x = run_layer(x, *weights)
        return x.sum().item().hex()

    return step


class HostGradients:
    """The gradients of streamed layers on the host. At most two layers' copies are under way."""

    def __init__(self, streamed: Sequence[Weights]) -> None:
        self._weights = streamed
        for each in itertools.chain(*streamed):
            each.grad = torch.empty_like(each).pin_memory()
        self._copies = torch.cuda.Stream()
        self._under_way: collections.deque[torch.cuda.Event] = collections.deque()

    def send(self, layer: int, gradients: Weights) -> None:
        if len(self._under_way) == 2:
            self._under_way.popleft().synchronize()
        self._copies.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._copies):
            for weight, gradient in zip(self._weights[layer], gradients, strict=True):
                weight.grad.copy_(gradient, non_blocking=True)
                gradient.record_stream(self._copies)
            self._under_way.append(self._copies.record_event())

    def wait(self) -> None:
        self._copies.synchronize()
        self._under_way.clear()


def dense(resident: int) -> Step:
    layers = layers_on_host(TRAINED_LAYERS, TRAINED_WIDTH)
    kept, streamed = _on_device(_weights(layers[:resident])), _pinned(_weights(layers[resident:]))
    buffer, gradients = DoubleBuffer(streamed), HostGradients(streamed)
    optimizers = [
        torch.optim.AdamW(itertools.chain(*weights), lr=RATE)
        for weights in (kept, streamed)
        if weights
    ]

    def gradients_of(x: Tensor, weights: Weights, above: Tensor) -> tuple[Tensor, ...]:
        inputs = [each.detach().requires_grad_() for each in (x, *weights)]
        return torch.autograd.grad(run_layer(*inputs), inputs, above)

    def step() -> str:
        buffer.fetch(0)
        inputs = [torch.randn(ROWS, TRAINED_WIDTH).to("cuda")]
        for weights in itertools.chain(kept, buffer.each(range(len(streamed)))):
            inputs.append(run_layer(inputs[-1], *weights))
        result = inputs.pop().requires_grad_()
        loss = result.square().mean()
        (above,) = torch.autograd.grad(loss, result)
        backwards = range(len(streamed) - 1, -1, -1)
        for layer, weights in zip(backwards, buffer.each(backwards), strict=True):
            above, *own = gradients_of(inputs.pop(), weights, above)
            gradients.send(layer, own)
        for weights in reversed(kept):
            above, *own = gradients_of(inputs.pop(), weights, above)
            for weight, gradient in zip(weights, own, strict=True):
                weight.grad = gradient
        gradients.wait()
        for optimizer in optimizers:
            optimizer.step()
        for each in itertools.chain(*kept):
            each.grad = None
        buffer.forget()
        return loss.item().hex()

    return step


def main() -> None:
    simulator = load_simulator()
    torch.manual_seed(0)
    step = {"streaming": streaming, "dense": dense}[sys.argv[1]](int(sys.argv[2]))
    steps = []
    for _ in range(int(sys.argv[3])):
        result = step()
        torch.cuda.synchronize()
        steps.append({"result": result, **read_machine(simulator)})
    print(json.dumps({"reserved_bytes": torch.cuda.max_memory_reserved(), "steps": steps}))


if __name__ == "__main__":
    main()
