"""Serves three models on a device that holds the largest one alone.

A language model, a U-Net-like image model and an embedder, from configuration and with random
weights, take turns: each is a group (docs/reference/groups.md), and a request wakes the group of
its model, which makes others sleep if there is no room.

    uvmalloc sim --capacity 96MiB -- python examples/model_server.py --port 8000
    curl -d '{"tokens": [1, 2, 3], "count": 5}' localhost:8000/llm
    curl -d '{"seed": 7}' localhost:8000/image
    curl -d '{"tokens": [4, 5]}' localhost:8000/embed
    curl localhost:8000/residency            # or open localhost:8000/ in a browser

On a machine with a card, `uvmalloc run -- python ...` instead of `uvmalloc sim`. SIGTERM and SIGINT
end the server after the requests that it has accepted. Bad requests get 400 with one line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
import uvmalloc
from torch import Tensor, nn

VOCABULARY, LONGEST = 512, 64
MOST_BODY_BYTES = 1 << 20
PAGE = b"""<!doctype html><title>Models</title><h1>Models on one device</h1><pre id=out></pre>
<script>setInterval(async () => {
  const models = await (await fetch("/residency")).json();
  document.getElementById("out").textContent = Object.entries(models).map(([name, m]) =>
    name.padEnd(8) + m.state.padEnd(8) + "#".repeat(m.device_bytes >> 21) +
    ".".repeat(m.host_bytes >> 21)).join("\\n");
}, 500)</script>"""


class BadRequestError(ValueError):
    """What the client sent cannot be served. The text says what is accepted."""


class LanguageModel(nn.Module):
    def __init__(self, width: int = 512, layers: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device)
        states: Tensor = self.layers(self.embedding(tokens), mask=mask, is_causal=True)
        return self.head(states[:, -1])


class ImageModel(nn.Module):
    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.inward = nn.Conv2d(3, width, 3, padding=1)
        self.middle = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(4))
        self.outward = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor) -> Tensor:
        states = self.inward(image)
        for layer in self.middle:
            states = states + torch.relu(layer(states))
        return self.outward(states).sigmoid()


class Embedder(nn.Module):
    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(VOCABULARY, width)
        self.layers = nn.Sequential(*[nn.Linear(width, width) for _ in range(4)])

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.normalize(self.layers(self.embedding(tokens)), dim=-1)


def tokens_of(request: dict[str, Any]) -> Tensor:
    tokens = request.get("tokens")
    accepted = f'"tokens": 1 to {LONGEST} integers from 0 to {VOCABULARY - 1}'
    if not isinstance(tokens, list) or not 1 <= len(tokens) <= LONGEST:
        raise BadRequestError(f"accepted: {accepted}")
    if any(type(each) is not int or not 0 <= each < VOCABULARY for each in tokens):
        raise BadRequestError(f"accepted: {accepted}")
    return torch.tensor([tokens], device="cuda")


def number_of(request: dict[str, Any], name: str, default: int, most: int) -> int:
    number = request.get(name, default)
    if type(number) is not int or not 0 <= number <= most:
        raise BadRequestError(f'accepted: "{name}": an integer from 0 to {most}')
    return number


class Models:
    """The models and their groups. One request at a time uses the device."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self._lock = threading.Lock()
        self._models: dict[str, tuple[nn.Module, Callable[[Any, dict[str, Any]], Any]]] = {}
        for name, make, answer in (
            ("llm", LanguageModel, self._generate),
            ("image", ImageModel, self._draw),
            ("embed", Embedder, self._embed),
        ):
            with uvmalloc.group(name, copies="kept"):
                self._models[name] = (make().cuda().eval(), answer)
            try:
                uvmalloc.group(name).sleep()
            except RuntimeError as error:  # a group with a file, and a full disk
                print(f"{error}; it stays where it is", file=sys.stderr)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._models)

    @torch.inference_mode()
    def answer(self, name: str, request: dict[str, Any]) -> Any:
        model, answer = self._models[name]
        with self._lock:
            uvmalloc.group(name).wake()
            return answer(model, request)

    def residency(self) -> dict[str, Any]:
        figures = uvmalloc.groups()
        return {name: vars(figures[name]) for name in self._models if name in figures}

    @staticmethod
    def _generate(model: LanguageModel, request: dict[str, Any]) -> Any:
        tokens = tokens_of(request)
        for _ in range(number_of(request, "count", 8, LONGEST)):
            tokens = torch.cat((tokens, model(tokens[:, -LONGEST:]).argmax(-1, keepdim=True)), 1)
        return {"tokens": tokens[0].tolist()}

    @staticmethod
    def _draw(model: ImageModel, request: dict[str, Any]) -> Any:
        generator = torch.Generator().manual_seed(number_of(request, "seed", 0, 2**63 - 1))
        image = model(torch.randn(1, 3, 16, 16, generator=generator).cuda())
        return {"sha256": hashlib.sha256(image.cpu().numpy().tobytes()).hexdigest()}

    @staticmethod
    def _embed(model: Embedder, request: dict[str, Any]) -> Any:
        return {"vector": model(tokens_of(request))[0].tolist()}


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for running requests
    request_queue_size = 128

    def __init__(self, port: int, models: Models) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.models = models

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""
        if not isinstance(sys.exception() if hasattr(sys, "exception") else sys.exc_info()[1],
                          ConnectionError | TimeoutError):  # fmt: skip
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 5  # seconds that a client may be silent

    def do_GET(self) -> None:
        if self.path == "/":
            self._send(200, PAGE, "text/html; charset=utf-8")
        elif self.path == "/residency":
            self._send_json(200, self.server.models.residency())
        else:
            self._send_json(404, {"error": "accepted: / and /residency"})

    def do_POST(self) -> None:
        models = self.server.models
        name = self.path.removeprefix("/")
        if name not in models.names:
            self._send_json(404, {"error": f"accepted: /{', /'.join(models.names)}"})
            return
        try:
            self._send_json(200, models.answer(name, self._body()))
        except BadRequestError as error:
            self._send_json(400, {"error": str(error)})
        except torch.OutOfMemoryError as error:
            self._send_json(503, {"error": str(error).splitlines()[0]})

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > 9 or int(length) > MOST_BODY_BYTES:
            raise BadRequestError(f"accepted: a body of at most {MOST_BODY_BYTES} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise BadRequestError("accepted: a body of JSON") from None
        if not isinstance(body, dict):
            raise BadRequestError("accepted: an object of JSON")
        return body

    def _send_json(self, status: int, value: Any) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def _send(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Prints nothing for each request."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, default=0, help="0: any free one, which is printed")
    server = Server(parser.parse_args().port, Models())

    def end(*_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        # shutdown() waits for the loop, which runs on this thread.
        threading.Thread(target=server.shutdown).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    print(f"listening on port {server.server_port}", flush=True)
    with server:
        server.serve_forever(poll_interval=0.1)
    print(json.dumps(server.models.residency()), flush=True)


if __name__ == "__main__":
    main()
