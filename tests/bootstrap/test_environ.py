"""Who am I and how shall I behave: what is accepted, and that an error names the variable and its value."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Dict

import pytest

from ddl.bootstrap import parse
from ddl.bootstrap.environ import Identity, Settings, describe
from ddl.errors import ConfigError, ResourceError
from ddl.net.address import format_address, listen, parse_address

RANK_3 = Identity(3, 8, 1, 2, 1, 4, "127.0.0.1:4711", bytes(range(32)))


def test_without_a_launcher_there_is_one_rank_and_no_store() -> None:
    assert Identity.from_environ({}) == Identity(0, 1, 0, 1, 0, 1, "", b"")


def test_identity_round_trip_and_hidden_secret() -> None:
    assert Identity.from_environ(RANK_3.to_environ()) == RANK_3
    on_two_networks = dataclasses.replace(RANK_3, store_also=("10.2.0.1:4000", "[fd00::1]:4000"))
    assert on_two_networks.to_environ()["DDL_STORE"] == f"{RANK_3.store},10.2.0.1:4000,[fd00::1]:4000"
    assert Identity.from_environ(on_two_networks.to_environ()) == on_two_networks
    assert RANK_3.secret.hex() not in repr(RANK_3)
    assert repr(RANK_3.secret) not in repr(RANK_3)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"HOROVOD_TIMELINE": "t", "HOROVOD_TIMELINE_MARK_CYCLES": "1"}, {"timeline": "t", "timeline_cycles": True}),
        ({"HOROVOD_TIMELINE": "DYNAMIC"}, {}),
        ({"HOROVOD_LOG_LEVEL": "TRACE"}, {"log": "debug"}),
        ({"HOROVOD_LOG_LEVEL": "INFO"}, {"log": "info"}),
        ({"HOROVOD_GLOO_TIMEOUT_SECONDS": "40", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "50"}, {"timeout": 40.0}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "50"}, {"timeout": 50.0}),
        ({"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "0"}, {}),
        ({"HOROVOD_START_TIMEOUT": "7"}, {"start_timeout": 7.0}),
        ({"HOROVOD_START_TIMEOUT": "7", "DDL_START_TIMEOUT": "8"}, {"start_timeout": 8.0}),
        ({"HOROVOD_START_TIMEOUT": "", "HOROVOD_RANK": "3", "HOROVOD_CYCLE_TIME": "1"}, {}),
    ],
)
def test_variables_of_horovod_that_mean_the_same(variables: Dict[str, str], expected: Dict[str, object]) -> None:
    assert Settings.from_environ(variables) == Settings(**expected)


def test_a_variable_of_horovod_that_makes_no_sense_is_named() -> None:
    with pytest.raises(ConfigError, match="HOROVOD_LOG_LEVEL='loud': it must be one of error"):
        Settings.from_environ({"HOROVOD_LOG_LEVEL": "loud"})


@pytest.mark.parametrize("name", list(RANK_3.to_environ()))
def test_a_missing_variable_is_named(name: str) -> None:
    environ = RANK_3.to_environ()
    del environ[name]
    with pytest.raises(ConfigError, match=f"not {name};") as caught:
        Identity.from_environ(environ)
    assert RANK_3.secret.hex() not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DDL_RANK", "x"),
        ("DDL_RANK", "-1"),
        ("DDL_RANK", "8"),
        ("DDL_RANK", "٣"),
        ("DDL_SIZE", "0"),
        ("DDL_SIZE", "1e3"),
        ("DDL_LOCAL_RANK", "2"),
        ("DDL_LOCAL_SIZE", "9"),
        ("DDL_CROSS_RANK", "4"),
        ("DDL_CROSS_SIZE", "100"),
        ("DDL_STORE", "nowhere"),
        ("DDL_STORE", "host:1,"),
        ("DDL_STORE", "host:1,nowhere"),
        ("DDL_STORE", "host:0"),
        ("DDL_STORE", "host:99999"),
        ("DDL_STORE", ":80"),
        ("DDL_STORE", "::1:80"),
    ],
)
def test_nonsense_is_named_with_its_value(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Identity.from_environ({**RANK_3.to_environ(), name: value})
    assert value in str(caught.value)


@pytest.mark.parametrize("value", ["not hex at all, but long enough to be", "00" * 15])
def test_a_bad_secret_is_named_but_not_shown(value: str) -> None:
    with pytest.raises(ConfigError, match="DDL_SECRET") as caught:
        Identity.from_environ({**RANK_3.to_environ(), "DDL_SECRET": value})
    assert value not in str(caught.value)


def test_settings_have_their_defaults() -> None:
    assert Settings.from_environ({}) == Settings() == Settings.from_environ({"DDL_TIMEOUT": ""})
    assert Settings().timeout == 300 and Settings().start_timeout == 60 and Settings().shm


def test_every_setting_is_read() -> None:
    environ = {
        "DDL_TIMEOUT": "1.5",
        "DDL_START_TIMEOUT": "7",
        "DDL_HOST_TIMEOUT": "8",
        "DDL_ALGORITHM": "ring",
        "DDL_DETERMINISTIC": "1",
        "DDL_DIMENSIONS": "4x2",
        "DDL_RENDEZVOUS_DIR": "/shared",
        "DDL_HOST_ID": "b",
        "DDL_SHM": "0",
        "DDL_SHM_SIZE": "2G",
        "DDL_READ_FROM": "64K",
        "DDL_CUDA_LIBRARY": "libfake.so",
        "DDL_GPU_WAIT": "stream",
        "DDL_ELASTIC": "1",
        "DDL_INCARNATION": "7",
        "DDL_LOG": "DEBUG",
        "DDL_INTERFACE": "10.0.0.1",
        "DDL_SPIN_US": "50",
        "DDL_CORES": "3",
        "DDL_WIRE": "bf16",
        "DDL_RAILS": "2",
        "DDL_CONNECTIONS": "3",
        "DDL_ENCRYPT": "1",
        "DDL_OPENSSL": "libssl.so.3",
        "DDL_CHECKSUM": "1",
        "DDL_TCP_CONGESTION": "cubic",
        "DDL_TUNED": "there.toml",
        "DDL_RECORDS": "a-socket",
        "DDL_TUNE_SECONDS": "2.5",
        "DDL_REBALANCE": "1",
        "DDL_TIMELINE": "t.json",
        "DDL_TIMELINE_CYCLES": "1",
        "DDL_TUNE_ALLOCATOR": "0",
        "DDL_TENSORFLOW_OP": "0",
    }
    assert {field.metadata["variable"] for field in dataclasses.fields(Settings)} == set(environ)
    first = (1.5, 7.0, 8.0, "ring", True, True, "4x2", "/shared", "b", False, 2 << 30, 64 << 10, "libfake.so")
    expected = Settings(
        *(*first, "stream", True, 7, "debug"),
        "10.0.0.1",
        50,
        3,
        "bf16",
        2,
        3,
        True,
        "libssl.so.3",
        True,
        "cubic",
        "there.toml",
        "a-socket",
        2.5,
        "t.json",
        True,
        False,
        False,
    )
    assert Settings.from_environ(environ) == expected
    for name in environ:
        assert name in describe()


#: What the sources name besides: ddlrun's word to its agents, and what builds read.
NO_SETTINGS = {"DDL_INVITATION", "DDL_CMAKE_ARGS", "DDL_PYTHON_INCLUDE", "DDL_WHEEL_TAG"}


def test_the_sources_name_no_other_variable() -> None:
    """One place has them all. What stands in quotes, by itself or before an equals sign, is taken for a variable."""
    known = {field.metadata["variable"] for field in dataclasses.fields(Settings)}
    known |= set(Identity(secret=b"").to_environ()) | NO_SETTINGS
    root = Path(__file__).resolve().parents[2]
    sources = [path for package in root.glob("ddl*") for path in package.rglob("*.py")]
    sources += [*(root / "csrc").rglob("*.cc"), *(root / "csrc").rglob("*.h"), root / "setup.py"]
    named = {name for path in sources for name in re.findall(r"\"(DDL_[A-Z_]+)[\"=]", path.read_text("utf-8"))}
    assert len(named) > 20 and named <= known, named - known


BAD: Dict[str, str] = {
    "DDL_TIMEOUT": "0 -1 nan inf x",
    "DDL_START_TIMEOUT": "0 soon",
    "DDL_HOST_TIMEOUT": "0 3.9 3601 nan never",
    "DDL_DETERMINISTIC": "yes 2",
    "DDL_READ_FROM": "-2 a 1.5",
    "DDL_DIMENSIONS": "x 4x 0x2 4X2 4x-2",
    "DDL_SHM": "yes 2",
    "DDL_SHM_SIZE": "-1 1T 1.5G G",
    "DDL_LOG": "loud",
    "DDL_SPIN_US": "-2 1.5 many",
    "DDL_CORES": "-1 65 2.0 all",
    "DDL_WIRE": "bf8 16 BF16",
    "DDL_CONNECTIONS": "0 17 two -1",
    "DDL_TUNE_SECONDS": "-1 nan soon",
    "DDL_TENSORFLOW_OP": "yes",
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, all in BAD.items() for value in all.split()])
def test_a_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        Settings.from_environ({name: value})
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("DDL_ALGORITHM", "ring"), ("DDL_WIRE", "bf16")])
def test_settings_that_contradict_one_another_are_named(name: str, value: str) -> None:
    Settings.from_environ({name: value}).check()
    with pytest.raises(ConfigError, match=f"{name}={value}.*DDL_DETERMINISTIC=1"):
        Settings.from_environ({name: value, "DDL_DETERMINISTIC": "1"}).check()


def test_sizes() -> None:
    sizes = {"0": 0, "17": 17, "1K": 1024, "3m": 3 << 20, "2GiB": 2 << 30, "5 MB": 5 << 20}
    assert {text: parse.size(text) for text in sizes} == sizes


def test_addresses() -> None:
    for host, port in (("127.0.0.1", 1), ("::1", 65535), ("host.example", 80)):
        assert parse_address(format_address(host, port)) == (host, port)


def test_an_address_in_use_is_named() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ResourceError, match=f"127.0.0.1:{port}"):
            listen("127.0.0.1", port)
