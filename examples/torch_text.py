"""Trains a small character-level transformer on the source text of Python's own standard library, on one rank or many.

    python examples/torch_text.py
    ddlrun -np 2 examples/torch_text.py

The text is on every machine that has Python, so nothing is downloaded; rank 0 reads it and gives it to the others. The
loss starts at the entropy of a uniform guess and must fall well below the *unigram entropy*, which is the best that a
model without any context can do. Lines that a script for one machine would not have are marked (DDL).
"""

from __future__ import annotations

import argparse
import json
import math
import sysconfig
import time
from pathlib import Path
from typing import Tuple

import torch
from torch.nn.functional import cross_entropy
from tqdm import trange

import ddl_torch as ddl

MAX_BYTES = 3_000_000


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a character-level transformer on Python's library with DDL.")
    parser.add_argument("--epochs", type=positive, default=6, help="rounds of training and evaluation (%(default)s)")
    parser.add_argument("--steps", type=positive, default=100, help="optimizer steps per epoch (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=12, help="texts per rank and step (%(default)s)")
    parser.add_argument("--context", type=positive, default=96, help="characters per piece (%(default)s)")
    parser.add_argument("--width", type=int, default=128, help="features per character (%(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="transformer layers (%(default)s)")
    parser.add_argument("--lr", type=float, default=2e-3, help="learning rate for one rank (%(default)s)")
    parser.add_argument("--clip", type=float, default=1.0, help="largest norm of the gradient (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of weights and of what is read (%(default)s)")
    parser.add_argument("--compression", default="none", help="of gradients: none, bf16, int8, powersgd, auto")  # (DDL)
    parser.add_argument("--json", metavar="FILE", help="write the results there")
    return parser.parse_args()


def library() -> bytes:
    """Return source text of the standard library, in an order that does not depend on the file system."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        text += path.read_text(encoding="utf-8", errors="replace").encode("ascii", "replace")
    return bytes(text[:MAX_BYTES])


class Transformer(torch.nn.Module):
    """Guesses, for every character, the next one from those before it."""

    def __init__(self, characters: int, width: int, layers: int, context: int) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(characters, width)
        self.positions = torch.nn.Parameter(0.02 * torch.randn(context, width))
        layer = torch.nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, layers, torch.nn.LayerNorm(width), enable_nested_tensor=False)
        self.output = torch.nn.Linear(width, characters)
        mask = torch.nn.Transformer.generate_square_subsequent_mask(context)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        length = text.shape[1]
        x = self.characters(text) + self.positions[:length]
        return self.output(self.layers(x, mask=self.mask[:length, :length], is_causal=True))


def loss_of(model: torch.nn.Module, pieces: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
    """Return the mean loss (nats per character) and the share of characters that were guessed."""
    guess, truth = model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten()
    return cross_entropy(guess, truth), (guess.argmax(1) == truth).float().mean()


def draw(text: torch.Tensor, count: int, length: int, source: torch.Generator) -> torch.Tensor:
    """Return ``count`` random pieces of ``text``, each ``length`` characters and the one to be guessed after them."""
    starts = torch.randint(0, len(text) - length, (count, 1), generator=source)
    return text[starts + torch.arange(length + 1)]


def evaluate(model: torch.nn.Module, text: torch.Tensor, options: argparse.Namespace) -> Tuple[float, float]:
    """Return loss and accuracy on the text kept for it; every rank reads its part."""
    source = torch.Generator().manual_seed(1000 + ddl.rank())
    model.eval()
    with torch.no_grad():
        loss, share = loss_of(model, draw(text, 96 // ddl.size() + 1, options.context, source))
    model.train()
    return ddl.allreduce(loss).item(), ddl.allreduce(share).item()  # (DDL)


def main() -> None:
    options = arguments()
    ddl.init()  # (DDL)
    torch.manual_seed(options.seed)
    raw = ddl.broadcast_object(library() if ddl.rank() == 0 else None)  # (DDL)
    alphabet, text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).unique(return_inverse=True)
    kept = len(text) // 20
    train, test = text[:-kept], text[-kept:]
    shares = torch.bincount(train).double() / len(train)
    entropy = -(shares[shares > 0] * shares[shares > 0].log()).sum().item()

    model = Transformer(len(alphabet), options.width, options.layers, options.context)
    ddl.broadcast_parameters(model.state_dict())  # (DDL)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr * math.sqrt(ddl.size()))
    compression = options.compression  # (DDL)
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters(), compression=compression)  # (DDL)
    steps = options.epochs * options.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 50, 1.0) * (0.55 + 0.45 * math.cos(math.pi * step / steps))
    )
    source = torch.Generator().manual_seed(options.seed * 100_003 + ddl.rank())  # (DDL) every rank reads other pieces

    if ddl.rank() == 0:
        print(f"{len(text):,} characters, {len(alphabet)} different; unigram entropy {entropy:.3f} nats", flush=True)
    start = time.perf_counter()
    hidden = True if ddl.rank() else None  # (DDL) one rank shows progress; None: only on a terminal
    for epoch in range(options.epochs):
        for _ in trange(options.steps, desc=f"epoch {epoch + 1}/{options.epochs}", disable=hidden, leave=False):
            optimizer.zero_grad()
            loss, _ = loss_of(model, draw(train, options.batch_size, options.context, source))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), options.clip)
            optimizer.step()
            schedule.step()
        final, accuracy = evaluate(model, test, options)
        if ddl.rank() == 0:
            print(f"epoch {epoch + 1:2d}/{options.epochs}: loss {final:.3f} nats, {accuracy:.1%} guessed", flush=True)
    seconds = time.perf_counter() - start

    rate = steps * options.batch_size * options.context * ddl.size() / seconds
    waiting = ddl.allreduce(torch.tensor(optimizer.statistics()["seconds_waiting"])).item() / seconds
    if ddl.rank() == 0:
        print(f"loss {final:.3f} of {entropy:.3f} nats, {rate:,.0f} characters/s, {waiting:.1%} of the time waiting")
        result = {"ranks": ddl.size(), "threads": torch.get_num_threads(), "loss": final, "unigram_entropy": entropy}
        result.update(accuracy=accuracy, characters_per_s=rate, waiting_share=waiting, seconds=seconds)
        if options.json:
            Path(options.json).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
