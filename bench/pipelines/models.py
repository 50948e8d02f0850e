"""Three real models and their exported programs. Weights are random; nothing is downloaded."""

from __future__ import annotations

from random import Random
from typing import Any

import torch

NAMES = ("resnet18", "gpt2", "llama")
LARGEST_BATCH, LONGEST, WORDS = 8, 256, 2000
IMAGE = (3, 224, 224)


class Logits(torch.nn.Module):
    """A language model as a function from tokens to logits."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=tokens, use_cache=False).logits


def build(name: str, device: str) -> tuple[torch.nn.Module, torch.Tensor, Any]:
    """Returns the model, its largest input, and the dynamic shapes of its inputs."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    length = torch.export.Dim("length", min=2, max=LONGEST)
    shapes = ({0: batch},) if name == "resnet18" else ({0: batch, 1: length},)
    if name == "resnet18":
        import torchvision

        model: torch.nn.Module = torchvision.models.resnet18(weights=None)
        inputs = torch.randn(LARGEST_BATCH, *IMAGE)
    else:
        import transformers

        inputs = torch.randint(0, WORDS, (LARGEST_BATCH, LONGEST))
        if name == "gpt2":
            config = transformers.GPT2Config(
                vocab_size=WORDS, n_positions=256, n_embd=256, n_layer=6, n_head=8
            )
            model = Logits(transformers.GPT2LMHeadModel(config))
        else:
            config = transformers.LlamaConfig(
                vocab_size=WORDS,
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
    """Returns the model, its largest input, and its exported program."""
    model, inputs, shapes = build(name, device)
    example = (inputs[:4] if name == "resnet18" else inputs[:4, :32]).contiguous()
    return (
        model,
        inputs,
        torch.export.export(
            model,
            (example,),
            dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=True,
        ),
    )


def random_input(name: str, random: Random) -> torch.Tensor:
    """Returns an input of a random size within the bounds."""
    batch = random.randint(1, LARGEST_BATCH)
    if name == "resnet18":
        return torch.randn(batch, *IMAGE)
    return torch.randint(0, WORDS, (batch, random.randint(2, LONGEST)))
