"""Models by their published sizes, and what of a step's communication is exposed."""

from __future__ import annotations

import pytest
from tuning.machines import laid_out, machine_of

from ddl.errors import ConfigError
from ddl.topology import Link, Topology
from ddl.tuning.simulate.cost import Level, Machine
from ddl.tuning.simulate.models import MODELS, Layer, Model, model
from ddl.tuning.simulate.simulation import Lateness
from ddl.tuning.simulate.training import Workload, buckets_of, train


@pytest.mark.parametrize(
    ("name", "parameters", "gigaflops"),
    [
        ("resnet50", 25_557_032, 4.1 * 2),
        ("resnet101", 44_549_160, 7.8 * 2),
        ("vgg16", 138_357_544, 15.5 * 2),
        ("bert-base", 109_482_240, 11.2 * 2),
    ],
)
def test_models_have_their_published_size(name: str, parameters: int, gigaflops: float) -> None:
    """Parameters are exact; operations, counted as multiply-adds in the literature, to two digits."""
    assert model(name).parameters == parameters
    assert model(name).flops / 1e9 == pytest.approx(gigaflops, rel=0.01)


def test_the_last_layer_has_as_many_classes_as_wanted() -> None:
    assert model("resnet101", 22_000).parameters == 44_549_160 - 1000 * 2049 + 22_000 * 2049
    assert set(MODELS) == {"resnet50", "resnet101", "vgg16", "bert-base"}
    with pytest.raises(ConfigError, match="use one of resnet50"):
        model("resnet")


def test_buckets_are_submitted_when_their_last_gradient_is_there() -> None:
    """Three layers of 1, 1 and 2 parts; backward takes 0.8 of 1.2 s and runs from the last to the first."""
    layers = (Layer("a", (1000,), 1.0), Layer("b", (1000,), 1.0), Layer("c", (1000,), 2.0))
    buckets = buckets_of(Workload(Model("small", layers), 1.2, bucket_bytes=4096))
    assert [round(bucket.ready_s, 9) for bucket in buckets] == [0.8, 1.0, 1.2]
    buckets = buckets_of(Workload(Model("small", layers), 1.2, bucket_bytes=8192))
    assert [round(bucket.ready_s, 9) for bucket in buckets] == [1.0, 1.2]
    buckets = buckets_of(Workload(Model("small", layers), 1.2, bucket_bytes=4096, overlap=False))
    assert [bucket.ready_s for bucket in buckets] == [1.2] * 3


def test_gradients_of_resnet50_lie_in_the_adapters_buckets() -> None:
    buckets = buckets_of(Workload(model("resnet50"), 0.2))
    assert sum(bucket.nbytes for bucket in buckets) == pytest.approx(25_557_032 * 4, rel=1e-3)  # padding and flags
    times = [bucket.ready_s for bucket in buckets]
    assert times == sorted(times) and times[-1] == pytest.approx(0.2)


def test_a_rank_alone_is_the_measure() -> None:
    step = train(machine_of(1), Topology.flat(1), Workload(model("resnet50"), 0.2))
    assert (step.efficiency, step.exposed_s, step.communication_s) == (1.0, 0.0, 0.0)


def test_overlap_hides_all_but_the_last_bucket() -> None:
    machine = machine_of(1, [4])
    topology = laid_out(machine)
    work = Workload(model("resnet50"), 1.0)
    hidden = train(machine, topology, work)
    bare = train(machine, topology, Workload(model("resnet50"), 1.0, overlap=False))
    assert bare.exposed_s == pytest.approx(bare.communication_s)
    assert hidden.exposed_s < bare.exposed_s / 4
    assert hidden.step_s == pytest.approx(1.0 + hidden.exposed_s)
    assert bare.efficiency < hidden.efficiency < 1


def test_a_slow_network_is_what_a_step_takes() -> None:
    """Where communication takes much longer than computing, the step is the communication and what precedes it."""
    slow = Machine((Level("ranks", 1), Level("hosts", 2, Link(1e-5, 1e7))))
    work = Workload(model("resnet50"), 0.1)
    step = train(slow, Topology.flat(2), work)
    wire = sum(bucket.nbytes for bucket in step.buckets) / 1e7
    assert 0.99 * wire < step.communication_s < 1.02 * wire
    assert step.step_s == pytest.approx(step.buckets[0].ready_s + step.communication_s, rel=0.01)


def test_a_straggler_costs_everybody_its_lateness() -> None:
    machine = machine_of(2, [2], shared=True)
    work = Workload(model("resnet50"), 0.3)
    usual = train(machine, laid_out(machine), work)
    late = train(machine, laid_out(machine), work, stragglers={1: Lateness(plus_s=0.02)})
    assert late.step_s == pytest.approx(usual.step_s + 0.02, rel=0.01)
    assert late.exposed_s == pytest.approx(usual.exposed_s + 0.02, rel=0.05)


def test_a_step_without_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="give a time above 0"):
        Workload(model("resnet50"), 0.0)
