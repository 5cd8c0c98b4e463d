"""Every verdict of ``ddl doctor``, from made-up facts: two healthy hosts, and what a case changes about them."""

from __future__ import annotations

import dataclasses
import json
import threading
from pathlib import Path
from typing import List, Tuple

import pytest
from tools.doctor_facts import (
    ONE_FAR,
    ONE_SLOW,
    address,
    blocked,
    counted,
    cut_rail,
    gpu,
    healthy,
    mtus,
    of_rail_1,
    on_b,
    on_gpus,
    refused,
    speed,
    to_b,
    twins,
    unfinished,
    with_link,
    with_links,
    with_local,
    with_problem,
)

from ddl.net.interfaces import Interface
from ddl.tools.doctor import local as local_module
from ddl.tools.doctor import verdicts
from ddl.tools.doctor.checks.hosts import descriptors_needed
from ddl.tools.doctor.checks.starting import diagnose
from ddl.tools.doctor.checks.verdict import ERROR, OK, WARNING, Verdict
from ddl.tools.doctor.command import link_table, summary, verdict_lines
from ddl.tools.doctor.facts import Facts, HostLink, Task, facts_from_json
from ddl.tools.doctor.gpu_facts import EXCLUSIVE, PROHIBITED, HostGpus, PciLink
from ddl.tools.doctor.gpu_table import gpu_table
from ddl.tools.doctor.link import schedule
from ddl.tools.doctor.phrases import bytes_text, duration, pairs_text, rate

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


def bad(facts: Facts) -> List[Verdict]:
    return [verdict for verdict in verdicts.judge(facts) if verdict.level != OK]


