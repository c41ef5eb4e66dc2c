"""MySQL over RDMA, run inside the virtual machine by boots.py, in a root of Debian sid.

   mysql, mysqlslap ── 10.9.0.1 rxe0 ═══ veth ═══ rxe1 10.9.1.1 ── a group of three members

Members reach each other over the cable as well: the way to 10.9.1.1 is by the other end, for every member.
"""

import hashlib
import os
import random
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from integration.lib import mysql, processes
from integration.releases.test_mysql_group import FORM_S, Group
from integration.releases.test_mysql_server import PROTOCOLS, says

from .. import support
from .one_host import ADDRESS, NETWORK
from ..test_programs import AT_ONCE
from ..test_sysbench import GREETING

BLOB = random.Random(20240229).randbytes(1 << 20).hex()
CLIENTS = 4  # of mysqlslap
ROWS = 200
# An emulated machine keeps nobody's time.
PATIENT = ["--loose-group-replication-member-expel-timeout=15", "--innodb-log-writer-threads=OFF",
           "--performance-schema-instrument=%=OFF"]


@pytest.fixture(name="group", scope="module")
def fixture_group(tmp_path_factory):
    with Group(tmp_path_factory.mktemp("mysql") / "group", Path(os.environ["RINGROAD_TEST_MYSQL_DATA"]),
               address=ADDRESS, subnet=NETWORK, via="rdma", options=PATIENT) as group:
        is_on_rdma(group, group.members)
        yield group


def is_on_rdma(group, members):
    support.wait_for(lambda: group.is_on_channels(members), "the group's streams to be on RDMA",
                     support.ANSWER_S)


def carried(group, member):
    """Bytes of the member's streams by where they went."""
    totals = group.host.ss(member.pid)["totals"]
    return {carrier: counts["rx_bytes"] + counts["tx_bytes"] for carrier, counts in totals.items()}


def from_the_first_byte(group, member):
    """What is preloaded into the member's clients."""
    return group.host.preload(group.host.policy("client", [member.port], via="rdma", subnet=NETWORK,
                                                **AT_ONCE | {"wait": '"20s"'}))


def rows(member):
    return int(member.query(f"SELECT COUNT(*) FROM {mysql.DATABASE}.t")[0][0])


@pytest.mark.parametrize("protocol", ["tls-1.3", "caching-sha2"])
def test_statements_and_answers_of_2_mb_are_those_over_tcp(group, protocol):
    primary = group.primary(group.members[0])
    plain, preloaded = (SimpleNamespace(address=primary.address, port=primary.port, work=primary.work,
                                        preload=preload)
                        for preload in (None, from_the_first_byte(group, primary)))
    asks = (f"SHOW SESSION STATUS LIKE 'Ssl_version';\nSELECT SHA2('{BLOB}', 256);\n"
            f"SELECT '{BLOB}';\n")
    expected = says(plain, PROTOCOLS[protocol], asks)
    assert expected[0] == 0 and hashlib.sha256(BLOB.encode()).hexdigest() in expected[1], expected[2]
    before = carried(group, primary)
    assert says(preloaded, PROTOCOLS[protocol], asks) == expected
    after = carried(group, primary)
    assert after["channel"] - before["channel"] > 3 * len(BLOB)
    assert after["tcp"] - before["tcp"] <= GREETING


def test_a_group_loses_its_primary_under_load_and_elects_another(group):
    primary = group.primary(group.members[0])
    load = processes.Child(group.load(primary, 1_000_000, from_the_first_byte(group, primary)),
                           group.host.directory / "load.log")
    try:
        def clients_are_on_rdma():
            carriers = [stream["carrier"] for stream in group.host.streams(load.pid)]
            return len(carriers) >= CLIENTS and set(carriers) == {"rdma"}

        support.wait_for(clients_are_on_rdma, "all clients to be on RDMA", support.ANSWER_S)
        before = rows(primary)
        support.wait_for(lambda: rows(primary) > before + ROWS, "the load", FORM_S)
        is_on_rdma(group, group.members)
        written = rows(primary)
        primary.kill()
        assert load.ends_within(processes.patient(FORM_S)), "a client of a killed server ends"
    finally:
        load.kill()
    rest = [member for member in group.members if member is not primary]
    group.forms(rest)
    subprocess.run(group.load(group.primary(rest[0]), ROWS), check=True, stdout=subprocess.DEVNULL,
                   timeout=processes.patient(FORM_S))
    is_on_rdma(group, rest)
    group.agree(rest)
    assert rows(rest[0]) >= written + ROWS
