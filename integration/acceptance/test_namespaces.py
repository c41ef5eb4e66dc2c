"""Two containers of one host, with a rendezvous directory and a key in both, have their streams on shared memory.

     client ── veth ──┐
     server ── veth ──┴ bridge         network, process and mount namespaces of each
     stranger ────────┘                has the directory, too, and no key

Everything else stays on TCP, and says so. What the stranger tries disturbs nobody.
"""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from integration.lib import bridge, processes, ringroad

from . import support

OTHER = "other_namespace"
PORT = 7000
FLOOD = 300
WRONG_KEY = "refusal 37"  # of rsocket-core/protocol/reason.h


class Host:
    """A network, and a folder that every user can search: the key, the policies, the rendezvous directory."""

    def __init__(self, network, directory):
        self.network = network
        self.directory = Path(directory)
        self.rendezvous = self.directory / "rendezvous"
        self.rendezvous.mkdir()
        self.rendezvous.chmod(0o1777)
        self.tool = ringroad.Ringroad(support.BUILD)

    def container(self, name, unmapped=False, kinds=bridge.KINDS):
        return bridge.Container(self.network, name, self.directory, unmapped, kinds)

    def preload(self, container, key=True, rendezvous=True, messages=1, **keys):
        """The variables of a preloaded program there; `rendezvous`: True, False, or another directory."""
        lines = ["version = 1", "[[rule]]", 'name = "containers"', 'subnet = ["10.0.0.0/8", "fd77::/64"]', 'port = ["1-65535"]',
                 'via = "shm"', f"promote_after = {{ messages = {messages} }}"]
        lines += [f"{name} = {value}" for name, value in keys.items()]
        if key:
            path = container.directory / "key"
            path.write_text("0123456789abcdef of both\n", encoding="ascii")
            path.chmod(0o600)
            container.own(path)
            lines.append(f'key_file = "{path}"')
        policy = container.directory / "policy.toml"
        policy.write_text("\n".join(lines) + "\n", encoding="ascii")
        container.own(policy)
        variables = {"LD_PRELOAD": str(self.tool.library), "RINGROAD_POLICY": str(policy),
                     "RINGROAD_RUNTIME_DIR": str(container.runtime), "RINGROAD_LOG": str(container.directory / "log"),
                     "RINGROAD_LOG_LEVEL": "info"}
        if rendezvous:
            variables["RINGROAD_RENDEZVOUS_DIR"] = str(self.rendezvous if rendezvous is True else rendezvous)
        return variables

    def streams(self, container):
        return container.streams(self.tool.command)

    def path(self, container, port=PORT):
        return self.rendezvous / f"{container.address}:{port}"


@pytest.fixture(name="host")
def fixture_host():
    try:
        network = bridge.Network()
    except bridge.Unavailable as problem:
        pytest.skip(str(problem))
    directory = tempfile.mkdtemp(prefix="rr-")  # the paths of Unix sockets are short
    os.chmod(directory, 0o755)
    try:
        with network:
            yield Host(network, directory)
    finally:
        shutil.rmtree(directory)


def talker(container, *words, preload=None):
    return support.Talker(*words, preload=preload, prefix=container.enter())


def forger(container):
    return support.Talker(prefix=container.enter(), program="forger.py")


def told(squatter, words):
    """Has a squatter do something; what it says to that, amid those who ask it."""
    squatter.write(words)
    while (line := squatter.line()).startswith("asked "):
        pass
    return line


def on_shm(streams, count):
    return len(streams) == count and all(
        (stream["state"], stream["carrier"]) == ("ON_CHANNEL", "shm") for stream in streams)


def settle(host, client, asks, ends, count=1):
    """Lines go back and forth until `count` streams of each end are on shared memory."""
    def both():
        assert client.tell("say hello") == "hello"
        return all(on_shm(host.streams(end), count) for end in (asks, *ends))
    try:
        support.wait_for(both, "shared memory at both ends")
    except processes.ProcessError as problem:
        found = {end.name: (host.streams(end), (end.directory / "log").read_text()) for end in (asks, *ends)
                 if (end.directory / "log").exists()}
        raise processes.ProcessError(f"{problem}: {found}") from None


