"""Programs whose work is to move bytes: measured by sockperf, spliced by HAProxy, copied by rsync.

     client ── 127.0.0.1 ── server          both plain: the outcome to compare with
     client ══ 127.0.0.1 ══ server          both preloaded: the same, from a channel,
                                            or `ringroad ss` says why not
"""

import hashlib
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.lib import processes

from . import support
from .test_programs import check_idle, check_promoted, fixture_eager, fixture_host, \
    fixture_preload, needs, output, server  # pylint: disable=unused-import

SOCKPERF_WAITS = {"recvfrom": "r", "select": "s", "poll": "p", "epoll": "e"}
SPLICED_BYTES = 32 << 20
FILES = 150
FILE_SIZES = (0, 1, 700, 5000, 70_000)
BIG_FILE_BYTES = 3_000_000
SLOWLY = "--bwlimit=4000"  # KiB/s: time to be looked at


@needs("sockperf")
def test_sockperf_finds_every_message_and_none_twice(host, preload):
    """All ways to wait side by side, because most of a run is sockperf's own waiting."""
    with ThreadPoolExecutor(len(SOCKPERF_WAITS)) as at_once:
        runs = [at_once.submit(check_sockperf, host, preload, *way)
                for way in SOCKPERF_WAITS.items()]
        for run in runs:
            run.result()


def check_sockperf(host, preload, name, letter):
    """Two connections, which one thread waits for; one where it sleeps in recvfrom()."""
    ports = [support.free_port() for _ in range(1 if name == "recvfrom" else 2)]
    feed = host.directory / f"feed-{name}"
    feed.write_text("".join(f"T:127.0.0.1:{port}\n" for port in ports))
    # It waits 10 ms at a time unless told to wait for ever.
    words = ["-f", feed, "-F", letter, "--timeout=-1"]
    if name == "recvfrom":
        words = ["--tcp", "-i", "127.0.0.1", "-p", ports[0]]
    with server(host, f"sockperf-{name}", ["sockperf", "server", *words], ports[-1],
                preload) as child:
        text = output(["sockperf", "ping-pong", *words, "-t", 1, "-m", 300, "--data-integrity"],
                      preload).decode()
        total = re.search(r"Total Run.*SentMessages=(\d+); ReceivedMessages=(\d+)", text)
        sent, received = map(int, total.groups())
        # The clock may stop it between a message and its answer.
        assert 0 <= sent - received <= 1 < received, (name, text)
        assert ("dropped messages = 0; # duplicated messages = 0; "
                "# out-of-order messages = 0") in text, (name, text)
        assert "ERROR" not in text, (name, text)
        assert "Message Rate is" in output(["sockperf", "throughput", *words, "-t", 1, "-m", 1000],
                                           preload).decode()
        check_promoted(host, child.pid, 2 * 300 * received)
        assert host.ss(child.pid)["streams_promoted"] == 2 * len(ports), name
        check_idle(child.pid)
        os.kill(child.pid, signal.SIGINT)
        assert child.ends_within(support.ANSWER_S), name
        counted = re.search(r"Total (\d+) messages received and handled", child.log.read_text())
        assert int(counted[1]) > received, child.log.read_text()


def haproxy_configuration(back, ports):
    return ("global\n  nbthread 2\ndefaults\n  mode tcp\n  timeout connect 5s\n"
            "  timeout client 60s\n  timeout server 60s\n"
            + "".join(f"listen {name}\n  bind 127.0.0.1:{port}\n{options}"
                      f"  server s 127.0.0.1:{back}\n"
                      for (name, options), port in zip(SPLICING.items(), ports)))


SPLICING = {
    "never": "",
    "when_it_seems_worth_it": "  option splice-auto\n",
    "requests": "  option splice-request\n",
    "both_ways": "  option splice-request\n  option splice-response\n",
}


@needs("haproxy")
@pytest.mark.parametrize("way", SPLICING)
def test_haproxy_that_splices_relays_the_same_bytes(host, eager, way):
    outcomes = []
    for environment in (None, eager):
        ports = [support.free_port() for _ in SPLICING]
        path = host.directory / "haproxy.cfg"
        with support.Talker("serve", "127.0.0.1", 0, preload=environment) as back:
            path.write_text(haproxy_configuration(int(back.line().split()[1]), ports))
            port = ports[list(SPLICING).index(way)]
            with server(host, "haproxy", ["haproxy", "-f", path, "-db"], ports[-1],
                        environment) as child, \
                    support.Talker("ask", "127.0.0.1", port, preload=environment) as client:
                assert client.line() == "connected"
                outcomes.append([client.tell("say before"), client.tell(f"bulk {SPLICED_BYTES}"),
                                 client.tell("say between"), client.tell(f"bulk {SPLICED_BYTES}")])
                assert outcomes[-1][1].startswith("same ")
                if environment:
                    check_spliced(host, child.pid, way)
                    if way == "both_ways":
                        check_idle(child.pid, ticks=1)
                assert client.finish() == 0
            assert back.finish() == 0
    assert outcomes[0] == outcomes[1]


