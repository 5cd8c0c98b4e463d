"""The average over virtual shards has the same bits on any number of ranks: those of one tree over the shards.

What must come out is worked out with numpy, on one process, along that tree.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest
import ranks
from core.jobs import connected
from core.test_deterministic import added, inputs
from core.values import Bfloat16
from docstrings import run_examples

import ddl
from ddl.adapter.virtual_shards import VirtualSum, _TreeOnRanks, owners_of, shard_seed, shards_of
from ddl.plan.canonical_tree import Order, order

#: Nothing, less than ranks, odd primes, and several of the blocks that are added at a time.
COUNTS = [0, 1, 3, 13, 4099, 50_021]


# --- who has what ---


@pytest.mark.parametrize("adjacent", [False, True])
def test_each_shard_belongs_to_one_rank(adjacent: bool) -> None:
    for shards in range(1, 20):
        for size in range(1, shards + 1):
            own = [shards_of(rank, size, shards, adjacent=adjacent) for rank in range(size)]
            assert sorted(v for of_rank in own for v in of_rank) == list(range(shards))
            assert {len(of_rank) for of_rank in own} <= {shards // size, -(-shards // size)}
            if not adjacent:
                assert all(v % size == rank for rank, of_rank in enumerate(own) for v in of_rank)


@pytest.mark.parametrize("adjacent", [False, True])
def test_sums_of_ranks_are_added_to_the_tree_over_shards(adjacent: bool) -> None:
    """Follow each addition as a symbol, on any number of ranks."""
    for shards in range(1, 20):
        for size in range(1, shards + 1):
            tree = _TreeOnRanks(size, owners_of(size, shards, adjacent=adjacent))
            rows: List[Order] = [part for parts in tree.parts for part in parts]
            for low, high in tree.additions:
                rows[low] = (rows[low], rows[high])
            assert rows[tree.additions[-1][0] if tree.additions else 0] == order(0, shards)
            even = shards % size == 0 and bin(shards // size).count("1") == 1 and (adjacent or shards == size)
            assert tree.is_over_ranks or not even
            assert len(rows) == size or not tree.is_over_ranks


def test_adjacent_shards_make_fewer_sums_to_send() -> None:
    def most(size: int, shards: int, adjacent: bool) -> int:
        return max(map(len, _TreeOnRanks(size, owners_of(size, shards, adjacent=adjacent)).parts))

    assert [most(4, shards, False) for shards in (4, 8, 12, 16)] == [1, 2, 3, 4]
    assert [most(4, shards, True) for shards in (4, 8, 12, 16)] == [1, 1, 2, 1]
    assert most(1, 12, False) == 1
    for shards in range(1, 65):
        for size in range(1, shards + 1):
            assert most(size, shards, True) <= 2 * (-(-shards // size)).bit_length()


def test_a_seed_depends_on_its_numbers_only() -> None:
    assert shard_seed(0, 0, 0) == 0xA2266035BBB0C56B
    seeds = {shard_seed(seed, step, v) for seed in (-1, 0, 1, 2**70) for step in range(12) for v in range(12)}
    assert len(seeds) == 4 * 144 and all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shards_of(0, 3, 2), "2 shards are too few for 3 ranks"),
        (lambda: shards_of(3, 3, 5), "rank=3"),
    ],
)
def test_what_cannot_be_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ddl.InvalidArgument, match=words):
        call()


def examples() -> int:
    names: Dict[str, Any] = {"ddl": ddl, "VirtualSum": VirtualSum, "shards_of": shards_of, "shard_seed": shard_seed}
    names["gradient_of"] = lambda shard: np.full(3, shard, np.float32)
    names["owners_of"] = owners_of
    count = sum(run_examples(thing.__doc__, names) for thing in (shards_of, owners_of, VirtualSum))
    assert names["average"].tolist() == [5.5] * 3
    return count


@pytest.mark.processes
def test_the_examples_run() -> None:
    assert ranks.run(1, examples) == [5]


# --- the same bits ---


def averages_of(total: VirtualSum, rows: np.ndarray) -> np.ndarray:
    """Add this rank's rows in an order of no meaning, and return the average."""
    for shard in sorted(total.own, key=lambda v: shard_seed(len(rows), 0, v)):
        total.add(shard, rows[shard])
    return total.average()


def against_the_tree(shards: int, adjacent: bool, deterministic: bool) -> int:
    warnings.simplefilter("error")
    done = 0
    comm = ddl.world().split(0, deterministic=deterministic)
    assert comm is not None
    for dtype in ("float16", "float32", "float64"):
        for count in COUNTS:
            total = VirtualSum(comm, shards, adjacent=adjacent)
            for salt in (0, 1):  # the second time it uses the same memory
                rows = inputs(dtype, shards, count + salt)[:, :count]
                average = averages_of(total, rows)
                assert average.dtype == dtype and average.shape == (count,)
                assert average.tobytes() == added(rows, True).tobytes(), (dtype, count, salt)
                average[:] = 0  # it is the caller's
                done += 1
    return done


