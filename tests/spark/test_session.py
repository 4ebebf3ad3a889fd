"""The settings of a session, without a JVM: where executors find the driver."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from sawlog.errors import MissingPackage
from sawlog.spark import session as make_session
from sawlog.spark.session import driver_address

LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class Routes:
    """Sockets of a machine with the address 10.0.0.7: where `spark-master` and 10.0.0.0/8 are elsewhere."""

    SOCK_DGRAM = 2

    @staticmethod
    def getaddrinfo(host: str, port: int, type: int) -> list[Any]:
        if host == "unknown":
            raise OSError("Name or service not known")
        return [(2, type, 17, "", ({"spark-master": "10.0.0.9", "localhost": "127.0.0.1"}.get(host, host), port))]

    class socket:
        def __init__(self, *_: int) -> None:
            self._to = ""

        def __enter__(self) -> Routes.socket:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def connect(self, target: tuple[str, int]) -> None:
            self._to = target[0]

        def getsockname(self) -> tuple[str, int]:
            return ("127.0.0.1" if self._to.startswith("127.") else "fd00::7" if ":" in self._to else "10.0.0.7"), 1


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["sawlog.spark.session"], "socket", Routes)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[2,4]", "local-cluster[2,1,1024]"])
def test_a_local_session_listens_on_the_loopback_interface_only(routes: None, master: str) -> None:
    assert driver_address(master, {}) == LOOPBACK
    assert driver_address(master, {"SPARK_LOCAL_IP": "10.0.0.7"}) == LOOPBACK


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("spark://spark-master:7077", "10.0.0.7"),
        ("spark://10.0.0.9:7077", "10.0.0.7"),
        ("spark://spark-master", "10.0.0.7"),
        ("spark://10.0.0.9:7077,10.0.0.10:7077", "10.0.0.7"),
        ("spark://[fd00::9]:7077", "fd00::7"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://localhost:7077", "127.0.0.1"),
    ],
)
def test_executors_are_told_the_address_from_which_the_driver_reaches_the_master(
    routes: None, master: str, address: str
) -> None:
    assert driver_address(master, {}) == {"spark.driver.host": address}


@pytest.mark.parametrize("master", ["spark://unknown:7077", "yarn", "k8s://https://10.0.0.9:443"])
def test_spark_chooses_the_address_where_it_is_not_known(routes: None, master: str) -> None:
    assert driver_address(master, {}) == {}


def test_the_address_in_the_environment_is_used_unless_no_other_machine_can_reach_it(routes: None) -> None:
    remote = "spark://spark-master:7077"
    assert driver_address(remote, {"SPARK_LOCAL_IP": "192.168.0.7"}) == {"spark.driver.host": "192.168.0.7"}
    assert driver_address(remote, {"SPARK_LOCAL_IP": "127.0.0.1"}) == {"spark.driver.host": "10.0.0.7"}
    assert driver_address("yarn", {"SPARK_LOCAL_IP": "192.168.0.7"}) == {"spark.driver.host": "192.168.0.7"}


@pytest.fixture
def made(routes: None, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings with which a session is built, which is then not started."""
    pyspark_sql = pytest.importorskip("pyspark.sql")
    found: dict[str, str] = {}

    class Builder:
        def appName(self, name: str) -> Builder:
            return self

        def master(self, master: str) -> Builder:
            return self.config("spark.master", master)

        def config(self, key: str, value: str) -> Builder:
            found[key] = value
            return self

        def getOrCreate(self) -> None:
            raise InterruptedError

    monkeypatch.setattr(pyspark_sql.SparkSession, "builder", Builder())
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return found


@pytest.mark.parametrize(
    ("given", "host", "bind"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"master": "spark://spark-master:7077"}, "10.0.0.7", None),
        ({"spark_master": "spark://spark-master:7077"}, "10.0.0.7", None),
        ({"master": "yarn"}, None, None),
        ({"master": "spark://spark-master:7077", "driver_host": "203.0.113.5"}, "203.0.113.5", None),
        (
            {
                "master": "spark://spark-master:7077",
                "driver_host": "203.0.113.5",
                "spark_driver_bindAddress": "0.0.0.0",
            },
            "203.0.113.5",
            "0.0.0.0",
        ),
        ({"master": "spark://spark-master:7077", "spark_driver_host": "gateway"}, "gateway", None),
    ],
)
def test_a_session_has_the_address_of_its_driver(
    made: dict[str, str], given: dict[str, Any], host: str | None, bind: str | None
) -> None:
    with pytest.raises(InterruptedError):
        make_session(**given)
    assert (made.get("spark.driver.host"), made.get("spark.driver.bindAddress")) == (host, bind)


def test_a_session_without_spark_names_the_extra(made: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(MissingPackage, match=r"pip install '\.\[spark\]'"):
        make_session()


def test_a_local_session_before_does_not_bind_a_remote_one_to_the_loopback_interface(
    made: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:

    for given, expected in (({}, "127.0.0.1"), ({"master": "spark://spark-master:7077"}, "10.0.0.7")):
        with pytest.raises(InterruptedError):
            make_session(**given)  # type: ignore[arg-type]
        assert os.environ["SPARK_LOCAL_IP"] == expected
    with pytest.raises(InterruptedError):
        make_session(master="yarn")
    assert os.environ["SPARK_LOCAL_IP"] == "10.0.0.7"
