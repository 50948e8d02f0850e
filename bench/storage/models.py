"""Three real models and their exported programs; weights are random, nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch

NAMES = ("resnet18", "gpt2", "llama")


class Logits(torch.nn.Module):
    """A language model as a function from tokens to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def build(name: str, device: str) -> tuple[torch.nn.Module, torch.Tensor, Any]:
    """The model, its largest input, and the dynamic shapes of its inputs."""
    torch.manual_seed(0)
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    if name == "resnet18":
        import torchvision

        model: torch.nn.Module = torchvision.models.resnet18(weights=None)
        inputs = torch.randn(8, 3, 96, 96)
    else:
        import transformers

        inputs = torch.randint(0, 2000, (8, 64))
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=2000, n_positions=256, n_embd=256, n_layer=6, n_head=8
            )
            model = Logits(transformers.GPT2LMHeadModel(config))
        else:
            config = transformers.LlamaConfig(
                vocab_size=2000,
                hidden_size=256,
                intermediate_size=688,
                num_hidden_layers=6,
                num_attention_heads=8,
                num_key_value_heads=4,
                max_position_embeddings=256,
            )
            model = Logits(transformers.LlamaForCausalLM(config))
    return model.eval().to(device), inputs.to(device), shapes


def export(name: str, device: str) -> tuple[torch.nn.Module, torch.Tensor, Any]:
    """The model, its largest input, and its exported program."""
    model, inputs, shapes = build(name, device)
    return model, inputs, torch.export.export(model, (inputs[:4],), dynamic_shapes=shapes)
