"""What `ringroad bench accept` does on a host: takes a link, a device or a build away, and gives it back."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from integration.bench import accept_ends
from integration.lib import processes

ROOT = Path(__file__).parents[2]


@pytest.fixture(name="taken")
def fixture_taken(tmp_path):
    """A file that is taken away, and given back."""
    file = tmp_path / "there"
    file.touch()
    return file, {"save": [["echo", "saved"]], "take": [["rm", str(file)]], "give": [["touch", str(file)]],
                  "restore": [["tee", str(tmp_path / "restored")]]}


def comes_back(file):
    processes.wait_until(file.exists, 20, f"{file} to be there")


def test_what_is_taken_is_given_back_with_what_was_saved(taken):
    file, how = taken
    away = accept_ends.Taken(how, 60)
    assert not file.exists()
    away.give_back()
    assert file.exists() and file.with_name("restored").read_text() == "saved\n"
    file.unlink()
    away.close()
    assert not file.exists(), "given back once"


def test_what_is_taken_is_given_back_when_its_time_is_up(taken):
    file, how = taken
    away = accept_ends.Taken(how, 0.1)
    comes_back(file)
    away.give_back()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_taken_is_given_back_whatever_ends_the_agent(taken, number):
    file, how = taken
    with subprocess.Popen(
            [sys.executable, "-c", "import json, sys, signal; from integration.bench import accept_ends\n"
             f"away = accept_ends.Taken(json.loads(sys.argv[1]), 60)\nprint('taken', flush=True); signal.pause()",
             json.dumps(how)], cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as agent:
        assert agent.stdout.readline() == "taken\n" and not file.exists()
        os.killpg(agent.pid, number)
        agent.wait()
    comes_back(file)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_do_not_end_what_gives_back(taken, number):
    file, how = taken
    away = accept_ends.Taken(how, 60)
    os.kill(away._keeper.pid, number)  # pylint: disable=protected-access
    away.give_back()
    assert file.exists()


def test_what_cannot_be_taken_is_told_and_given_back_all_the_same(taken):
    file, how = taken
    how["take"].append(["sh", "-c", "echo no such link >&2; exit 1"])
    with pytest.raises(processes.ProcessError, match="no such link"):
        accept_ends.Taken(how, 60)
    assert file.exists()


IN_A_NAMESPACE = """
import json, subprocess
from integration.bench import accept_ends
def ip(words): return subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True).stdout
for words in ("link add v0 type veth peer name v1", "link set v0 up", "link set v1 up", "addr add 10.1.1.1/24 dev v0",
              "-6 addr add fd01::1/64 dev v0 nodad", "link add link v0 name v0.5 type macvlan",
              "addr add 10.5.0.1/24 dev v0.5", "link set v0.5 up", "route add 10.2.0.0/16 via 10.1.1.9",
              "route add 10.3.0.0/16 dev v0 table 77", "-6 route add fd02::/64 via fd01::9"):
    ip(words)
def there():
    return [ip("-4 route show 10.2.0.0/16"), ip("route show table 77"), ip("-6 route show fd02::/64"),
            ip("-6 addr show dev v0 scope global")]
before = there()
away = accept_ends.Taken(accept_ends.link("10.1.1.1"), 60)
down = json.loads(ip("-j link show v0"))[0]["flags"]
away.give_back()
print(json.dumps({"down": "UP" not in down, "up": "UP" in json.loads(ip("-j link show v0"))[0]["flags"],
                  "same": there() == before and all(before), "above": accept_ends.stands_on("v0.5", "v0"),
                  "not": accept_ends.stands_on("v0", "v0.5"), "to": accept_ends.device_to("10.5.0.9"),
                  "none": accept_ends.device_of("10.5.0.7")}))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a network namespace wants root")
def test_a_link_that_was_down_has_its_addresses_and_routes_again():
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c",
                           'mount -t sysfs sysfs /sys && exec "$@"', "sh", sys.executable, "-c", IN_A_NAMESPACE],
                          cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"down": True, "up": True, "same": True, "above": True, "not": False,
                                       "to": "v0.5", "none": ""}


@pytest.mark.parametrize("reached, remote, others, used, why", [
    (["1.1.1.1", "1.1.1.2"], True, [], {"1.1.1.2": "eth1", "1.1.1.1": "eth1"}, ""),
    (["1.1.1.1", "1.1.1.2"], True, [], {"1.1.1.2": "eth0", "1.1.1.1": "eth0"}, "ssh goes by eth0, the device"),
    (["1.1.1.1", "1.1.1.2"], True, [], {"1.1.1.2": "eth1", "1.1.1.1": "eth0"}, "ssh goes by eth0, the device"),
    (["1.1.1.1", "1.1.1.2"], True, [], {"1.1.1.2": "eth0.5", "1.1.1.1": "eth0.5"}, "eth0.5, which stands on eth0"),
    (None, True, [], {}, "does not tell by which address this host is reached"),
    (None, False, [["1.1.1.2", "1.1.1.1"]], {"1.1.1.2": "eth1", "1.1.1.1": "eth1"}, ""),
    (None, False, [["1.1.1.2", "1.1.1.1"]], {"1.1.1.2": "eth0", "1.1.1.1": "eth0"}, "ssh goes by eth0"),
    (None, False, [["9.9.9.9", "1.1.1.1"]], {"9.9.9.9": ""}, "comes from 9.9.9.9, which this host does not have"),
    (None, False, [None], {}, "does not tell by which address the other host is reached"),
    (["1.1.1.1", "1.1.1.2"], False, [], {"1.1.1.2": "eth0", "1.1.1.1": "eth0"}, "ssh goes by eth0"),
])
def test_a_link_that_carries_ssh_is_not_to_be_set_down(monkeypatch, tmp_path, reached, remote, others, used, why):
    used = {"10.9.1.2": "eth0", **used}
    (tmp_path / "eth0.5" / "lower_eth0").mkdir(parents=True)
    monkeypatch.setattr(accept_ends, "ssh_server", lambda: reached)
    monkeypatch.setattr(accept_ends, "device_of", lambda address: used[address])
    monkeypatch.setattr(accept_ends, "device_to", lambda address: used[address])
    monkeypatch.setattr(accept_ends, "NET", tmp_path)
    monkeypatch.setattr(accept_ends, "RDMA", tmp_path)
    found = accept_ends.link_obstacle("10.9.1.2", remote, others)
    assert why in found and bool(why) == bool(found), found


