"""What ChainerMN does with a communicator, as cases: each takes one and returns what came out on this rank.

The tests run them on DDL's communicator, and on ChainerMN's own over a real MPI:

    mpiexec -n 2 python tests/chainer_cases.py FOLDER

writes there, for each rank, what came out with ``naive``.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from pathlib import Path

import chainer
import chainermn
import numpy as np
from chainer import functions as F
from chainer import links as L
from chainer.training import extensions
from chainermn import functions as MF

STEPS, GLOBAL = 6, 24

chainer.disable_experimental_feature_warning = True


def ramp(comm, *shape, dtype="f"):
    """Return an array that is another one on each rank."""
    return (np.arange(np.prod(shape)).reshape(shape) * (1 + comm.rank) + comm.rank).astype(dtype)


# --- the communicator's own calls ---


def arrays(comm):
    rank, size = comm.rank, comm.size
    results = {}
    for dtype in ("f", "d", "i4", "i8"):
        results[f"allreduce {dtype}"] = comm.allreduce(ramp(comm, 2, 3, dtype=dtype))
        results[f"allgather {dtype}"] = comm.allgather(ramp(comm, 1 + rank, 3, dtype=dtype))
        results[f"gather {dtype}"] = comm.gather(ramp(comm, 3, 1 + rank, dtype=dtype), root=size - 1)
        results[f"bcast {dtype}"] = comm.bcast(ramp(comm, 2, 2, dtype=dtype) if rank == 1 else None, root=1)
        results[f"alltoall {dtype}"] = comm.alltoall(tuple(ramp(comm, rank + 1, to, dtype=dtype) for to in range(size)))
        several = tuple(ramp(comm, 2 + to, 1, dtype=dtype) for to in range(size)) if rank == 1 else None
        results[f"scatter {dtype}"] = comm.scatter(several, root=1)
        results[f"scatter rows {dtype}"] = comm.scatter(ramp(comm, size, 3, dtype=dtype) if rank == 0 else None)
    for dtype in ("f2", "f", "d"):
        mean = ramp(comm, 5, dtype=dtype)
        comm._multi_node_mean(None, mean)
        other = np.zeros_like(mean)
        comm._multi_node_mean(ramp(comm, 5, dtype=dtype), other)
        results[f"mean {dtype}"] = [mean, other]
    return results


def messages(comm):
    to, source = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    results = []
    for first, second in ((True, False), (False, True)):
        if (comm.rank % 2 == 0) == first:
            comm.send(ramp(comm, 3, 2), to, 1)
            comm.send((ramp(comm, 2), ramp(comm, 0), ramp(comm, 1, 3)), to, 2)
            comm.send(ramp(comm, 2, dtype="f2"), to, 3)
        if (comm.rank % 2 == 0) == second:
            results += [comm.recv(source, tag) for tag in (1, 2, 3)]
    comm.send_obj({"from": comm.rank, "more": (1, [2.0, None])}, to, 5)
    comm.send_obj("later", dest=to, tag=6)
    results += [comm.recv_obj(source, tag=6), comm.recv_obj(source=source)]  # in the other order
    results.append(comm.bcast_obj([comm.rank, "x" * 10] if comm.rank == 1 else None, root=1))
    results += [comm.gather_obj((comm.rank, None), root=1), comm.allreduce_obj(comm.rank + 0.5)]
    results.append(comm.allreduce_obj(ramp(comm, 2)))
    return results


def parts(comm):
    half = comm.split(comm.rank % 2, -comm.rank)
    results = [half.rank, half.size, half.bcast_obj("of half" if half.rank == 0 else None)]
    results += [half.allreduce(ramp(comm, 3)), comm.split(0, comm.rank).size]
    return [*results, comm.intra_rank, comm.intra_size, comm.inter_rank, comm.inter_size]


# --- functions, links ---


def gradients_of(inputs, outputs):
    """Return the outputs, and the gradients of a loss that weighs each of them."""
    loss = sum((2.0 + i) * F.sum(output * output) for i, output in enumerate(outputs))
    loss.backward()
    return [output.array for output in outputs] + [variable.grad for variable in inputs]


def functions(comm):
    def variables(count):
        return [chainer.Variable(ramp(comm, 2, 3) / 10 + i) for i in range(count)]

    results = {}
    (x,) = variables(1)
    results["allgather"] = gradients_of([x], MF.allgather(comm, x))
    xs = variables(comm.size)
    results["alltoall"] = gradients_of(xs, MF.alltoall(comm, tuple(xs)))
    (x,) = variables(1)
    results["bcast"] = gradients_of([x], [MF.bcast(comm, x, root=1)])
    (x,) = variables(1)
    gathered = MF.gather(comm, x, root=0)
    results["gather"] = gradients_of([x], gathered if comm.rank == 0 else [gathered])
    xs = variables(comm.size)
    results["scatter"] = gradients_of(xs, [MF.scatter(comm, tuple(xs) if comm.rank == 0 else xs[0], root=0)])
    (x,) = variables(1)
    if comm.rank == 0:
        away = MF.send(x, comm, rank=1, tag=4)
        back = MF.recv(comm, rank=1, delegate_variable=away, tag=5)
        (kept,) = MF.pseudo_connect(away, x * 2)
        results["send, recv"] = gradients_of([x], [back]), kept.array
    elif comm.rank == 1:
        MF.send(MF.recv(comm, rank=0, tag=4) ** 2, comm, rank=0, tag=5).backward()
    return results


def batch_normalization(comm):
    x = chainer.Variable(ramp(comm, 4, 3) / 7)
    norm = chainermn.links.MultiNodeBatchNormalization(3, comm)
    results = gradients_of([x], [norm(x)])
    model = chainer.Sequential(L.Linear(3, 4, initialW=np.ones((4, 3), "f")), L.BatchNormalization(4))
    model = chainermn.links.create_mnbn_model(model, comm)
    return [*results, norm.avg_mean, norm.avg_var, model(ramp(comm, 5, 3)).array]


class OnTwo(chainermn.MultiNodeChainList):
    """A network whose first layer is on rank 0, the second one on rank 1."""

    def __init__(self, comm):
        super().__init__(comm)
        layer = L.Linear(3, 3, initialW=ramp(comm, 3, 3) / 20)
        if comm.rank == 0:
            self.add_link(layer, rank_in=None, rank_out=1)
        else:
            self.add_link(layer, rank_in=0, rank_out=None)


def model_parallel(comm):
    pair = comm.split(int(comm.rank > 1), comm.rank)
    if comm.rank > 1:
        return None
    model = OnTwo(pair)
    model.cleargrads()
    y = model(chainer.Variable(ramp(comm, 2, 3)))
    (y if pair.rank == 0 else F.sum(y * y)).backward()
    gradients = [parameter.grad for _, parameter in sorted(model.namedparams())]
    np.random.seed(3)
    rnn = chainermn.links.create_multi_node_n_step_rnn(
        L.NStepLSTM(1, 2, 2, 0.0), pair, rank_in=None if pair.rank == 0 else 0, rank_out=1 if pair.rank == 0 else None
    )
    rnn.cleargrads()
    hidden, cells, _, delegate = rnn([ramp(comm, 2, 2) / 9])
    loss = delegate if pair.rank == 0 else F.sum(hidden) + F.sum(cells)
    loss.backward()
    return [*gradients, hidden.array, *(parameter.grad for _, parameter in sorted(rnn.namedparams()))]


# --- data ---


class Odd:
    """What is no plain data."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return self.number == other.number


