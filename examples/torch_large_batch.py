"""Trains the network of torch_digits.py with large batches; resumes from a checkpoint on any number of ranks.

    ddlrun -np 2 examples/torch_large_batch.py --optimizer lars --checkpoint digits.pt --stop-after 50
    ddlrun -np 4 examples/torch_large_batch.py --optimizer lars --checkpoint digits.pt

A warm-up to a learning rate scaled with the ranks, LARS or LAMB, a sampler that resumes in the middle of an epoch, and
averaged metrics: docs/large_batch.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Dict

import torch
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, SequentialLR
from torch.utils.data import DataLoader
from torch_digits import digits, network, positive, shifted

import ddl_torch as ddl

OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.08, momentum=0.9),
    "lars": lambda groups: ddl.LARS(groups, lr=0.5, weight_decay=1e-4, trust_coefficient=0.02),
    "lamb": lambda groups: ddl.LAMB(groups, lr=0.01),
}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with large batches.")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="lars", help="(%(default)s)")
    parser.add_argument("--epochs", type=positive, default=20, help="passes over the training digits (%(default)s)")
    parser.add_argument("--batch-size", type=positive, default=64, help="digits per rank and step (%(default)s)")
    parser.add_argument("--width", type=positive, default=32, help="channels of the first layer (%(default)s)")
    parser.add_argument("--checkpoint", type=Path, help="resume from this file if it is there; save to it at the end")
    parser.add_argument("--stop-after", type=positive, metavar="STEPS", help="save and stop after so many steps")
    return parser.parse_args()


def evaluate(model: torch.nn.Module, loader: DataLoader) -> Dict[str, float]:
    average = ddl.MetricAverage("loss", "accuracy")
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            answer = model(x)
            right = (answer.argmax(1) == y).float().mean()
            average.update({"loss": cross_entropy(answer, y), "accuracy": right}, weight=len(y))
    model.train()
    return average.compute()


def main() -> None:
    options = arguments()
    ddl.init()
    torch.manual_seed(1)
    train, test = digits()
    sampler = ddl.ShardedSampler(train, seed=1)
    loader = DataLoader(train, batch_size=options.batch_size, sampler=sampler)
    every_digit_once = ddl.ShardedSampler(test, shuffle=False, remainder="keep")
    test_loader = DataLoader(test, batch_size=options.batch_size, sampler=every_digit_once)

    model = network(options.width)
    optimizer = OPTIMIZERS[options.optimizer](ddl.layerwise_groups(model.named_parameters()))
    optimizer = ddl.DistributedOptimizer(optimizer, model.named_parameters())
    steps, warmup_steps = options.epochs * len(loader), 2 * len(loader)
    warmup = ddl.LinearScalingWarmup(optimizer, warmup_steps)
    decay = CosineAnnealingLR(optimizer, max(1, steps - warmup_steps))
    scheduler = SequentialLR(optimizer, [warmup, decay], [warmup_steps])

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "sampler": sampler}
    if options.checkpoint and options.checkpoint.exists():
        for name, state in torch.load(options.checkpoint, weights_only=True).items():
            parts[name].load_state_dict(state)
    ddl.broadcast_parameters(model.state_dict())
    torch.manual_seed(1 + ddl.rank())  # dropout and distortions differ from here on

    done = 0
    for epoch in range(sampler.epoch, options.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(shifted(x)), y).backward()
            optimizer.step()
            scheduler.step()
            sampler.record(len(y))
            done += 1
            if done == options.stop_after:
                break
        if done == options.stop_after:
            break
    if options.checkpoint and ddl.rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, options.checkpoint)
    result = evaluate(model, test_loader)
    if ddl.rank() == 0:
        where = sampler.state_dict()
        print(f"after {done} steps, in epoch {where['epoch']} after {where['processed']} digits:", end=" ")
        print(f"test loss {result['loss']:.4f}, test accuracy {result['accuracy']:.2%}")


if __name__ == "__main__":
    main()
