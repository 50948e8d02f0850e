"""safetensors: writes files from the device and reads them back whole, in part and into a model.
Prints one line of JSON that says for each way whether the values are those written."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model


def equal(found: dict[str, torch.Tensor], written: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(found[name].cpu(), tensor) for name, tensor in written.items())


def main() -> None:
    torch.manual_seed(2)
    tensors = {
        "large": torch.randn(1024, 1024),
        "integers": torch.arange(10),
        "half": torch.randn(300, 7).to(torch.bfloat16),
    }
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tensors.safetensors"
        save_file({name: tensor.to("cuda") for name, tensor in tensors.items()}, file)
        found["device"] = equal(load_file(file, device="cuda"), tensors)
        loaded = load_file(file)
        found["host"] = equal(loaded, tensors)
        found["moved"] = equal({k: v.to("cuda") for k, v in loaded.items()}, tensors)
        with safe_open(file, framework="pt", device="cuda:0") as opened:
            part = opened.get_slice("large")[10:20, :5]
        found["part"] = torch.equal(part.cpu(), tensors["large"][10:20, :5])
        first, second = (torch.nn.Linear(600, 700).cuda() for _ in range(2))
        save_model(first, str(file))
        load_model(second, file)
        found["model"] = torch.equal(first.weight, second.weight)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