Case = Tuple[str, Facts, str, str, Tuple[str, ...], str]
CASES: List[Case] = [
    # name, facts, level, check, hosts, words of the text or remedy
    ("loopback", on_b(chosen="127.0.0.1"), ERROR, "interface", ("b",), "loopback"),
    ("no interface", on_b(chosen="10.9.9.9"), ERROR, "interface", ("b",), "10.9.9.9"),
    (
        "carrier",
        on_b(interfaces=(Interface("eth0", address(1), carrier=False),)),
        ERROR,
        "interface",
        ("b",),
        "no carrier",
    ),
    ("no route", on_b(routes={"0": ""}), ERROR, "interface", ("b",), "no route to a"),
    ("route to itself", on_b(routes={"0": "127.0.0.1"}), ERROR, "interface", ("b",), "leads to this host itself"),
    ("other way", with_local(healthy(2, 2), 1, routes={"0": address(1, 1)}), WARNING, "interface", ("b",), "by eth1"),
    ("same machine", twins(), ERROR, "interface", ("a", "b"), "same address"),
    ("name unknown", on_b(names={"a": (), "b": (address(1),)}), WARNING, "names", ("b",), "a is not known"),
    (
        "name of another",
        with_local(healthy(3), 1, names={"b": (address(1),), "a": (address(2),)}),
        ERROR,
        "names",
        ("b",),
        "which is c",
    ),
    (
        "name of itself",
        on_b(names={"a": ("127.0.1.1",), "b": (address(1),)}),
        ERROR,
        "names",
        ("b",),
        "this host itself",
    ),
    ("name of nobody", on_b(names={"a": ("8.8.8.8",), "b": (address(1),)}), WARNING, "names", ("b",), "translated"),
    (
        "own name on loopback",
        on_b(names={"a": (address(0),), "b": ("127.0.1.1",)}),
        WARNING,
        "names",
        ("b",),
        "its own name, b, leads to 127.0.1.1",
    ),
    ("slow names", on_b(unanswered=("a",)), WARNING, "names", ("b",), "resolv.conf"),
    ("reverse", on_b(reverse={address(0): "b.example"}), WARNING, "names", ("b",), "is called b.example"),
    ("dropped", blocked("timeout"), ERROR, "ports", (), "no answer"),
    ("refused", blocked("refused"), ERROR, "ports", (), "refused"),
    ("forbidden", blocked("forbidden"), ERROR, "ports", (), "own"),
    ("some ports", blocked("", "", "timeout"), ERROR, "ports", (), "some ports only"),
    ("another error", blocked("odd"), ERROR, "ports", (), "ends with 'odd'"),
    ("stranger", with_links(healthy(), to_b, stranger=True), ERROR, "ports", (), "somebody else"),
    (
        "cut rail",
        cut_rail(),
        WARNING,
        "ports",
        ("b",),
        "a ↔ b, b ↔ c: the host cannot be reached on eth1",
    ),
    ("mtu", mtus(1400), WARNING, "mtu", (), "MTU 1400 on one side of eth0 and 1500"),
    ("black hole", with_links(healthy(), to_b, large=False), ERROR, "mtu", (), "packets of 1500 bytes vanish"),
    ("tunnel", with_links(healthy(), to_b, mtu=1420), WARNING, "mtu", (), "the path takes 1420 bytes"),
    ("far", with_links(healthy(), to_b, latency=3e-3), WARNING, "latency", (), "1 ms and more"),
    ("farther", ONE_FAR, WARNING, "latency", ("c",), "five times as long"),
    ("stall", with_links(healthy(), to_b, bandwidth=None), ERROR, "bandwidth", (), "data does not pass"),
    ("thin", with_links(healthy(), to_b, bandwidth=1e8), WARNING, "bandwidth", (), "less than 500 Mb/s"),
    ("half speed", speed(1e10), WARNING, "bandwidth", (), "less than half of what eth0 should carry (10 Gb/s)"),
    ("one slow", ONE_SLOW, WARNING, "bandwidth", ("b", "d"), "b → d: less than a third of what other hosts have"),
    ("slow rail", with_links(healthy(2, 2), of_rail_1, bandwidth=1e9), WARNING, "bandwidth", (), "eth1 carries 1 Gb/s"),
    (
        "faster rail",
        with_links(healthy(2, 2), of_rail_1, bandwidth=9e10),
        WARNING,
        "bandwidth",
        (),
        "--network-interface eth1",
    ),
    ("clock", with_links(healthy(3), lambda link: link.target == 1, offset=-90.2), WARNING, "clock", ("b",), "90 s"),
    ("descriptors", on_b(descriptors=40, descriptors_hard=40), ERROR, "descriptors", ("b",), "LimitNOFILE=1024"),
    ("soft limit", on_b(descriptors=40), ERROR, "descriptors", ("b",), "ulimit -n 1024"),
    ("few descriptors", on_b(descriptors=256), WARNING, "descriptors", ("b",), "data loaders"),
    ("memlock", on_b(memlock=8 << 20, pinning="the GPU"), WARNING, "memlock", ("b",), "only 8 MiB"),
    ("gpu hidden", on_gpus(problem="the driver sees no GPU", visible=""), WARNING, "gpus", ("b",), "unset it"),
    ("gpu absent", on_gpus(problem="the driver sees no GPU"), WARNING, "gpus", ("b",), "--gpus all"),
    ("gpu stub", on_gpus(problem="x is the toolkit's stub"), WARNING, "gpus", ("b",), "LD_LIBRARY_PATH"),
    ("no library", on_b(gpus=HostGpus(library="x.so")), WARNING, "gpus", ("b",), "unset DDL_CUDA_LIBRARY"),
    ("gpu failed", on_gpus(gpu(), gpu(1, problem="GPU 1 has failed")), ERROR, "gpus", ("b",), "GPU 1 has failed"),
    ("gpu closed", on_gpus(gpu(compute_mode=PROHIBITED)), ERROR, "gpus", ("b",), "nvidia-smi -i 0 -c DEFAULT"),
    ("gpu taken", on_gpus(gpu(problem="GPU 0: x", compute_mode=EXCLUSIVE)), ERROR, "gpus", ("b",), "other process"),
    ("gpu shared", counted(on_gpus(gpu())), WARNING, "gpus", ("b",), "2 ranks for 1 GPU: ranks on the same GPU"),
    ("gpu exclusive", counted(on_gpus(gpu(compute_mode=EXCLUSIVE))), ERROR, "gpus", ("b",), "start 1 rank"),
    ("gpu lanes", with_link(lanes=8), WARNING, "gpu links", ("b",), "GPU 0 has 8 of 16 lanes"),
    ("gpu speed", with_link(speed=16.0), WARNING, "gpu links", ("b",), "run at 16 of 32 GT/s"),
    ("gpu slow", on_gpus(gpu(down=9e9, up=8e9)), WARNING, "gpu links", ("b",), "reach 9 GB/s of 63 GB/s"),
    ("gpu pageable", on_gpus(gpu(refusal="x", words_problem="x")), WARNING, "registering", ("b",), "a slower way"),
    ("gpu words", on_gpus(gpu(words_problem="too old")), WARNING, "words", ("b",), "515"),
    ("shm", on_b(shm=64 << 20), WARNING, "shm", ("b",), "/dev/shm has 64 MiB"),
    ("no shm", on_b(shm=0), WARNING, "shm", ("b",), "no /dev/shm"),
    ("memfd", on_b(memfd_problem="memfd_create: denied"), ERROR, "memfd", ("b",), "seccomp"),
    (
        "apart",
        dataclasses.replace(healthy(), groups=((0, 1), (2,), (3,))),
        WARNING,
        "sharing",
        ("b",),
        "in 2 groups that share no memory",
    ),
    (
        "no meeting",
        dataclasses.replace(healthy(), groups=None, groups_problem="rank 2: never came"),
        ERROR,
        "sharing",
        (),
        "rank 2: never came",
    ),
    ("bound", on_b(usable=1), WARNING, "cpus", ("b",), "bound to one of 8 cores"),
    ("crowded", on_b(usable=1, cores=1), WARNING, "cpus", ("b",), "2 ranks take turns on 1 of 1 cores"),
    ("quota", on_b(quota=1.5), WARNING, "cpus", ("b",), "the time of 1.5 cores"),
    ("container", refused("mbind"), WARNING, "container", ("b",), "mbind is refused (docker)"),
    ("core", on_b(core_problem="ImportError: no numpy"), ERROR, "core", ("b",), "no numpy"),
    ("directory", on_b(directory_problem="the directory /x is not there"), ERROR, "directory", ("b",), "/x"),
    ("script", on_b(script_problem="the script /x/y.py is not there"), ERROR, "script", ("b",), "y.py"),
    ("ended", dataclasses.replace(healthy(), failure="rank 1 died"), ERROR, "probe", None, "rank 1 died"),
    (
        "unfinished",
        unfinished(),
        ERROR,
        "probe",
        ("b",),
        "not finished",
    ),
    ("silent", with_problem(""), ERROR, "start", ("b",), "said nothing of itself"),
    ("unreachable", with_problem("ssh: connect to host b port 22: No route to host"), ERROR, "start", ("b",), "sshd"),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_each_trouble_has_its_verdict_and_no_other(case: Case) -> None:
    _, facts, level, check, hosts, words = case
    judged = bad(facts)
    assert len(judged) == 1, judged
    verdict = judged[0]
    assert (verdict.level, verdict.check) == (level, check)
    if hosts is not None:
        assert verdict.hosts == (hosts or ("a", "b"))
    assert words in f"{verdict.text}; {verdict.remedy}"
    assert verdict.remedy
    line = verdict_lines([verdict], facts)[0]
    assert "\n" not in line and line.startswith(level)


def test_a_host_without_openssl_is_no_trouble_until_a_job_wants_to_encrypt() -> None:
    facts = on_b(encryption_problem="encryption needs OpenSSL, and there is none")
    said = [(v.level, v.hosts, v.text) for v in verdicts.judge(facts) if v.check == "encryption"]
    assert said == [
        (OK, ("a",), "jobs can be encrypted (ddlrun --encrypt)"),
        (OK, ("b",), "no job can use --encrypt: encryption needs OpenSSL, and there is none"),
    ]
    (trouble,) = bad(with_problem("ddlrun's agent on b: encryption needs OpenSSL, and neither libssl.so.3 nor …"))
    assert (trouble.level, trouble.check) == (ERROR, "encryption") and "libssl3" in trouble.remedy


def test_all_is_well() -> None:
    judged = verdicts.judge(healthy())
    assert {verdict.level for verdict in judged} == {OK}
    checks = [verdict.check for verdict in judged]
    assert len(set(checks)) == len(checks), "one line for each check where all hosts are alike"
    assert all(verdict.hosts == ("a", "b") for verdict in judged)
    assert summary(judged) == f"{len(judged)} ok, 0 warnings, 0 errors"


def test_one_machine_has_no_links_and_may_use_loopback() -> None:
    alone = dataclasses.replace(healthy(), hosts=healthy().hosts[:1], links=(), groups=((0, 1),))
    alone = with_local(alone, 0, chosen="127.0.0.1", routes={}, names={"a": ("127.0.1.1",)}, reverse={})
    judged = verdicts.judge(alone)
    assert {verdict.level for verdict in judged} == {OK}
    assert not {"ports", "mtu", "latency", "bandwidth", "clock"} & {verdict.check for verdict in judged}


def test_addresses_that_join_no_hosts_are_no_rails() -> None:
    """A bridge of containers that another host cannot reach, in a network of its own, is nobody's trouble."""
    facts = healthy()
    bridge = HostLink(0, 1, "172.18.0.1", "eth0", "docker0", problem="timeout", ports=("timeout",) * 2)
    assert not bad(dataclasses.replace(facts, links=(*facts.links, bridge)))


@pytest.mark.parametrize(
    "said, check, words",
    [
        ("ssh: Could not resolve hostname x: Name or service not known", "start", "/etc/hosts"),
        ("root@x: Permission denied (publickey).", "start", "ssh-copy-id"),
        ("Host key verification failed.", "start", "known_hosts"),
        ("ssh: connect to host x port 22: Connection refused", "start", "sshd"),
        (
            "ssh ended with status 127 before DDL had begun there: sh: exec: /opt/python: not found",
            "python",
            "same path",
        ),
        ("/usr/bin/python3: No module named ddl", "start", "install DDL"),
        ("ModuleNotFoundError: No module named 'ddl'", "start", "install DDL"),
        ("host x has DDL 0.0.9, this one 0.1.0; install the same one", "version", "same version"),
        ("host x has Python 3.9.1, this one 3.11.2; use the same one", "python", "same Python"),
        ("no agent has called from x within 30 s (--start-timeout)", "start", "32768"),
        ("there is no network interface 'ib0' on x; it has eth0 (10.1.0.1)", "interface", "--network-interface"),
        ("something new", "start", "ddl.launch.agent.remote"),
    ],
)
def test_what_launchers_say_is_understood(said: str, check: str, words: str) -> None:
    diagnosis, remedy = diagnose(said)
    assert diagnosis == check
    assert words in remedy


def test_the_document_lists_every_check() -> None:
    text = DOCUMENT.read_text()
    checks = {case[3] for case in CASES} | {"version", "python"}
    assert not [check for check in checks if f"| `{check}` |" not in text]


def test_facts_survive_json() -> None:
    facts = healthy(3, 2)
    assert facts_from_json(json.loads(json.dumps(facts.to_json()))) == facts
    task = Task(("a", "b"), "/x", "y.py")
    assert Task.parse(task.text()) == task


def test_the_table_has_a_row_for_each_pair_and_rail() -> None:
    facts = with_links(healthy(3, 2), lambda link: to_b(link) and link.source == 0, latency=None, bandwidth=None,
                       problem="refused")  # fmt: skip
    rows = [line.split() for line in link_table(facts)]
    assert rows[0] == ["host", "host", "rail", "latency", "forth", "back"]
    assert [row[:3] for row in rows[1:]] == [
        [source, target, rail] for source, target in (("a", "b"), ("a", "c"), ("b", "c")) for rail in ("eth0", "eth1")
    ]
    assert rows[1][3:] == ["20", "µs", "refused", "9", "Gb/s"]
    assert not link_table(dataclasses.replace(facts, links=()))


def test_gpus_in_order_are_told_in_a_table_and_need_no_locked_memory() -> None:
    facts = with_local(on_gpus(gpu(), gpu(1, link=PciLink(), copy_engines=-1)), 1, memlock=8 << 20, pinning="the GPU")
    assert not bad(facts) and facts_from_json(json.loads(json.dumps(facts.to_json()))) == facts
    said = {verdict.check: verdict.text for verdict in verdicts.judge(facts) if verdict.hosts == ("b",)}
    assert said["gpus"] == "2 GPUs (NVIDIA H200), driver for CUDA 13.0, one for each rank"
    rows = [" ".join(line.split()) for line in gpu_table(facts)]
    rates = "2 GB/s 52 GB/s 50 GB/s 40 GB/s 39 GB/s"
    assert rows[0] == "host GPU name memory link NUMA engines registering down up down, both up, both"
    assert rows[1:] == [f"b 0 NVIDIA H200 141 GiB PCIe 5 x16 0 3 {rates}", f"b 1 NVIDIA H200 141 GiB - 0 - {rates}"]
    assert not gpu_table(healthy())


@pytest.mark.parametrize("hosts", range(1, 10))
def test_the_schedule_has_every_pair_once_each_way(hosts: int) -> None:
    pairs = schedule(hosts)
    assert sorted(pairs) == [(source, target) for source in range(hosts) for target in range(hosts) if source != target]


def test_descriptors_grow_with_the_job() -> None:
    assert descriptors_needed(2, 2) - descriptors_needed(1, 2) == 3
    assert descriptors_needed(1000, 16) > 16000


def test_the_name_service_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_enough = threading.Event()

    def ask(name: str) -> str:
        if name == "slow":
            assert asked_enough.wait(100)
        if name == "bad":
            raise OSError("no such name")
        return name.upper()

    # What the clock shows when each of the three is waited for: the deadline passes when two have answered.
    moments = [0.0, 0.0, 101.0]
    monkeypatch.setattr("ddl.clock.now", lambda: moments.pop(0))
    assert local_module.answers_in_time(ask, ["quick", "bad", "slow"], "", 100.0) == {"quick": "QUICK", "bad": ""}
    asked_enough.set()


def test_numbers_and_pairs_as_people_read_them() -> None:
    assert [duration(value) for value in (2.5, 1.2e-3, 38e-6, 0.0)] == ["2.5 s", "1.2 ms", "38 µs", "0.0 µs"]
    assert [rate(value) for value in (9.4e10, 961e6, 1e11)] == ["94 Gb/s", "961 Mb/s", "100 Gb/s"]
    assert [bytes_text(value) for value in (64 << 20, 3 << 29, 12)] == ["64 MiB", "1.5 GiB", "12 bytes"]
    assert pairs_text([("a", "b"), ("b", "a"), ("c", "a")]) == "a ↔ b, c → a"
    assert pairs_text([(name, "x") for name in "abcde"]) == "a → x, b → x, c → x and 2 more"
