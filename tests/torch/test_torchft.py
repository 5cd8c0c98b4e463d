"""``ProcessGroupDDL`` does what torchft asks of a process group: ``configure``, ``abort``, ``errored``, and the verbs.

torchft is not needed. The cases are those of its own tests of process groups, and each runs on real processes.
"""

from __future__ import annotations

import datetime
import os
import signal
import time
from pathlib import Path

import pytest
import ranks

torch = pytest.importorskip("torch")
c10d = pytest.importorskip("torch.distributed.distributed_c10d")
pytestmark = pytest.mark.processes
SIZE = 3


class Replica:
    """This process's group, and torch's store, which rank 0 has."""

    def __init__(self, folder):
        import torch.distributed as dist

        from ddl_torch.torchft import ProcessGroupDDL

        self.number = int(os.environ["DDL_RANK"])
        self.group = ProcessGroupDDL(timeout=datetime.timedelta(seconds=100))
        file = Path(folder) / "port"
        if self.number == 0:
            self.store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
            file.with_suffix(".draft").write_text(str(self.store.port))
            file.with_suffix(".draft").rename(file)
        while not file.exists():
            time.sleep(0.01)
        self.place = f"127.0.0.1:{file.read_text()}"

    def configure(self, prefix, members=(0, 1, 2)):
        """Make ``members`` the group, in that order."""
        rank = members.index(self.number)
        self.group.configure(
            f"{self.place}/test/{prefix}", f"replica_{self.number}", rank, len(members), 1, 0, 1, list(members)
        )
        assert (self.group.rank(), self.group.size()) == (rank, len(members)) and self.group.errored() is None

    def total(self):
        """Return the sum of (rank + 1), by a verb."""
        x = torch.full((4,), self.group.rank() + 1.0)
        self.group.allreduce([x], c10d.AllreduceOptions()).wait()
        return float(x[0])


def verb_allreduce(group, r, n):
    x = torch.tensor([r + 1.0])
    group.allreduce([x], c10d.ReduceOp.SUM).wait()
    assert x.item() == n * (n + 1) / 2