def data(comm):
    whole = chainer.datasets.TupleDataset(ramp(comm, 9, 2), np.arange(9)) if comm.rank == 0 else None
    results = {"scattered": list(chainermn.scatter_dataset(whole, comm, shuffle=True, seed=1))}
    uneven = chainermn.scatter_dataset([Odd(i) for i in range(9)], comm, root=1, force_equal_length=False)
    results["uneven"] = [sample.number for sample in uneven]
    results["index"] = chainermn.scatter_index(11, comm)
    results["empty"] = list(chainermn.datasets.create_empty_dataset(range(3)))
    np.random.seed(comm.rank)
    pairs = [(np.full(2, i, "f"), np.float32(i)) for i in range(5)]
    source = chainer.iterators.SerialIterator(pairs, 2, repeat=False, shuffle=False) if comm.rank == 0 else None
    results["multi-node"] = list(chainermn.iterators.create_multi_node_iterator(source, comm))
    iterator = chainer.iterators.SerialIterator(list(range(8)), 4)
    synchronized = chainermn.iterators.create_synchronized_iterator(iterator, comm)
    results["synchronized"] = [next(synchronized) for _ in range(3)]
    return results


# --- training ---


class Network(chainer.Chain):
    """A convolution, a layer whose size is found out, and one that nobody uses."""

    def __init__(self, seed=0, lazy=True):
        super().__init__()
        np.random.seed(seed)
        with self.init_scope():
            self.convolution = L.Convolution2D(1, 3, 3)
            self.hidden = L.Linear(None if lazy else 12, 5)
            self.extra = L.Linear(2, 2)
            self.last = L.Linear(5, 2)

    def forward(self, x):
        return self.last(F.tanh(self.hidden(F.tanh(self.convolution(x)))))