def check_spliced(host, pid, way):
    """What is spliced is on TCP, and says so; what is not is on its channel."""
    if way == "never":
        host.wait_for_channels(pid, 2)
        return
    at_least = {"both_ways": 2, "requests": 1, "when_it_seems_worth_it": 0}[way]

    def all_told():
        streams = host.streams(pid)
        spliced = [stream["state"] == "ON_TCP" and stream["reason"] == "descriptor_use"
                   for stream in streams]
        return len(streams) == 2 and sum(spliced) >= at_least and all(
            one or stream["state"] == "ON_CHANNEL" for one, stream in zip(spliced, streams))
    support.wait_for(all_told, f"both streams to say where they are: {host.streams(pid)}")


def make_tree(directory):
    for number in range(FILES):
        place = directory / f"{number % 7}"
        place.mkdir(parents=True, exist_ok=True)
        block = hashlib.sha256(str(number).encode()).digest()
        size = FILE_SIZES[number % len(FILE_SIZES)]
        (place / f"{number}").write_bytes((block * (size // len(block) + 1))[:size])
    (directory / "big").write_bytes(b"".join(hashlib.sha256(str(i).encode()).digest()
                                             for i in range(BIG_FILE_BYTES // 32)))


def contents(directory):
    return {str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(directory.rglob("*")) if path.is_file()}


@needs("rsync")
def test_rsync_whose_two_processes_share_a_socket_stays_on_tcp_and_says_why(host, eager):
    """The receiving end is two processes: the client's when it takes, else the daemon's."""
    source = host.directory / "source"
    make_tree(source)
    outcomes = []
    for name, environment in (("plain", None), ("preloaded", eager)):
        directory = host.directory / name
        (directory / "store").mkdir(parents=True)
        path = directory / "rsyncd.conf"
        path.write_text("use chroot = no\nuid = root\ngid = root\n"
                        f"[store]\npath = {directory}/store\nread only = no\n"
                        if os.geteuid() == 0 else
                        f"use chroot = no\n[store]\npath = {directory}/store\nread only = no\n")
        port = support.free_port()
        url = f"rsync://127.0.0.1:{port}/store/"
        with server(host, f"rsync-{name}", [
                "rsync", "--daemon", "--no-detach", f"--config={path}", "--address=127.0.0.1",
                f"--port={port}", f"--log-file={directory}/log"], port, environment) as daemon:
            reasons = [copy(host, daemon, [SLOWLY, "-a", f"{source}/", url], environment)]
            reasons.append(copy(host, daemon, [SLOWLY, "-a", url, directory / "back"], environment))
            # Only what differs: checksums go one way, blocks the other.
            with open(source / "big", "r+b") as big:
                big.write(name.encode())
            copy(host, daemon, ["-a", "--no-whole-file", "--checksum", f"{source}/", url],
                 environment)
            copy(host, daemon, ["-a", "--delete", url, f"{directory}/back/"], environment)
            outcomes.append((contents(directory / "back"), output(["rsync", url], environment)
                             .decode().count("\n")))
        assert contents(directory / "store") == contents(directory / "back") == contents(source)
        if environment:
            assert all("fork" in seen for seen in reasons), reasons
    assert outcomes[0][1] == outcomes[1][1] and len(outcomes[0][0]) == FILES + 1


def copy(host, daemon, words, environment):
    """Runs rsync; the reasons that both ends' streams gave meanwhile."""
    seen = set()
    child = processes.Child(["rsync", *words], host.directory / "copy.log", environment)
    try:
        while not child.ends_within(0.05):
            if environment:
                seen |= {stream["reason"] for pid in family(daemon.pid) | family(child.pid)
                         for stream in host.streams(pid)}
        assert child.collect() == 0, processes.tail(child.log)
    finally:
        child.kill()
    return seen


def family(pid):
    """A process and those that descend from it, as far as they live."""
    members, new = set(), [pid]
    while new:
        try:
            below = support.children(new[-1])
        except OSError:
            below = []
        members.add(new.pop())
        new += below
    return members
