"""An elastic script for Horovod with PyTorch: but for the import of ``hvd``, nothing in it knows DDL."""

from __future__ import annotations

from typing import Any

import torch
from row import BATCHES, Row
from torch.utils.data import DataLoader, TensorDataset

import ddl_torch as hvd

hvd.init()
start_rank, row = hvd.rank(), Row()
torch.manual_seed(start_rank)
BATCH_SIZE = 2
data = TensorDataset(torch.randn(4 * BATCHES * BATCH_SIZE, 4), torch.arange(4 * BATCHES * BATCH_SIZE))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01 * hvd.size(), momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
sampler = hvd.elastic.ElasticSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=BATCH_SIZE, sampler=sampler)


@hvd.elastic.run
def train(state: Any) -> None:
    state.rendezvous += 1
    while state.epoch < row.epochs:
        for number, (x, samples) in enumerate(loader):
            if state.batch == BATCHES:
                break
            row.begin_batch(state, hvd.size)
            state.optimizer.zero_grad()
            torch.nn.functional.mse_loss(state.model(x), torch.ones(len(x), 1)).backward()
            state.optimizer.step()
            state.sampler.record_batch(number, BATCH_SIZE)
            state.batch += 1
            row.end_batch(state, hvd.size(), samples.tolist())
            state.commit()
        if hvd.rank() == 0:
            row.end_epoch(state, start_rank, hvd.size())
        state.epoch += 1
        state.batch = 0
        state.sampler.set_epoch(state.epoch)
        state.commit()


def scale_learning_rate() -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * hvd.size()


state = hvd.elastic.TorchState(model, optimizer, sampler=sampler, epoch=0, batch=0, rendezvous=0)
state.register_reset_callbacks([scale_learning_rate])
train(state)
weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
gathered = hvd.allgather(weights.reshape(1, -1))
assert (gathered == gathered[0]).all() and optimizer.param_groups[0]["lr"] == 0.01 * hvd.size()