def batches(rank=0, size=1, dtype="f"):
    """Return what a rank gets of each batch."""
    random = np.random.RandomState(5)
    x = random.randn(STEPS, GLOBAL, 1, 4, 4).astype(dtype)
    y = (x[:, :, 0, 0, 0] > 0).astype("i")
    rows = slice(rank * GLOBAL // size, (rank + 1) * GLOBAL // size)
    return list(zip(x[:, rows], y[:, rows]))


OPTIMIZERS = {
    "sgd": lambda: chainer.optimizers.SGD(0.1),
    "momentum": lambda: chainer.optimizers.MomentumSGD(0.1, 0.9),
    "adam": lambda: chainer.optimizers.Adam(0.01),
    "clipped": lambda: chainer.optimizers.MomentumSGD(0.2, 0.9),
}


def hooks(name):
    if name != "clipped":
        return []
    return [chainer.optimizer_hooks.WeightDecay(0.01), chainer.optimizer_hooks.GradientClipping(0.1)]


def weights(model):
    return {name: parameter.array for name, parameter in sorted(model.namedparams())}


def trained(name, comm=None, dtype="f"):
    """Return the weights after some steps; without ``comm``, of one process with the batches of all ranks."""
    with chainer.using_config("dtype", np.dtype(dtype)):
        rank, size = (0, 1) if comm is None else (comm.rank, comm.size)
        model = L.Classifier(Network(seed=rank))  # other weights on each rank, until they are broadcast
        own = batches(rank, size, dtype)
        model(*own[0])  # with one process's weights, from a state that the others do not have
        optimizer = OPTIMIZERS[name]()
        if comm is not None:
            optimizer = chainermn.create_multi_node_optimizer(optimizer, comm)
        optimizer.setup(model)
        for hook in hooks(name):
            optimizer.add_hook(hook)
        for batch in [*own[: comm is not None], *own]:  # ChainerMN's first update broadcasts, and does nothing else
            optimizer.update(model, *batch)
        return weights(model)


def training(comm):
    return {name: trained(name, comm) for name in OPTIMIZERS}


def means(comm):
    """Gradients of all types, also of a parameter with two names; with and without zeros for those that are missing."""
    results = []
    for dtype in ("f2", "f", "d"):
        for zero_fill in (False, True):
            model = chainer.Chain(a=L.Linear(3, 2), b=L.Linear(4, 3), c=L.Linear(None, 2))
            model.d = model.a
            for _, parameter in model.namedparams(False):
                parameter.array = parameter.array.astype(dtype)
            model.cleargrads()
            model.a.W.grad = ramp(comm, 2, 3, dtype=dtype)
            model.a.b.grad = ramp(comm, 2, dtype=dtype)
            model.b.W.grad = ramp(comm, 3, 4, dtype=dtype)
            comm.multi_node_mean_grad(model, zero_fill)
            results += [parameter.grad for _, parameter in sorted(model.namedparams(False))]
    return results


def trainer_with_extensions(comm):
    """The Trainer, with every extension of ChainerMN's."""
    folder = Path(os.environ["CHAINER_CASES"], f"{comm.size}")
    # Nothing here may rest on last bits, which hang on the order of additions. The gradient of a bias before batch
    # normalisation is such bits alone, and Adam's steps have one length whatever the gradient: hence neither is here.
    first = L.Linear(2, 4, nobias=True)
    model = L.Classifier(chainer.Sequential(first, L.BatchNormalization(4), F.relu, L.Linear(4, 2)))
    comm.bcast_data(model)
    x = np.random.RandomState(0).randn(16, 2).astype("f")
    whole = chainer.datasets.TupleDataset(x, (x[:, 0] > 0).astype("i")) if comm.rank == 0 else None
    shard = chainermn.scatter_dataset(whole, comm)
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.MomentumSGD(0.05), comm).setup(model)

    def loss_of(x, y):
        loss = model(x, y)
        chainer.report({"number": float(loss.array)})  # without ChainerX, ObservationAggregator takes no Variable
        return loss

    def make():
        iterator = chainer.iterators.SerialIterator(shard, 2, shuffle=False)
        updater = chainer.training.StandardUpdater(iterator, optimizer, loss_func=loss_of)
        return chainer.training.Trainer(updater, stop_trigger=stop, out=str(folder))

    stop = chainermn.extensions.MultiNodeEarlyStoppingTrigger(
        comm, monitor="number", patience=3, check_trigger=(1, "epoch"), max_trigger=(2, "epoch")
    )
    trainer = make()
    test = chainer.iterators.SerialIterator(shard, 2, repeat=False, shuffle=False)
    evaluator = chainermn.create_multi_node_evaluator(extensions.Evaluator(test, model), comm)
    trainer.extend(evaluator)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        checkpointer = chainermn.create_multi_node_checkpointer("name", comm, path=str(folder / "checkpoints"))
    trainer.extend(checkpointer, trigger=(1, "epoch"))
    snapshot = chainermn.extensions.multi_node_snapshot(comm, extensions.snapshot(autoload=True), [0])
    trainer.extend(snapshot, trigger=(1, "epoch"))
    trainer.extend(chainermn.extensions.AllreducePersistent(model, comm))
    trainer.extend(chainermn.extensions.ObservationAggregator(comm, "number", "mean loss"))
    losses = []
    trainer.extend(lambda t: losses.append(float(t.observation["mean loss"])), trigger=(1, "iteration"), name="losses")
    saved = checkpointer.finalize
    checkpointer.finalize = lambda: None  # it deletes the files
    trainer.run()
    again = make()
    checkpointer.maybe_load(again, optimizer)
    resumed = again.updater.iteration
    saved()
    generic = chainermn.extensions.GenericMultiNodeEvaluator(comm, test, model)
    gathered = generic(trainer)
    results = {"evaluated": evaluator(trainer), "losses": losses, "resumed": resumed, "weights": weights(model)}
    results["generic"] = None if gathered is None else [float(variable.array) for variable in gathered]
    results["files"] = sorted(path.name.partition("iter")[0] for path in folder.glob("snapshot*"))
    return results, [model.predictor[1].avg_mean, model.predictor[1].avg_var]


CASES = [arrays, messages, parts, functions, batch_normalization, model_parallel, data, training, means]
CASES += [trainer_with_extensions]


def run(comm):
    return {case.__name__: case(comm) for case in CASES}


def main():
    comm = chainermn.create_communicator("naive")
    with open(os.path.join(sys.argv[1], f"{comm.rank}.pickle"), "wb") as file:
        pickle.dump(run(comm), file)


if __name__ == "__main__":
    main()
