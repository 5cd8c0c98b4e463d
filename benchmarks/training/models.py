"""The models that are trained, in plain torch, with synthetic data: a small, a large and a wordy one.

What they learn does not matter here; how many parameters they have, and how long a step computes, does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Tuple

import torch
from torch import nn

__all__ = ["MODELS", "Batch", "BenchModel", "loss_of"]

Batch = Tuple[torch.Tensor, torch.Tensor]  # what the network gets; the classes that it should say, int64


@dataclass(frozen=True)
class BenchModel:
    """One model: how to build it and its data, samples per rank and step, and the steps to time in a block."""

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[int], Batch]  # batch size -> one batch, from torch's global generator
    batch: int
    samples: str  # what a sample is called, in the plural
    steps: int  # takes a second or so

    def make(self, seed: int) -> nn.Module:
        """Return the network with the weights of ``seed``."""
        torch.manual_seed(seed)
        return self.build()

    def batches(self, seed: int, count: int) -> List[Batch]:
        """Return the data of one rank; different seeds give different data."""
        torch.manual_seed(seed)
        return [self.data(self.batch) for _ in range(count)]


def loss_of(network: nn.Module, batch: Batch) -> torch.Tensor:
    """Return the mean cross entropy of a batch."""
    inputs, classes = batch
    return nn.functional.cross_entropy(network(inputs).flatten(0, -2), classes.flatten())


# --- digits: the network of examples/torch_digits.py ---


def digits() -> nn.Module:
    """0.16 million parameters: hardly any bytes, so that what a step costs at all is seen."""
    width = 32
    layers = [nn.Conv2d(1, width, 3, padding=1), nn.ReLU()]
    layers += [nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Flatten(), nn.Dropout(0.25), nn.Linear(16 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 10)]
    return nn.Sequential(*layers)


# --- resnet: ResNet-50 (He et al., 2015) on small images ---


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions around which the input is carried."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = 4 * inner
        self.inside = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)),
        )
        self.around: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            self.around = nn.Sequential(nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.inside(x) + self.around(x), inplace=True)


def _bottlenecks(channels: int) -> Iterator[nn.Module]:
    for inner, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            yield Bottleneck(channels, inner, stride if i == 0 else 1)
            channels = 4 * inner


def resnet() -> nn.Module:
    """ResNet-50: 25.6 million parameters in 161 tensors. On images this small there is little to hide bytes behind."""
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
    return nn.Sequential(*stem, *_bottlenecks(64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


# --- transformer ---

VOCABULARY, SEQUENCE = 8192, 64


class Transformer(nn.Module):
    """A causal language model; the embedding also turns the last layer's output into token scores."""

    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(torch.randn(SEQUENCE, width) * 0.02)
        nn.init.normal_(self.tokens.weight, std=0.02)
        block = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(SEQUENCE))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.blocks(self.tokens(ids) + self.places, mask=self.mask, is_causal=True)
        return nn.functional.linear(states, self.tokens.weight)


def transformer() -> nn.Module:
    """10.0 million parameters, a quarter of them in the embedding, whose gradient comes last."""
    return Transformer(width=320, heads=5, layers=6)


def transformer_768() -> nn.Module:
    """49 million parameters: for GPUs."""
    return Transformer(width=768, heads=12, layers=6)


# --- data ---


def _images(channels: int, edge: int, classes: int) -> Callable[[int], Batch]:
    return lambda batch: (torch.randn(batch, channels, edge, edge), torch.randint(classes, (batch,)))


def _sequences(batch: int) -> Batch:
    ids = torch.randint(VOCABULARY, (batch, SEQUENCE + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


MODELS: Dict[str, BenchModel] = {
    model.name: model
    for model in (
        BenchModel("digits", digits, _images(1, 8, 10), batch=32, samples="images", steps=100),
        BenchModel("resnet", resnet, _images(3, 32, 1000), batch=8, samples="images", steps=5),
        BenchModel("transformer", transformer, _sequences, batch=8, samples="sequences", steps=3),
        # For GPUs, where those above compute for some milliseconds only.
        BenchModel("resnet-224", resnet, _images(3, 224, 1000), batch=32, samples="images", steps=10),
        BenchModel("transformer-768", transformer_768, _sequences, batch=32, samples="sequences", steps=10),
    )
}