def test_the_link_of_a_device_without_a_queue_is_not_set_down_below_soft_roce(monkeypatch, tmp_path):
    (tmp_path / "rxe0").mkdir()
    shown = {"addr": '[{"ifname": "v0", "addr_info": [{"local": "10.9.1.2"}]}]', "link": '[{"qdisc": "noqueue"}]'}
    monkeypatch.setattr(accept_ends, "RDMA", tmp_path)
    monkeypatch.setattr(accept_ends, "said", lambda *words: shown[words[2]])
    monkeypatch.setattr(accept_ends, "ssh_server", lambda: None)
    assert accept_ends.link_obstacle("10.9.1.2", False, []) == "", "a card"
    (tmp_path / "rxe0" / "parent").touch()
    assert "tc qdisc add dev v0 root pfifo" in accept_ends.link_obstacle("10.9.1.2", False, [])
    shown["link"] = '[{"qdisc": "pfifo_fast"}]'
    assert accept_ends.link_obstacle("10.9.1.2", False, []) == ""


def test_ssh_tells_by_which_addresses_a_host_is_reached():
    assert accept_ends.ssh_server({"SSH_CONNECTION": "fe80::1%eth0 5 fe80::2%eth0 22"}) == ["fe80::1", "fe80::2"]
    assert accept_ends.ssh_server({}) is None


def gid_of(sysfs, device):
    port = sysfs / device / "ports" / "1"
    (port / "gids").mkdir(parents=True)
    (port / "gid_attrs" / "types").mkdir(parents=True)
    (port / "gids" / "3").write_text("0000:0000:0000:0000:0000:ffff:0a09:0102\n")
    (port / "gid_attrs" / "types" / "3").write_text("RoCE v2\n")


def test_a_device_is_removed_in_its_own_way(tmp_path):
    sysfs, auxiliary = tmp_path / "infiniband", tmp_path / "auxiliary"
    gid_of(sysfs, "rxe0")
    (sysfs / "rxe0" / "parent").write_text("eth0\n")
    assert accept_ends.removal("10.9.1.2", "", sysfs, auxiliary)["give"] == [
        ["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0"]]
    with pytest.raises(processes.ProcessError, match="no RDMA device mlx5_9 has a RoCEv2 GID of 10.9.1.2"):
        accept_ends.removal("10.9.1.2", "mlx5_9", sysfs, auxiliary)
    card, driver = tmp_path / "pci" / "0000:01:00.0", tmp_path / "drivers" / "mlx5_ib.rdma"
    driver.mkdir(parents=True)
    auxiliary.mkdir()
    gid_of(sysfs, "mlx5_0")
    for name in ("mlx5_core.eth.0", "mlx5_core.rdma.0"):
        (card / name).mkdir(parents=True)
        (auxiliary / name).symlink_to(card / name)
    (sysfs / "mlx5_0" / "device").symlink_to(card)
    with pytest.raises(processes.ProcessError, match="mlx5_0: its driver has no auxiliary device for RDMA alone"):
        accept_ends.removal("10.9.1.2", "mlx5_0", sysfs, auxiliary)
    for name in ("mlx5_core.eth.0", "mlx5_core.rdma.0"):
        (card / name / "driver").symlink_to(driver)
    assert accept_ends.removal("10.9.1.2", "mlx5_0", sysfs, auxiliary) == {
        what: [["sh", "-c", f"echo mlx5_core.rdma.0 >{driver}/{word}"]]
        for what, word in (("take", "unbind"), ("give", "bind"))}


def build_of(folder, text):
    for name in ("bin", "lib"):
        (folder / name).mkdir(parents=True)
    (folder / "lib" / "libringroad.so").write_text(text)
    (folder / "lib" / "libringroad-verbs.so").write_text(text)
    command = folder / "bin" / "ringroad"
    command.write_text('#!/bin/sh\necho "library: $(dirname "$(dirname "$0")")/lib/libringroad.so"\n')
    command.chmod(0o755)
    return str(command)


def test_a_build_comes_in_the_place_of_another_by_renaming(tmp_path):
    old, new = build_of(tmp_path / "old", "old"), build_of(tmp_path / "new", "new")
    rolling = accept_ends.Rolling(tmp_path / "rolling", old)
    files = [tmp_path / "rolling" / "lib" / name for name in ("libringroad.so", "libringroad-verbs.so")]
    assert accept_ends.said(rolling.command()) == f"library: {files[0]}\n"
    with open(files[0], encoding="ascii") as mapped:
        before = rolling.build()
        rolling.replace(new)
        assert rolling.build() != before
        assert [file.read_text() for file in files] == ["new", "new"] and mapped.read() == "old"
    with pytest.raises(processes.ProcessError, match="none: No such file"):
        rolling.replace(str(tmp_path / "none"))
    rolling.close()
    assert not (tmp_path / "rolling").exists()