def verb_allreduce_coalesced(group, r, n):
    x, y = torch.tensor([r + 1.0]), torch.tensor([r, r])
    group.allreduce_coalesced([x, y], c10d.AllreduceCoalescedOptions()).wait()
    assert x.item() == n * (n + 1) / 2 and y.tolist() == [n * (n - 1) // 2] * 2


def verb_allgather(group, r, n):
    outputs = [torch.zeros(2) for _ in range(n)]
    group.allgather([outputs], [torch.full((2,), r + 1.0)], c10d.AllgatherOptions()).wait()
    assert [x.tolist() for x in outputs] == [[rank + 1.0] * 2 for rank in range(n)]


def verb_allgather_into_tensor_coalesced(group, r, n):
    output = torch.zeros(n)
    group.allgather_into_tensor_coalesced([output], [torch.tensor([r + 1.0])], c10d.AllgatherOptions()).wait()
    assert output.tolist() == [rank + 1.0 for rank in range(n)]


def verb_alltoall_base(group, r, n):
    output = torch.zeros(n)
    group.alltoall_base(output, torch.arange(n) + 10.0 * r, [], [], c10d.AllToAllOptions()).wait()
    assert output.tolist() == [10.0 * rank + r for rank in range(n)]


def verb_barrier(group, r, n):
    group.barrier(c10d.BarrierOptions()).wait()


def verb_broadcast(group, r, n):
    for root in range(n):
        x, y = torch.tensor([float(r)]), torch.tensor([float(r)])
        options = c10d.BroadcastOptions()
        options.rootRank = root
        group.broadcast([x], options).wait()
        group.broadcast_one(y, root).wait()
        assert x.item() == y.item() == root


def verb_reduce_scatter(group, r, n):
    output = torch.zeros(1)
    group.reduce_scatter(
        [output], [[torch.tensor([float(i + r)]) for i in range(n)]], c10d.ReduceScatterOptions()
    ).wait()
    assert output.item() == n * r + n * (n - 1) / 2


def verb_reduce_scatter_tensor_coalesced(group, r, n):
    output = torch.zeros(1)
    group.reduce_scatter_tensor_coalesced([output], [torch.arange(n) + float(r)], c10d.ReduceScatterOptions()).wait()
    assert output.item() == n * r + n * (n - 1) / 2


def verb_send_and_recv(group, r, n):
    after, before, got = (r + 1) % n, (r - 1) % n, torch.zeros(1)
    sent = group.send([torch.tensor([r + 1.0])], after, 0)
    group.recv([got], before, 0).wait()
    sent.wait()
    assert got.item() == before + 1


VERBS = {name[len("verb_") :]: verb for name, verb in list(globals().items()) if name.startswith("verb_")}


def every_verb(folder):
    replica = Replica(folder)
    for number in range(3):
        replica.configure(number)
        for verb in VERBS.values():
            verb(replica.group, replica.group.rank(), SIZE)
    assert replica.group.getBackendName() == "torchft-ddl"
    replica.group.shutdown()
    replica.group.shutdown()


def test_every_verb_and_another_prefix(tmp_path) -> None:
    assert len(VERBS) == 10
    ranks.run(3, every_verb, str(tmp_path), initialise=False)


def resilient(folder):
    """The last rank leaves; the others raise, and are configured without it, and then with it once more."""
    import ddl

    replica = Replica(folder)
    group = replica.group
    for name, verb in VERBS.items():
        replica.configure(f"{name}/1")
        verb(group, group.rank(), SIZE)
        group.barrier().wait()
        if replica.number == 2:
            group.shutdown()
            with pytest.raises(ddl.InvalidState, match="call configure"):
                replica.total()
        else:
            with pytest.raises(ddl.CommunicatorError) as caught:
                for _ in range(100):  # a message between two others, and a broadcast from another, need no rank 2
                    verb(group, group.rank(), SIZE)
            assert not isinstance(caught.value, ddl.CollectiveTimeout)  # nobody has waited for a deadline
            assert isinstance(group.errored(), ddl.CommunicatorError)
            replica.configure(f"{name}/2", (0, 1))
            verb(group, group.rank(), 2)
        replica.configure(f"{name}/3", (2, 0, 1))
        verb(group, group.rank(), SIZE)


@pytest.mark.slow  # torch looks up the names of hosts, and the name server may take 5 s
def test_a_rank_leaves(tmp_path) -> None:
    ranks.run(3, resilient, str(tmp_path), initialise=False)


def leaving_while_others_wait(folder):
    """The last rank shuts its group down, or configures it without the others, as ``again`` says."""
    import ddl

    replica = Replica(folder)
    for number, again in enumerate((False, True)):
        replica.configure(number)
        assert replica.total() == 6
        ranks.meet()
        if replica.number == 2:
            time.sleep(0.3)
            if again:
                replica.configure("alone", (2,))
            else:
                replica.group.shutdown()
        else:
            with pytest.raises(ddl.CommunicatorError) as caught:
                replica.total()
            assert not isinstance(caught.value, ddl.CollectiveTimeout)
            assert isinstance(replica.group.errored(), ddl.CommunicatorError)
        ranks.meet()


def test_a_rank_leaves_while_others_wait(tmp_path) -> None:
    ranks.run(3, leaving_while_others_wait, str(tmp_path), initialise=False)


def left_out(folder, victim):
    """Two ranks go on without the third, which waits for them."""
    import ddl

    replica = Replica(folder)
    replica.configure("first")
    assert replica.total() == 6
    ranks.meet()
    if replica.number == victim:
        with pytest.raises(ddl.CommunicatorError) as caught:
            replica.total()
        assert not isinstance(caught.value, ddl.CollectiveTimeout)
    else:
        time.sleep(0.3)
        replica.configure("second", tuple(rank for rank in range(SIZE) if rank != victim))
        assert replica.total() == 3
    ranks.meet()


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_left_out_is_told(victim, tmp_path) -> None:
    ranks.run(3, left_out, str(tmp_path), victim, initialise=False)


def dying(folder):
    import ddl

    replica = Replica(folder)
    replica.configure("first")
    replica.total()
    ranks.meet()
    if replica.number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(ddl.PeerLost, match="lost rank 1"):
        replica.total()
    assert isinstance(replica.group.errored(), ddl.PeerLost)
    replica.configure("second", (2, 0))
    assert replica.total() == 3


@pytest.mark.faults
def test_a_rank_dies(tmp_path) -> None:
    ranks.run(3, dying, str(tmp_path), initialise=False, may_die=[1])


def changing(folder):
    """[0, 1, 2], [2, 0], [1, 2, 0], and after an abort, and when a rank does not come."""
    import ddl

    replica = Replica(folder)
    group = replica.group
    assert group.errored() is None and (group.rank(), group.size()) == (0, 1)
    with pytest.raises(ddl.InvalidState, match="has no ranks; call configure"):
        replica.total()
    for number, members in enumerate([(0, 1, 2), (2, 0), (1, 2, 0)]):
        if replica.number in members:
            replica.configure(number, members)
            assert replica.total() == sum(range(1, len(members) + 1))
        ranks.meet()
    if replica.number == 0:
        group.abort()
    with pytest.raises(ddl.Aborted, match="the process group was aborted"):
        for _ in range(100):
            replica.total()
            time.sleep(0.01)
    assert isinstance(group.errored(), ddl.Aborted)
    ranks.meet()
    if replica.number < 2:
        group.set_timeout(datetime.timedelta(seconds=4))  # in which these two have to come
        with pytest.raises(ddl.RendezvousError, match="rank 2 did not come within 4 s"):
            replica.configure("missing")
        assert isinstance(group.errored(), ddl.RendezvousError)
        with pytest.raises(ddl.InvalidState, match="has no ranks"):
            replica.total()
        group.set_timeout(datetime.timedelta(seconds=100))
    ranks.meet()
    replica.configure("last")
    assert replica.total() == 6
    ranks.meet()
    with pytest.raises(ddl.InvalidState, match="already used"):
        replica.configure("last")
    ranks.meet()  # rank 0 has torch's store


@pytest.mark.slow  # torch looks up the names of hosts, and the name server may take 5 s
def test_ranks_change(tmp_path) -> None:
    ranks.run(3, changing, str(tmp_path), initialise=False)


def older(folder):
    """Without a replica's name, and two groups in one process, beside a job that ddlrun began."""
    import ddl
    from ddl_torch.torchft import ProcessGroupDDL

    replica, world = Replica(folder), ddl.world()
    other = ProcessGroupDDL()
    replica.group.configure(f"{replica.place}/a", replica.number, 2)
    other.configure(f"{replica.place}/b", 1 - replica.number, 2)
    assert (other.rank(), other.size()) == (1 - replica.number, 2)
    for _ in range(3):
        assert replica.total() == 3
        x = torch.tensor([other.rank() + 1.0])
        other.broadcast_one(x, 0).wait()
        assert x.item() == 1
        assert ddl.allreduce_(torch.ones(2), op=ddl.Sum).tolist() == [2, 2]
    assert ddl.world() is world


def test_several_groups_in_a_process(tmp_path) -> None:
    ranks.run(2, older, str(tmp_path))


def wrong(folder):
    import ddl

    replica = Replica(folder)
    for address, rank, text in (
        ("nowhere", 0, "is not host:port/prefix"),
        (f"{replica.place}/x", 5, "rank 5 of 2"),
        (f"{replica.place}/x", -1, "rank -1 of 2"),
    ):
        with pytest.raises(ddl.InvalidArgument, match=text):
            replica.group.configure(address, "replica_0", rank, 2)
    replica.group.set_timeout(datetime.timedelta(seconds=1))
    with pytest.raises(RuntimeError, match="no TCPStore answers at 127.0.0.1:1") as caught:
        replica.group.configure("127.0.0.1:1/x", "replica_0", 0, 2)
    assert isinstance(caught.value, ddl.RendezvousError) and replica.group.errored() is caught.value
    replica.group.set_timeout(datetime.timedelta(seconds=10))
    replica.configure("alone", (0,))
    assert replica.total() == 1 and replica.group.communicator.timeout == 10


def test_what_makes_no_sense_is_refused(tmp_path) -> None:
    ranks.run(1, wrong, str(tmp_path), initialise=False)


def registered(folder):
    """As a group of this process alone, for what asks torch's registry."""
    import torch.distributed as dist
    from torch.distributed import _functional_collectives

    replica = Replica(folder)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = replica.group.register("replicas")
    assert group is replica.group and group in dist.distributed_c10d._world.pg_map
    replica.configure("alone", (0,))
    x = _functional_collectives.all_reduce(torch.full((2,), 3.0), "sum", group)
    assert x.tolist() == [3, 3]
    dist.all_reduce(torch.ones(2), group=group)
    group.unregister()
    assert group not in dist.distributed_c10d._world.pg_map


def test_registered_with_torch(tmp_path) -> None:
    ranks.run(1, registered, str(tmp_path), initialise=False)