def stays(host, client, container, reason):
    """Lines go back and forth until the client's stream says that reason; then everything arrives over TCP."""
    def said():
        assert client.tell("say hello") == "hello"
        return [(s["state"], s["reason"], s["peer_reason"]) for s in host.streams(container)
                if s["state"] == "ON_TCP" and reason in (s["reason"], s["peer_reason"])]
    support.wait_for(said, f"the reason {reason}")
    found = said()
    assert len(found) == 1
    assert client.tell("bulk 1000000").startswith("same ")
    assert not {"forged", "peer_has_no_ringroad"} & set(found[0])
    return found[0][1:]


def end(server, client):
    assert client.finish() == 0
    assert server.finish() == 0


@pytest.mark.parametrize("address", ["0.0.0.0", "own"])
@pytest.mark.parametrize("program", ["serve", "prefork", "children"])
def test_two_containers_share_memory(host, program, address):
    asks, answers = host.container("client"), host.container("server")
    at = answers.address if address == "own" else address
    with talker(answers, program, at, PORT, preload=host.preload(answers)) as server:
        assert server.line() == f"PORT {PORT}"
        with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks)) as client:
            assert client.line() == "connected"
            settle(host, client, asks, [answers])
            assert client.tell("bulk 5000000").startswith("same ")
            end(server, client)


def exchange(host, asks, answers, address):
    """A new connection to a server comes to shared memory."""
    with talker(asks, "ask", address, PORT, preload=host.preload(asks)) as client:
        client.line()
        settle(host, client, asks, [answers])
        assert client.finish() == 0


def share(host, asks, answers, bound, address):
    """A client of one container and a server of the other, on shared memory until both end."""
    with talker(answers, "serve", bound, PORT, preload=host.preload(answers)) as server:
        server.line()
        with talker(asks, "ask", address, PORT, preload=host.preload(asks)) as client:
            client.line()
            settle(host, client, asks, [answers])
            assert client.tell("bulk 1000000").startswith("same ")
            end(server, client)


def test_they_do_over_ipv6(host):
    asks, answers = host.container("client"), host.container("server")
    share(host, asks, answers, "::", answers.address6)


def test_a_server_of_ipv6_alone_leaves_the_ipv4_path_to_another(host):
    asks, answers = host.container("client"), host.container("server")
    with talker(answers, "serve", "::", PORT, preload=host.preload(answers)) as six:  # sets IPV6_V6ONLY
        six.line()
        assert [path.name for path in host.rendezvous.iterdir()] == [f"[{answers.address6}]:{PORT}"]
        with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as four:
            four.line()
            exchange(host, asks, answers, answers.address)
            assert four.finish() == 0
        assert six.finish() == 0


def test_paths_that_somebody_removed_come_back(host):
    asks, answers = host.container("client"), host.container("server")
    with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as server:
        server.line()
        shutil.rmtree(host.rendezvous)
        host.rendezvous.mkdir()
        host.rendezvous.chmod(0o1777)
        support.wait_for(host.path(answers).exists, "the server's socket in the directory", 60)
        exchange(host, asks, answers, answers.address)
        assert server.finish() == 0


def test_paths_follow_the_addresses_of_a_container(host):
    asks, answers = host.container("client"), host.container("server")
    later = "10.77.0.200"
    path = host.rendezvous / f"{later}:{PORT}"
    with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as server:
        server.line()
        answers.network("ip", "addr", "add", f"{later}/24", "dev", "eth0")
        support.wait_for(path.exists, "a path of the new address", 60)
        exchange(host, asks, answers, later)
        answers.network("ip", "addr", "del", f"{later}/24", "dev", "eth0")
        support.wait_for(lambda: not path.exists(), "the end of that path", 60)
        assert host.path(answers).exists()
        assert server.finish() == 0


