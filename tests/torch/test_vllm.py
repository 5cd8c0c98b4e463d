"""vLLM on the backend "ddl", which it finds by its own way of plug-ins."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_groups import ROOT, installed

pytest.importorskip("torch")
ABSENT = importlib.util.find_spec("vllm") is None
WHY = "vLLM is not installed: it wants other versions than DDL's tests, so an environment of its own (docs/vllm.md)"


def with_vllm(test: Any) -> Any:
    marks = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(900), pytest.mark.skipif(ABSENT, reason=WHY)]
    for mark in marks:
        test = mark(test)
    return test


def run(line: str, folder: Path, plugins: str = "ddl", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python in ``folder``, with DDL as if installed."""
    environ = {**os.environ, "PYTHONPATH": installed(folder), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environ.update(VLLM_NO_USAGE_STATS="1", VLLM_PLUGINS=plugins, **variables)
    words = [sys.executable, *line.split()]
    return subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True, timeout=800, check=False)


@pytest.mark.parametrize("plugins", [None, "", "other", "ddlx,other"])
def test_it_is_there_only_for_those_who_name_it(plugins: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddl_torch.vllm import plugin

    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if plugins is not None:
        monkeypatch.setenv("VLLM_PLUGINS", plugins)
    assert plugin() is None


PLATFORM = """
from vllm.platforms import current_platform
print("PLATFORM", type(current_platform).__name__, current_platform.dist_backend)
"""


@with_vllm
@pytest.mark.parametrize(("plugins", "says"), [("other,ddl", "DDLPlatform ddl"), ("other", "CpuPlatform gloo")])
def test_vllm_finds_the_platform(plugins: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PLATFORM)
    done = run("program.py", tmp_path, plugins)
    assert f"PLATFORM {says}" in done.stdout, done.stdout + done.stderr


@with_vllm
def test_a_vllm_that_is_not_for_cpus(tmp_path: Path) -> None:
    """As on a machine with GPUs; vLLM itself would show no error of ours."""
    other = "import vllm.platforms\nnone = vllm.platforms.cpu_platform_plugin = lambda: None\n"
    other += "vllm.platforms.builtin_platform_plugins['cpu'] = none\n"
    (tmp_path / "program.py").write_text(other + PLATFORM)
    done = run("program.py", tmp_path)
    assert "PLATFORM UnspecifiedPlatform" in done.stdout, done.stdout + done.stderr
    assert "this vLLM is not built for CPUs, so it goes on without DDL" in done.stderr


@with_vllm
def test_the_example_gives_the_tokens_of_one_rank(tmp_path: Path) -> None:
    tokens = []
    for ranks in (1, 2):
        line = f"-m ddl.launch -np {ranks} {ROOT / 'examples' / 'torch_vllm.py'}"
        done = run(line, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        (said,) = re.findall(rf"{ranks} ranks on ddl: (.*)", done.stdout)
        tokens.append(said)
    assert tokens[0] == tokens[1] and tokens[0].count(",") == 23, tokens


OWN_PROCESSES = """
import runpy
import torch.distributed as dist
from transformers import LlamaForCausalLM
from vllm import LLM, SamplingParams

def backend(worker):
    from vllm.distributed.parallel_state import get_tp_group
    return type(get_tp_group().device_communicator).__name__, dist.get_backend(get_tp_group().device_group)

if __name__ == "__main__":
    runpy.run_path("EXAMPLE")["make_model"]("model")
    llm = LLM(
        model="model", tensor_parallel_size=2, skip_tokenizer_init=True, dtype="float32", max_model_len=64,
        kv_cache_memory_bytes=64 << 20, enforce_eager=True,
    )
    greedy = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True, detokenize=False)
    assert len(llm.generate([{"prompt_token_ids": [1, 2]}], greedy)[0].outputs[0].token_ids) == 3
    print("GROUPS", llm.collective_rpc(backend))
"""


@with_vllm
def test_processes_that_vllm_starts_itself(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(OWN_PROCESSES.replace("EXAMPLE", str(ROOT / "examples" / "torch_vllm.py")))
    sends_functions = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}  # of this test
    done = run("program.py", tmp_path, VLLM_CPU_SIM_MULTI_NUMA="1", **sends_functions)  # two ranks on one memory node
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GROUPS [('DDLGroupCommunicator', 'ddl'), ('DDLGroupCommunicator', 'ddl')]" in done.stdout


VERBS = """
import os
import signal
import sys
import torch
import torch.distributed as dist
import vllm.distributed.parallel_state as parallel
from vllm.config import ParallelConfig, VllmConfig, set_current_vllm_config
from vllm.platforms import current_platform

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
config = VllmConfig(parallel_config=ParallelConfig(tensor_parallel_size=size))
with set_current_vllm_config(config):
    local = int(os.environ["LOCAL_RANK"])
    parallel.init_distributed_environment(size, rank, "env://", local, current_platform.dist_backend)
    parallel.initialize_model_parallel(tensor_model_parallel_size=size)
    group = parallel.get_tp_group()
    total = sum(range(1, size + 1))
    for kind in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.full((3, 4), float(rank + 1), dtype=kind)
        assert (group.all_reduce(x.clone()) == total).all()
        gathered = group.all_gather(x, dim=-1)
        assert gathered.shape == (3, 4 * size) and gathered[0, ::4].tolist() == list(range(1, size + 1))
        assert (group.broadcast(x.clone(), src=1) == 2).all()
        own = group.reduce_scatter(torch.full((2 * size, 3), float(rank + 1), dtype=kind), dim=0)
        assert own.shape == (2, 3) and (own == total).all()
        onto = group.gather(x, dst=0)
        assert (onto is None) if rank else torch.equal(onto, gathered)
    assert group.broadcast_object({"rank": rank}, src=0) == {"rank": 0}
    sent = {"t": torch.arange(5), "n": 5}
    assert group.broadcast_tensor_dict(sent if rank == 0 else None, src=0)["t"].tolist() == [0, 1, 2, 3, 4]
    if rank == 0:
        group.send(torch.tensor([9.0]), 1)
        group.send_tensor_dict({"h": torch.arange(4.0)}, 1)
    elif rank == 1:
        assert group.recv(torch.Size([1]), torch.float32, 0).item() == 9
        assert group.recv_tensor_dict(0)["h"].tolist() == [0, 1, 2, 3]
    dist.all_reduce(torch.ones(1))
    print("all are right", flush=True)
    if "killed" in sys.argv:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(torch.ones(3))
    parallel.destroy_model_parallel()
    parallel.destroy_distributed_environment()
"""


@with_vllm
def test_a_groups_operations(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(VERBS)
    done = run("-m ddl.launch -np 3 program.py", tmp_path)
    assert done.returncode == 0 and done.stdout.count("all are right") == 3, done.stdout + done.stderr


@with_vllm
@pytest.mark.faults
def test_a_rank_is_killed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(VERBS)
    done = run("-m ddl.launch -np 2 program.py killed", tmp_path)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert "PeerLost: [rank 0/2" in done.stderr and "lost rank 1" in done.stderr, done.stderr
    assert "ddlrun: rank 1 (pid " in done.stderr and "was killed by signal 9 (SIGKILL)" in done.stderr