@pytest.mark.few(1)
@pytest.mark.processes
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("adjacent", [False, True])
def test_any_number_of_ranks_has_the_bits_of_the_tree(size: int, adjacent: bool) -> None:
    for shards in (4, 12):
        assert ranks.run(size, against_the_tree, shards, adjacent, size % 2 == 0) == [36] * size


def with_owners(owners: List[int]) -> None:
    rows = inputs("float32", len(owners), 1009)
    average = averages_of(VirtualSum(ddl.world(), len(owners), owners=owners), rows)
    assert average.tobytes() == added(rows, True).tobytes()


@pytest.mark.processes
@pytest.mark.parametrize("owners", [[2, 2, 0, 1, 2, 0, 0], [1, 0, 0, 0, 0, 2, 0, 0], [2, 1, 0]])
def test_the_bits_do_not_depend_on_who_has_a_shard(owners: List[int]) -> None:
    ranks.run(3, with_owners, owners)


@pytest.mark.slow
@pytest.mark.processes
def test_the_bits_do_not_depend_on_how_the_core_adds() -> None:
    """With one sum of each rank, a deterministic communicator adds by itself; another one does not."""
    for shards in (4, 8):
        assert _TreeOnRanks(4, owners_of(4, shards, adjacent=True)).is_over_ranks
        for deterministic in (False, True):
            assert ranks.run(4, against_the_tree, shards, True, deterministic) == [36] * 4


def whole_numbers() -> None:
    for shards in (4, 7):
        total = VirtualSum(ddl.world(), shards)
        rows = np.arange(shards)[:, None] * 2.0 + np.arange(1009)
        assert (averages_of(total, rows) == np.arange(1009) + shards - 1).all()


@pytest.mark.processes
def test_whole_numbers_are_exact() -> None:
    ranks.run(3, whole_numbers)


def as_a_deterministic_allreduce() -> None:
    """With a shard for each rank there is nothing new: the core adds along the same tree."""
    comm = ddl.world().split(0, deterministic=True)
    assert comm is not None
    for dtype in ("float16", "float32", "float64"):
        rows = inputs(dtype, comm.size, 4099)
        expected = comm.allreduce(rows[comm.rank])
        assert averages_of(VirtualSum(comm, comm.size), rows).tobytes() == expected.tobytes()


@pytest.mark.processes
@pytest.mark.parametrize("size", [3, 4])
def test_one_shard_for_each_rank_is_a_deterministic_allreduce(size: int) -> None:
    ranks.run(size, as_a_deterministic_allreduce)


def bfloat16_as_a_deterministic_allreduce() -> None:
    import ml_dtypes

    comm = ddl.world().split(0, deterministic=True)
    assert comm is not None
    rows = inputs("float32", comm.size, 4099).astype(ml_dtypes.bfloat16)
    bits = rows[comm.rank].view(np.uint16).copy()
    comm.allreduce_(Bfloat16(bits), op=ddl.Average)
    average = averages_of(VirtualSum(comm, comm.size), rows)
    assert average.dtype == rows.dtype and average.tobytes() == bits.tobytes()


@pytest.mark.processes
def test_bfloat16_rounds_as_the_core_does() -> None:
    pytest.importorskip("ml_dtypes")
    ranks.run(3, bfloat16_as_a_deterministic_allreduce)


def what_is_not_finite() -> None:
    warnings.simplefilter("error")
    rows = np.array([[np.inf, 6e4, np.nan, 1], [1, 6e4, 1, 1], [1, 1, 1, 1]], np.float16)
    average = averages_of(VirtualSum(ddl.world(), 3), rows)
    assert np.array_equal(average, np.array([np.inf, np.inf, np.nan, 1], np.float16), equal_nan=True)


@pytest.mark.processes
def test_what_is_not_finite_shows_in_the_result() -> None:
    for size in (1, 2):
        ranks.run(size, what_is_not_finite)


# --- bytes ---


def bytes_sent() -> Dict[str, int]:
    """How many bytes this rank sends for each kind of average of 96,000 bytes."""
    comm, gradient = ddl.world(), np.ones(24_000, np.float32)

    def sent(call: Callable[[], Any]) -> int:
        call()  # the first time, ranks compare what they have
        before = comm.traffic()[1]
        call()
        return comm.traffic()[1] - before

    rows = np.ones((12, gradient.size), np.float32)
    result = {"all-reduce": sent(lambda: comm.allreduce(gradient))}
    for adjacent in (False, True):
        total = VirtualSum(comm, 12, adjacent=adjacent)
        result["adjacent" if adjacent else "in turn"] = sent(partial(averages_of, total, rows))
    return result