@pytest.mark.parametrize("address", ["0.0.0.0", "own"])
def test_a_server_that_moved_to_another_namespace_is_found_at_the_address_that_it_is_bound_to(host, address):
    asks, before, after = (host.container(name, kinds=("--net",)) for name in ("client", "before", "after"))
    at = after.address if address == "own" else address
    with talker(before, "moved", at, PORT, after.pid, preload=host.preload(before)) as server:
        server.line()
        assert host.path(before).exists()
        assert host.path(after).exists() == (address == "own")
        with talker(asks, "ask", after.address, PORT, preload=host.preload(asks)) as client:
            client.line()
            if address == "own":
                settle(host, client, asks, [before])
            else:
                assert stays(host, client, asks, OTHER)[0] == OTHER
            end(server, client)


def test_a_server_that_may_bind_any_address_leaves_the_path_to_the_container_that_has_it(host):
    asks, answers, stand_by = (host.container(name) for name in ("client", "server", "stand-by"))
    for container in (asks, stand_by):
        container.network("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind")
    with talker(stand_by, "serve", answers.address, PORT, preload=host.preload(stand_by)) as waits:
        waits.line()
        assert not host.path(answers).exists()
        with talker(answers, "serve", answers.address, PORT, preload=host.preload(answers)) as server:
            server.line()
            exchange(host, asks, answers, answers.address)
            assert server.finish() == 0
        assert waits.finish() == 0


@pytest.mark.parametrize("unmapped", ["client", "server"])
def test_containers_of_two_user_namespaces_share_memory(host, unmapped):
    asks, answers = (host.container(name, name == unmapped) for name in ("client", "server"))
    share(host, asks, answers, "0.0.0.0", answers.address)


@pytest.mark.skipif(shutil.which("redis-server") is None or shutil.which("redis-benchmark") is None,
                    reason="not installed: redis-server, redis-benchmark")
def test_all_connections_of_a_server_are_on_shared_memory_at_both_ends(host):
    asks, answers = host.container("client"), host.container("server")
    with tempfile.TemporaryFile() as log:
        server = subprocess.Popen(
            [*answers.enter(), "env", *(f"{n}={v}" for n, v in host.preload(answers).items()), "redis-server",
             "--port", str(PORT), "--bind", answers.address, "--save", "", "--protected-mode", "no"], stdout=log)
        try:
            support.wait_for(host.path(answers).exists, "the server's socket in the directory")
            client = subprocess.Popen(
                [*asks.enter(), "env", *(f"{n}={v}" for n, v in host.preload(asks).items()), "redis-benchmark", "-h",
                 answers.address, "-p", str(PORT), "-c", "16", "-n", "100000000", "-t", "set"],
                stdout=subprocess.DEVNULL)
            try:
                support.wait_for(lambda: all(on_shm(host.streams(end), 16) for end in (asks, answers)),
                                 "16 streams on shared memory", 60)
            finally:
                client.kill()
                client.wait()
        finally:
            server.kill()
            server.wait()


@pytest.mark.parametrize("client, server, peer", [
    ({"key": False}, {"key": False}, False), ({"rendezvous": False}, {}, False), ({}, {"rendezvous": False}, False),
    ({"rendezvous": "/nowhere"}, {}, False), ({}, {"rendezvous": "/proc"}, False),
    ({}, {"key": False}, True), ({"key": False}, {}, False)],
    ids=["no-key", "client-without-directory", "server-without-directory", "no-such-directory",
         "directory-takes-no-file", "server-without-key", "client-without-key"])
def test_without_a_directory_or_a_key_the_reason_is_another_namespace(host, client, server, peer):
    asks, answers = host.container("client"), host.container("server")
    with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers, **server)) as serves:
        serves.line()
        with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks, **client)) as talks:
            talks.line()
            assert stays(host, talks, asks, OTHER)[1 if peer else 0] == OTHER
            end(serves, talks)


