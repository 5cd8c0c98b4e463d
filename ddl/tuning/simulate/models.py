"""Neural networks for the simulator: gradients and floating-point operations of each layer, from published shapes.

A layer's ``tensors`` are its parameters' elements in the order in which PyTorch's own definition registers them.
``flops`` counts the multiplications and additions of convolutions and matrix products, in the forward pass for one
sample. Normalisation, activation and the rest count as 0, although they take time, too.

Sources: ResNet, He et al. 2015 (arXiv 1512.03385), with the stride in the 3x3 convolution as torchvision has it; VGG,
Simonyan and Zisserman 2014 (arXiv 1409.1556); BERT, Devlin et al. 2018 (arXiv 1810.04805).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Tuple

from ddl.errors import ConfigError

__all__ = ["MODELS", "Layer", "Model", "model"]


@dataclass(frozen=True)
class Layer:
    """One layer: elements of its parameters, and floating-point operations of its forward pass for one sample."""

    name: str
    tensors: Tuple[int, ...]
    flops: float = 0.0


@dataclass(frozen=True)
class Model:
    """Layers in the order of the forward pass."""

    name: str
    layers: Tuple[Layer, ...]

    @property
    def parameters(self) -> int:
        """Return the number of elements of all parameters."""
        return sum(sum(layer.tensors) for layer in self.layers)

    @property
    def flops(self) -> float:
        """Return the floating-point operations of a forward pass for one sample."""
        return sum(layer.flops for layer in self.layers)


def _conv(name: str, channels: int, filters: int, kernel: int, edge: int, bias: bool = False) -> Layer:
    """Return a convolution whose output has ``edge`` x ``edge`` pixels."""
    weights = channels * filters * kernel * kernel
    return Layer(name, (weights, filters) if bias else (weights,), 2.0 * weights * edge * edge)


def _norm(name: str, width: int) -> Layer:
    return Layer(name, (width, width))


def _linear(name: str, inputs: int, outputs: int, rows: int = 1) -> Layer:
    return Layer(name, (inputs * outputs, outputs), 2.0 * inputs * outputs * rows)


def _resnet(blocks: Tuple[int, ...], classes: int) -> List[Layer]:
    layers = [_conv("conv1", 3, 64, 7, 112), _norm("bn1", 64)]
    channels, edge = 64, 56
    for stage, count in enumerate(blocks):
        inner = 64 << stage
        for block in range(count):
            name = f"layer{stage + 1}.{block}"
            before = edge
            if stage > 0 and block == 0:
                edge //= 2
            layers += [_conv(f"{name}.conv1", channels, inner, 1, before), _norm(f"{name}.bn1", inner)]
            layers += [_conv(f"{name}.conv2", inner, inner, 3, edge), _norm(f"{name}.bn2", inner)]
            layers += [_conv(f"{name}.conv3", inner, 4 * inner, 1, edge), _norm(f"{name}.bn3", 4 * inner)]
            if block == 0:
                layers += [_conv(f"{name}.downsample.0", channels, 4 * inner, 1, edge)]
                layers += [_norm(f"{name}.downsample.1", 4 * inner)]
            channels = 4 * inner
    return [*layers, _linear("fc", channels, classes)]


def _vgg16(classes: int) -> List[Layer]:
    layers: List[Layer] = []
    channels, edge = 3, 224
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers.append(_conv(f"conv{len(layers) + 1}", channels, filters, 3, edge, bias=True))
            channels = filters
        edge //= 2
    sizes = (channels * edge * edge, 4096, 4096, classes)
    return layers + [_linear(f"fc{i + 1}", a, b) for i, (a, b) in enumerate(zip(sizes, sizes[1:]))]


_WORDS, _PLACES, _WIDTH, _TOKENS = 30522, 512, 768, 128  # BERT base; the last is a sequence's length


def _bert_base(classes: int) -> List[Layer]:
    """The encoder with its pooler; ``classes`` has no meaning here."""
    width = _WIDTH
    layers = [Layer("embeddings", (_WORDS * width, _PLACES * width, 2 * width)), _norm("embeddings.norm", width)]
    for number in range(12):
        name = f"layer{number}"
        layers += [_linear(f"{name}.{part}", width, width, _TOKENS) for part in ("query", "key", "value")]
        layers += [Layer(f"{name}.scores", (), 4.0 * _TOKENS * _TOKENS * width)]
        layers += [_linear(f"{name}.attention", width, width, _TOKENS), _norm(f"{name}.norm1", width)]
        layers += [_linear(f"{name}.wide", width, 4 * width, _TOKENS)]
        layers += [_linear(f"{name}.narrow", 4 * width, width, _TOKENS), _norm(f"{name}.norm2", width)]
    return [*layers, _linear("pooler", width, width)]


MODELS: Dict[str, Callable[[int], List[Layer]]] = {
    "resnet50": lambda classes: _resnet((3, 4, 6, 3), classes),
    "resnet101": lambda classes: _resnet((3, 4, 23, 3), classes),
    "vgg16": _vgg16,
    "bert-base": _bert_base,
}


def model(name: str, classes: int = 1000) -> Model:
    """Return the network ``name`` with ``classes`` classes. Raises ``ConfigError`` if the name is not known."""
    if name not in MODELS:
        raise ConfigError(f"model {name!r} is not known; use one of {', '.join(MODELS)}")
    if classes < 1:
        raise ConfigError(f"a model cannot have {classes} classes; give 1 or more")
    return Model(name, tuple(MODELS[name](classes)))