@pytest.mark.processes
def test_bytes_are_as_documented() -> None:
    unit = 96_000 * 3 // 4
    expected = {"all-reduce": 2 * unit, "in turn": 4 * unit, "adjacent": 3 * unit}
    assert ranks.run(4, bytes_sent, **connected("tcp")) == [expected] * 4


# --- mistakes ---


def refused(total: VirtualSum, gradients: Dict[int, Any]) -> Tuple[str, str]:
    for shard, gradient in gradients.items():
        total.add(shard, gradient)
    with pytest.raises(ddl.InvalidArgument) as caught:
        total.average()
    return type(caught.value).__name__, str(caught.value)


def ranks_that_differ() -> List[Tuple[str, str]]:
    """On rank 1 something differs each time; afterwards the same communicator works."""
    comm, odd = ddl.world(), ddl.rank() == 1
    ones = np.ones(5, np.float32)

    def all_of(total: VirtualSum, gradient: np.ndarray) -> Dict[int, Any]:
        return dict.fromkeys(total.own, gradient)

    answers = []
    total = VirtualSum(comm, 5 if odd else 4)
    answers.append(refused(total, all_of(total, ones)))
    total = VirtualSum(comm, 4, adjacent=odd)
    answers.append(refused(total, all_of(total, ones)))
    total = VirtualSum(comm, 4)
    answers.append(refused(total, all_of(total, np.ones(6 if odd else 5, np.float32))))
    answers.append(refused(total, all_of(total, ones.astype(np.float64) if odd else ones)))
    answers.append(refused(total, {} if odd else all_of(total, ones)))
    answers.append(refused(total, {1: ones} if odd else all_of(total, ones)))
    assert averages_of(total, np.arange(4.0)[:, None] * np.ones(7)).tolist() == [1.5] * 7
    return answers


@pytest.mark.processes
def test_ranks_that_differ_get_the_same_error_and_go_on() -> None:
    first, second = ranks.run(2, ranks_that_differ)
    words = [
        ("a sum of 4 shards", "a sum of 5 shards"),
        ("of ranks [0, 1, 0, 1]", "of ranks [0, 0, 1, 1]"),
        ("a gradient of 5 x float32", "a gradient of 6 x float32"),
        ("a gradient of 5 x float32", "a gradient of 5 x float64"),
        ("on rank 1", "shards [1, 3] were not added"),
        ("on rank 1", "shards [3] were not added"),
    ]
    for answers in (first, second):
        assert len(answers) == len(words)
        for (kind, text), pair in zip(answers, words):
            assert kind == "InvalidArgument" and all(word in text for word in pair), text
    assert [text.partition("] ")[2] for _, text in first] == [text.partition("] ")[2] for _, text in second]


def what_a_rank_refuses() -> List[str]:
    total, ones = VirtualSum(ddl.world(), 3), np.ones(4, np.float32)
    texts = []

    def refuse(shard: int, gradient: Any) -> None:
        with pytest.raises(ddl.InvalidArgument) as caught:
            total.add(shard, gradient)
        texts.append(str(caught.value))

    with pytest.raises(ddl.InvalidArgument, match="must name a rank for each of 3 shards"):
        VirtualSum(ddl.world(), 3, owners=[0, 0])
    with pytest.raises(ddl.InvalidArgument, match="each of 1 ranks"):
        VirtualSum(ddl.world(), 3, owners=[0, 0, 1])
    refuse(3, ones)
    refuse(0, ones.astype(int))
    total.add(0, ones)
    refuse(0, ones)
    refuse(1, ones[:3])
    refuse(1, ones.astype(np.float64))
    total.add(2, ones)
    total.add(1, ones.reshape(2, 2))
    assert total.average().tolist() == [1] * 4
    total.add(2, ones)
    with pytest.raises(ddl.InvalidArgument, match=r"shards \[0, 1\] were not added"):
        total.average()
    for shard in total.own:
        total.add(shard, ones)
    assert total.average().tolist() == [1] * 4
    return texts


@pytest.mark.processes
def test_a_rank_refuses_what_it_can_see_by_itself() -> None:
    (texts,) = ranks.run(1, what_a_rank_refuses)
    words = ["is not one of this rank's", "float16, bfloat16", "added already", "has 3 x float32", "has 4 x float64"]
    assert len(texts) == len(words) and all(word in text for word, text in zip(words, texts)), texts
