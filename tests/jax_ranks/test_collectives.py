"""Programs of JAX that know nothing of DDL: their collectives on CPUs are DDL's, and right."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest

pytest.importorskip("jaxlib", reason="JAX is not installed: pip install 'open-ddl[engines]'")
from ddl_jax import _library  # noqa: E402

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("size", [2, 4])
def test_every_collective_is_right(ddlrun, size):
    done = ddlrun(size, "collectives.py")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(size):
        assert f"rank {rank} of {size}: all right, True" in done.stdout, done.stdout


def test_one_rank_needs_no_other(ddlrun, tmp_path):
    program = tmp_path / "alone.py"
    program.write_text(
        "import jax\njax.distributed.initialize()\nprint(jax.process_count(), jax.numpy.ones(3).sum())\n"
    )
    done = ddlrun(1, str(program))
    assert done.returncode == 0 and "1 3.0" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("verb", ["psum", "ppermute"])
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_job_with_the_verdict(ddlrun, verb, victim):
    done = ddlrun(2, "killed.py", verb, str(victim))
    assert done.returncode == 137, done.stdout + done.stderr
    other = 1 - victim
    lost = re.search(rf"ddl: PeerLost: \[rank {other}/2 host .*lost rank {victim} ", done.stderr)
    assert lost, done.stderr
    assert f"rank {victim} (pid" in done.stderr  # ddlrun's own last word


def test_each_half_of_the_ranks_may_have_a_mesh_of_its_own(ddlrun):
    done = ddlrun(4, "groups.py", "halves")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("total [[1.0") == 2 and done.stdout.count("total [[5.0") == 2, done.stdout


def test_two_devices_of_a_process_are_refused(ddlrun):
    done = ddlrun(2, "groups.py", "all", environ={"JAX_NUM_CPU_DEVICES": "2"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MPI error: InvalidState: [rank " in done.stderr and "one device of each process" in done.stderr


@pytest.mark.faults
def test_a_mesh_of_some_ranks_fails_when_the_others_do_not_come(ddlrun):
    done = ddlrun(4, "groups.py", "some", environ={"DDL_TIMEOUT": "2"})
    assert done.returncode == 1, done.stdout + done.stderr
    assert "MPI error: CollectiveTimeout: [rank " in done.stderr and "rank 2 has not called it" in done.stderr


def test_the_library_has_all_that_jaxlib_asks_for():
    """A name that it lacks would end every program when it imports JAX."""
    import jaxlib

    library = ctypes.CDLL(_library._path())
    asked = set()
    for path in Path(jaxlib.__path__[0]).glob("*.so"):
        asked |= set(re.findall(rb"\0(MPIX?ABI_\w+)(?=\0)", path.read_bytes()))
    assert len(asked) > 600
    missing = [name.decode() for name in asked if not hasattr(library, name.decode())]
    assert not missing, sorted(missing)


#: What JAX itself looks for in a job of Slurm's; ddlrun's ranks there have it of their agents.
SLURM = ("JOB_ID", "STEP_NODELIST", "NTASKS", "PROCID", "LOCALID", "STEP_NUM_NODES")
CHOICE = """
import logging, os, sys
{first}
import jax, ddl_jax
jax.distributed.initialize()
jax.devices()
assert (jax.process_count(), jax.process_index()) == (2, int(os.environ["DDL_RANK"]))
print("chosen", jax.config.jax_cpu_collectives_implementation)
"""


@pytest.mark.parametrize(
    ("first", "options", "environ", "chosen"),
    [
        ("", "--jax", {}, "mpi"),
        ("import ddl_jax", "", {}, "mpi"),
        ("", "--jax", {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo"}, "gloo"),
        ("", "--jax", {f"SLURM_{name}": "7" for name in SLURM}, "mpi"),
        ("", "", {}, "gloo"),
    ],
    ids=["by ddlrun", "imported before", "the user's choice", "in an allocation", "imported too late"],
)
def test_who_serves_collectives(ddlrun, tmp_path, first, options, environ, chosen):
    program = tmp_path / "choice.py"
    program.write_text(CHOICE.format(first=first))
    done = ddlrun(2, str(program), options=options, environ=environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"chosen {chosen}") == 2, done.stdout
    assert ("import ddl_jax before jax" in done.stderr) == (not first and not options)


def test_a_sitecustomize_that_ddlrun_hides_is_run(ddlrun, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.own_site = 'was run'\n")
    program = tmp_path / "site.py"
    program.write_text("import sys\nprint('it', own_site, sys.modules['sitecustomize'].__file__)\n")
    done = ddlrun(1, str(program), environ={"PYTHONPATH": f"{tmp_path}:{Path(_library.__file__).parents[1]}"})
    assert done.returncode == 0 and f"it was run {tmp_path}" in done.stdout, done.stdout + done.stderr


def test_processes_that_are_not_the_ranks_are_named(ddlrun, tmp_path):
    """Each of two ranks says that it is JAX's only process."""
    program = tmp_path / "other.py"
    program.write_text(
        "import jax, socket\n"
        "with socket.create_server(('127.0.0.1', 0)) as probe:\n"
        "    port = probe.getsockname()[1]\n"
        "jax.distributed.initialize(f'127.0.0.1:{port}', 1, 0)\n"
        "print('sum', jax.numpy.ones(3).sum())\n"
    )
    done = ddlrun(2, str(program))
    assert "ddl: InvalidState: JAX has 1 processes, but DDL's job has 2 ranks" in done.stderr, done.stderr
    assert done.returncode == 0 and done.stdout.count("sum 3.0") == 2, done.stdout + done.stderr
