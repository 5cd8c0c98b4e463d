"""``SyncBatchNorm`` on many ranks does what ``torch.nn.BatchNorm*d`` does in one process with the whole batch."""

from __future__ import annotations

import pytest
import ranks

import ddl

torch = pytest.importorskip("torch")

#: Rows of each rank's batch: more on some than on others, one, and none at all.
ROWS = {2: (3, 5), 4: (4, 1, 0, 6)}
SHAPES = [("BatchNorm1d", (3,)), ("BatchNorm1d", (3, 5)), ("BatchNorm2d", (3, 4, 2)), ("BatchNorm3d", (3, 2, 1, 3))]
OPTIONS = [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.5, "momentum": 0.7}]


def close(actual, other):
    torch.testing.assert_close(actual, other, rtol=1e-12, atol=1e-12)


def own_part(whole):
    """This rank's rows."""
    rows = ROWS[ddl.size()]
    begin = sum(rows[: ddl.rank()])
    return whole[begin : begin + rows[ddl.rank()]]


def as_one_process_would():
    from ddl_torch import SyncBatchNorm

    cases = 0
    for kind, shape in SHAPES:
        for options in OPTIONS:
            torch.manual_seed(7)
            whole = getattr(torch.nn, kind)(shape[0], **options).double()
            parted = SyncBatchNorm(shape[0], **options).double()
            if whole.affine:
                for parameter, own in zip(whole.parameters(), parted.parameters()):
                    own.data.copy_(torch.nn.init.normal_(parameter))
            for training in (True, True, False):
                whole.train(training), parted.train(training)
                x = (torch.randn(sum(ROWS[ddl.size()]), *shape).double() * 3 + 1000).requires_grad_()
                weights = torch.randn_like(x)
                own_x = own_part(x).detach().clone().requires_grad_()
                if not training and not whole.track_running_stats:
                    continue  # statistics of the batch in eval: of the own one, as torch has it
                y, own_y = whole(x), parted(own_x)
                close(own_y, own_part(y))
                whole.zero_grad(), parted.zero_grad()
                (y * weights).sum().backward()
                (own_y * own_part(weights)).sum().backward()
                close(own_x.grad, own_part(x.grad))
                for parameter, own in zip(whole.parameters(), parted.parameters()):
                    total = torch.from_numpy(ddl.allreduce(own.grad.numpy(), op=ddl.Sum))
                    torch.testing.assert_close(total, parameter.grad, rtol=1e-9, atol=1e-9)
                for buffer, own in zip(whole.buffers(), parted.buffers()):
                    torch.testing.assert_close(own, buffer, rtol=1e-10, atol=1e-10)
                cases += 1
    return cases


def other_things():
    from ddl_torch import SyncBatchNorm

    layer = SyncBatchNorm(2)
    refused = []
    for wrong in (torch.ones(1 - ddl.rank(), 2), torch.ones(4), torch.ones(4, 3)):  # one value on all ranks; shapes
        try:
            layer(wrong)
        except ValueError as error:
            refused.append(str(error))
    x = torch.randn(4, 2, dtype=torch.bfloat16) * 0 + ddl.rank()
    half = SyncBatchNorm(2).bfloat16()(x)
    own = ddl.world().split(ddl.rank())
    alone = SyncBatchNorm(2, communicator=own)(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    with torch.no_grad():
        layer(torch.full((1, 2), float(ddl.rank())))
    return refused, half.tolist(), alone.tolist(), layer.running_mean.tolist(), float(ddl.allreduce(1.0))


def both():
    return as_one_process_would(), other_things()


CASES = len(SHAPES) * (3 * len(OPTIONS) - 1)


@pytest.mark.processes
def test_four_ranks_are_as_one_process_with_the_whole_batch():
    assert ranks.run(4, as_one_process_would, env={"OMP_NUM_THREADS": "1"}) == [CASES] * 4


@pytest.mark.processes
def test_two_ranks_are_as_one_process_what_is_refused_and_what_else_it_takes():
    for rank, (cases, others) in enumerate(ranks.run(2, both, env={"OMP_NUM_THREADS": "1"})):
        assert cases == CASES
        refused, half, alone, running, after = others
        assert "more than 1 value per channel is needed over all ranks" in refused[0]
        assert [text.split(": ", 1)[1] for text in refused[1:]] == [
            "the input has shape (4,)",
            "the input has shape (4, 3)",
        ]
        assert half == [[2 * rank - 1.0] * 2] * 4  # zeros on one rank, ones on the other
        torch.testing.assert_close(torch.tensor(alone), torch.tensor([[-1.0, -1.0], [1.0, 1.0]]), rtol=0, atol=1e-4)
        assert running == [pytest.approx(0.05)] * 2 and after == 1


def test_converting_keeps_parameters_and_statistics():
    import ddl_torch

    ddl.init()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 3, 2),
        torch.nn.BatchNorm2d(3, eps=0.1, momentum=None),
        torch.nn.Sequential(torch.nn.BatchNorm2d(3, affine=False)),
    )
    x = torch.randn(5, 1, 4, 4)
    model(x)
    model[2].eval()
    parameters, state = list(model.parameters()), {name: value.clone() for name, value in model.state_dict().items()}
    expected = torch.nn.Sequential(*model)  # the old layers
    layers = list(expected)
    converted = ddl_torch.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model and isinstance(model[1], ddl_torch.SyncBatchNorm)
    assert isinstance(model[2][0], ddl_torch.SyncBatchNorm) and not model[2][0].training and model[1].training
    assert all(parameter is other for parameter, other in zip(model.parameters(), parameters))
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert (model[1].eps, model[1].momentum, model[2][0].affine) == (0.1, None, False)
    assert torch.equal(model.eval()(x), torch.nn.Sequential(*layers).eval()(x))
    assert model[1] is ddl_torch.SyncBatchNorm.convert_sync_batchnorm(model)[1]
    bare = ddl_torch.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(4))
    assert isinstance(bare, ddl_torch.SyncBatchNorm) and bare.num_features == 4
    ddl.shutdown()