def test_a_service_address_stays_on_tcp_and_says_so(host):
    asks, answers = host.container("client"), host.container("server")
    if shutil.which("iptables") is None:
        pytest.skip("not installed: iptables")
    try:
        host.network.translate(answers, PORT)
    except subprocess.CalledProcessError as problem:
        pytest.skip(f"no address translation here: {problem.stderr.strip()}")
    with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as server:
        server.line()
        with talker(asks, "ask", bridge.SERVICE, PORT, preload=host.preload(asks)) as client:
            client.line()
            assert stays(host, client, asks, OTHER)[0] == OTHER
            end(server, client)


# ---- A stranger, which has the directory and no key

@pytest.mark.parametrize("how", ["reflect", "silent"])
@pytest.mark.parametrize("plain", [False, True], ids=["server-with-the-library", "server-without"])
def test_a_stranger_that_has_the_path_first_gets_no_byte_into_a_stream(host, how, plain):
    asks, answers, stranger = (host.container(name) for name in ("client", "server", "stranger"))
    with forger(stranger) as squatter:
        assert squatter.tell(f"squat {host.path(answers)} {how}") == "squats"
        preload = None if plain else host.preload(answers)
        with talker(answers, "serve", "0.0.0.0", PORT, preload=preload) as server:
            server.line()
            with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks)) as client:
                client.line()
                reason = "wrong_key" if how == "reflect" else "timeout"
                assert stays(host, client, asks, reason)[0] == reason
                assert squatter.line().startswith("asked ")
                assert client.finish() == 0
            assert told(squatter, "leave") == "left"
            if not plain:
                # The server takes the path, and other connections come to shared memory.
                support.wait_for(host.path(answers).exists, "the server's own socket", 60)
                with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks)) as client:
                    client.line()
                    settle(host, client, asks, [answers])
                    assert client.finish() == 0
            assert server.finish() == 0


def test_a_stranger_that_replays_a_request_or_guesses_ends_disturbs_no_stream(host):
    asks, answers, stranger = (host.container(name) for name in ("client", "server", "stranger"))
    with forger(stranger) as intruder:
        intruder.tell(f"squat {host.path(answers)} silent")
        with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as server:
            server.line()
            with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks)) as client:
                client.line()
                assert client.tell("say hello") == "hello"
                hello = intruder.line().split()[1]
                assert told(intruder, "leave") == "left"
                support.wait_for(host.path(answers).exists, "the server's own socket", 60)
                for _ in range(3):
                    assert intruder.tell(f"replay {host.path(answers)} {hello}") in ("answer", "refusal 12")
                    assert client.tell("say amid that") == "amid that"
                    assert client.tell("bulk 200000").startswith("same ")
                own = next(s["local"] for s in host.streams(asks))
                for guessed in (own, "10.77.0.9:999"):
                    said = intruder.tell(f"guess {host.path(answers)} {guessed} {answers.address}:{PORT}")
                    assert said == WRONG_KEY, "before anything is done or kept for it"
                # The ends themselves are served.
                settle(host, client, asks, [answers])
                assert intruder.tell(f"replay {host.path(answers)} {hello}").startswith("refusal ")
                assert client.tell("bulk 5000000").startswith("same ")
                assert on_shm(host.streams(asks), 1)
                end(server, client)


def test_a_stranger_that_connects_and_says_nothing_keeps_nobody_from_being_served(host):
    asks, answers, stranger = (host.container(name) for name in ("client", "server", "stranger"))
    with talker(answers, "serve", "0.0.0.0", PORT, preload=host.preload(answers)) as server:
        server.line()
        with forger(stranger) as intruder:
            assert intruder.tell(f"flood {host.path(answers)} {FLOOD}") == f"in {FLOOD}"
            with talker(asks, "ask", answers.address, PORT, preload=host.preload(asks)) as client:
                client.line()
                settle(host, client, asks, [answers])
                assert client.tell("bulk 1000000").startswith("same ")
                end(server, client)
