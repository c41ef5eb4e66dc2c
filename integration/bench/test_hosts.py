"""Hosts and inventories: the same, whether a host is this one or is reached by ssh."""

import os
import time

import pytest

from integration.acceptance import sshd
from integration.bench import hosts
from integration.lib import processes


@pytest.fixture(name="prefix", params=["here", "ssh"], scope="module")
def fixture_prefix(request, tmp_path_factory):
    """What reaches a host: nothing, or a real ssh."""
    if request.param == "here":
        yield ()
        return
    if sshd.obstacle():
        pytest.skip(sshd.obstacle())
    with sshd.Sshd(tmp_path_factory.mktemp("ssh") / "sshd") as server:
        yield ("ssh", "-o", "BatchMode=yes", *server.options, "root@127.0.0.1", "--")


@pytest.fixture(name="host")
def fixture_host(prefix):
    with hosts.Host("there", prefix) as host:
        yield host


def is_alive(pid):
    try:
        os.kill(pid, 0)
        return True
    except ProcessLookupError:
        return False


def test_functions_and_objects_are_used_as_if_they_were_here(host, tmp_path):
    assert host.call("os.path:join", "a", "b") == "a/b"
    child = host.make("integration.lib.processes:Child", ["echo", "some words"], str(tmp_path / "log"))
    assert child.ends_within(10) is True
    assert child.collect() == 0
    assert (tmp_path / "log").read_text() == "some words\n"


def test_what_goes_wrong_there_is_said_here(host):
    with pytest.raises(hosts.HostError, match="nowhere") as problem:
        host.call("os:listdir", "/nowhere")
    assert problem.value.kind == "FileNotFoundError"
    assert host.call("os.path:basename", "/still/here") == "here"


def test_a_host_that_gives_no_answer_is_given_up_in_time(host):
    with pytest.raises(hosts.Silent, match="no answer within 0.2 s"):
        host.call("time:sleep", 3, limit_s=0.2)


def test_an_agent_here_that_hangs_is_killed_with_what_it_started_and_its_folder(tmp_path):
    with hosts.Host("here") as host:
        work = host.work
        pid = host.make("integration.lib.processes:Child", ["sleep", "600"], str(tmp_path / "log")).pid()
        with pytest.raises(hosts.Silent):
            host.call("time:sleep", 600, limit_s=0.2)
    assert not os.path.exists(work)
    processes.wait_until(lambda: not is_alive(pid), 10, "the child to end")


def test_with_the_agent_goes_what_it_started_and_its_folder(prefix, tmp_path):
    with hosts.Host("there", prefix) as host:
        work = host.work
        assert os.path.isdir(work)
        child = host.make("integration.lib.processes:Child", ["sleep", "600"], str(tmp_path / "log"))
        pid = child.pid()
        assert is_alive(pid)
    assert not is_alive(pid) and not os.path.exists(work)


def test_a_host_that_cannot_be_reached_is_said_with_what_was_tried():
    began = time.monotonic()
    with pytest.raises(hosts.HostError, match="far: no agent there.*false root@far"):
        with hosts.Host("far", ("false", "root@far")):
            pass
    assert time.monotonic() - began < 10


def test_two_network_namespaces_reach_each_other_and_go_with_the_place():
    try:
        with hosts.Namespaces("ringroad") as place:
            networks = {os.readlink("/proc/self/ns/net")} | {
                end.host.call("os:readlink", "/proc/self/ns/net") for end in place.ends.values()}
            assert len(networks) == 3, "this process', the server's, the client's"
            port = place.server.host.call("integration.lib.template:free_port", place.server.address)
            takes, gives = (end.host.make("integration.lib.processes:Child", [
                "/usr/bin/python3", "-c", program, place.server.address, str(port)], f"{end.host.work}/log")
                for end, program in ((place.server, TAKES), (place.client, GIVES)))
            assert [takes.collect(), gives.collect()] == [0, 0]
            assert os.stat(place.rendezvous + "/key").st_mode & 0o777 == 0o600
            held = [*(end.host.work for end in place.ends.values()), place.rendezvous]
    except hosts.HostError as problem:
        pytest.skip(str(problem))
    assert not any(map(os.path.exists, held))


# A connection from one to the other, tried until it is there.
TAKES = """
import socket, sys
with socket.create_server((sys.argv[1], int(sys.argv[2]))) as listener: listener.accept()
"""
GIVES = """
import socket, sys, time
while True:
    try: socket.create_connection((sys.argv[1], int(sys.argv[2]))); break
    except ConnectionRefusedError: time.sleep(0.05)
"""

INVENTORY = """
[server]
ssh = "root@db1"
address = "10.9.1.1"
device = "mlx5_0"
[client]
address = "10.9.1.2"
"""


def written(tmp_path, text):
    path = tmp_path / "hosts.toml"
    path.write_text(text)
    return path


def test_an_inventory_names_both_ends(tmp_path):
    place = hosts.from_inventory(written(tmp_path, INVENTORY), "/opt/ringroad")
    assert (place.server.address, place.client.address) == ("10.9.1.1", "10.9.1.2")
    assert (place.server.device, place.client.device) == ("mlx5_0", "")
    assert (place.server.ringroad, place.client.ringroad) == ("ringroad", "/opt/ringroad")
    assert not place.one_host


@pytest.mark.parametrize("old, new, line, said", [
    ("[client]", "[clients]", 6, r"there is no \[clients\], only .*: rename it"),
    ('[client]\naddress = "10.9.1.2"\n', "", 5, r"it has no \[client\]: add one"),
    ('address = "10.9.1.2"', "", 6, r"\[client\] has no address: add address = "),
    ("10.9.1.2", "db2", 7, "db2 is not one: write a number"),
    ("device", "devise", 5, "devise: there is no such key; .*: rename or remove it"),
    ('"mlx5_0"', "5", 5, "device: it has to be a string"),
    ('device = "mlx5_0"', "ssh_options = [5]", 5, "ssh_options: it has to be a list of strings"),
    ("[server]", "[server", 2, "write it as TOML has it"),
])
def test_an_inventory_with_an_error_is_refused_with_its_line_and_what_mends_it(tmp_path, old, new, line, said):
    with pytest.raises(hosts.InventoryError, match=f"^{tmp_path}/hosts.toml:{line}: .*{said}"):
        hosts.from_inventory(written(tmp_path, INVENTORY.replace(old, new)), "ringroad")


def test_an_inventory_that_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(hosts.InventoryError, match="none.toml: No such file.*: name a file"):
        hosts.from_inventory(tmp_path / "none.toml", "ringroad")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(hosts.InventoryError, match="binary.toml: is no text in UTF-8"):
        hosts.from_inventory(binary, "ringroad")


def test_without_an_inventory_both_ends_are_here():
    place = hosts.here("ringroad", {})
    assert place.one_host and place.server.address == place.client.address == "127.0.0.1"
    place = hosts.here("ringroad", {"RINGROAD_SOFTROCE": "1", "RINGROAD_SERVER_ADDR": "10.9.1.1",
                                    "RINGROAD_CLIENT_ADDR": "10.9.0.1"})
    assert (place.name, place.client.address) == ("soft-roce", "10.9.0.1")
