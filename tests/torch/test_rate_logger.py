"""``RateLogger``: what TensorBoard shows of two ranks, one of which is slow, and what is refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import ranks

torch = pytest.importorskip("torch")
pytest.importorskip("tensorboard")

from event_files import scalars_in  # noqa: E402 (it needs TensorBoard, which may not be there)

pytestmark = [pytest.mark.processes, pytest.mark.slow]  # torch.utils.tensorboard imports TensorFlow, if it is there
NAMES = ("steps_per_second", "waiting", "late_seconds")
SLOW = 0.02  # seconds that a step of rank 1 takes


def train(folder: str, wanted_late: bool) -> int:
    """Train until there are 20 steps, or for so long that all know that rank 1 is late; return how many steps."""
    from torch.utils.tensorboard import SummaryWriter

    import ddl_torch as ddl

    rank = ddl.rank()
    model = torch.nn.Linear(3, 2)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()  # the first one imports much
    with SummaryWriter(f"{folder}/rank{rank}") as writer:
        logger, silent = ddl.RateLogger(writer), ddl.RateLogger(None)
        for step in range(1, 2000):
            optimizer.zero_grad()
            model(torch.ones(4, 3)).sum().backward()
            time.sleep(SLOW * rank)
            optimizer.step()
            logger.step()
            silent.step()
            known = float(1 in ddl.metrics().late or not wanted_late)
            if step % 10 == 0 and ddl.allreduce(torch.tensor([known]), op=ddl.Min).item():
                if step >= 20:
                    break
    return step


def both(folder: Path, wanted_late: bool):
    (steps, other) = ranks.run(2, train, str(folder), wanted_late, env={"OMP_NUM_THREADS": "1"})
    assert steps == other
    shown = [scalars_in(folder / f"rank{rank}") for rank in (0, 1)]
    for numbers in shown:
        assert {f"ddl/{name}" for name in NAMES} == set(numbers)
        assert all(sorted(values) == list(range(10, steps + 1, 10)) for values in numbers.values())
        assert all(rate > 0 for rate in numbers["ddl/steps_per_second"].values())
        assert all(0 <= share <= 1 for share in numbers["ddl/waiting"].values())
    return steps, shown


@pytest.mark.alone
def test_what_tensorboard_shows(tmp_path: Path) -> None:
    steps, (fast, slow) = both(tmp_path, False)
    assert steps == 20
    assert sum(fast["ddl/waiting"].values()) > sum(slow["ddl/waiting"].values())
    assert set(fast["ddl/late_seconds"].values()) == {0.0}


@pytest.mark.alone
def test_a_late_rank_is_seen_in_its_own_file(tmp_path: Path) -> None:
    steps, (fast, slow) = both(tmp_path, True)
    assert set(fast["ddl/late_seconds"].values()) == {0.0}
    assert 0.5 * SLOW < slow["ddl/late_seconds"][steps] < 2 * SLOW


def other_names(folder: str) -> None:
    from torch.utils.tensorboard import SummaryWriter

    import ddl
    import ddl_torch

    with pytest.raises(ddl.InvalidArgument, match="every=0 is not a number of steps from 1 on"):
        ddl_torch.RateLogger(None, every=0)
    with SummaryWriter(folder) as writer:
        logger = ddl_torch.RateLogger(writer, every=2, prefix="job")
        for number in (100, 200, 300, 400):
            logger.step(number)


def test_tags_and_steps_of_the_user(tmp_path: Path) -> None:
    ranks.run(1, other_names, str(tmp_path))
    shown = scalars_in(tmp_path)
    assert {tag: sorted(values) for tag, values in shown.items()} == {f"job/{name}": [200, 400] for name in NAMES}
    assert set(shown["job/waiting"].values()) == {0.0}
