"""`ringroad doctor` on this machine, over loopback.

   ringroad doctor --peer ── 127.0.0.1 ── ringroad doctor --answer, or any server

It has no RDMA device: what it says on one that has is in guest/doctor.py.
"""

import re
import signal
import socket
import subprocess
import threading

import pytest

from . import support
from .doctor import Answerer, examine, evidence, levels

PAGE = (support.ROOT / "docs" / "doctor.md").read_text()


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


@pytest.fixture(name="policy")
def fixture_policy(host):
    return host.policy("peer", [3306], via="rdma")


@pytest.fixture(name="port")
def fixture_port():
    return support.free_port()


def answered_after(answerer, port):
    """What the answerer sends back for a greeting and one message of its own."""
    with socket.create_connection(("127.0.0.1", port), timeout=support.ANSWER_S) as peer:
        with peer.makefile("rwb") as stream:
            greeting = stream.readline()
            stream.write(b"\0\0\0\x0ahello!")
            stream.flush()
            return greeting, stream.read(10)


def test_an_answerer_is_pinged_over_tcp_and_the_reason_for_no_more_is_told(host, policy, port):
    with Answerer(host, policy, f"127.0.0.1:{port}") as answerer:
        checks = examine(host, policy, "--peer", f"127.0.0.1:{port}")
        assert levels(checks["peer-tcp"]) == {"ok"}
        assert re.search(r"TCP p50 [\d.]+ us, min [\d.]+ us \(\d+\); RDMA none",
                         evidence(checks["peer-ping"]))
        assert len(checks["peer-ping"]) == 2
        assert "no_rdma_device" in evidence(checks["peer-promotion"])
        status, said = answerer.stop()
    assert status == 0
    assert len(said) == 1 and said[0].endswith("is answered")


def test_an_answerer_echoes_messages_and_drops_a_peer_that_sends_others(host, policy, port):
    with Answerer(host, policy, f"127.0.0.1:{port}") as answerer:
        assert answered_after(answerer, port) == (b"ringroad-answer 1\n", b"\0\0\0\x0ahello!")
        for wrong in (b"\0\0\0\x03", b"\xff\xff\xff\xff", b"GET / HTTP/1.0\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port), timeout=support.ANSWER_S) as peer:
                peer.sendall(wrong)
                with peer.makefile("rb") as stream:
                    try:
                        assert stream.read() == b"ringroad-answer 1\n"
                    except ConnectionResetError:
                        pass  # it closed with bytes unread
        assert answered_after(answerer, port)[1] == b"\0\0\0\x0ahello!"


def test_an_answerer_answers_nobody_outside_the_policys_subnets(host, port):
    policy = host.policy("other", [3306], via="rdma", subnet="10.77.0.0/16")
    with Answerer(host, policy, f"127.0.0.1:{port}") as answerer:
        with socket.create_connection(("127.0.0.1", port), timeout=support.ANSWER_S) as peer:
            assert peer.recv(100) == b""
        _, said = answerer.stop()
    assert len(said) == 1 and said[0].endswith("refused")


def test_an_answerer_serves_others_while_one_says_nothing(host, policy, port):
    with Answerer(host, policy, f"127.0.0.1:{port}") as answerer:
        with socket.create_connection(("127.0.0.1", port), timeout=support.ANSWER_S):
            assert answered_after(answerer, port)[1] == b"\0\0\0\x0ahello!"


def test_an_answerer_on_a_port_that_is_taken_says_so(host, policy):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = subprocess.run([host.tool.command, "doctor", "--policy", policy, "--answer", where],
                              capture_output=True, text=True, timeout=support.ANSWER_S, check=False)
    assert done.returncode == 1
    assert f"{where}: Address already in use" in done.stderr


def test_an_interrupted_answerer_ends_without_an_error(host, policy, port):
    with Answerer(host, policy, port) as answerer:  # every address
        assert answered_after(answerer, port)[0] == b"ringroad-answer 1\n"
        assert answerer.stop(signal.SIGINT)[0] == 0


@pytest.mark.parametrize("says", [b"", b"5.5.5-10.11.6-MariaDB\0", b"ringroad-answer 2\n"])
def test_another_server_is_connected_to_and_sent_nothing(host, policy, says):
    got = []

    def serve(listener):
        with listener.accept()[0] as client:
            client.sendall(says)
            try:
                while data := client.recv(100):
                    got.append(data)
            except ConnectionResetError:
                pass  # it closed with bytes unread

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, args=(listener,))
        server.start()
        checks = examine(host, policy, "--peer", f"127.0.0.1:{listener.getsockname()[1]}")
        server.join(support.ANSWER_S)
    assert got == []
    assert levels(checks["peer-tcp"]) == {"ok"}
    assert "no ringroad doctor --answer" in evidence(checks["peer-ping"])


def test_a_port_where_nobody_listens_is_a_failure(host, policy, port):
    checks = examine(host, policy, "--peer", f"127.0.0.1:{port}")
    assert levels(checks["peer-tcp"]) == {"fail"}
    assert "Connection refused" in evidence(checks["peer-tcp"])


def test_a_peer_outside_the_policy_is_pinged_over_tcp_all_the_same(host, policy, port):
    other = host.policy("other", [3306], via="rdma", subnet="10.77.0.0/16")
    with Answerer(host, policy, f"127.0.0.1:{port}"):
        checks = examine(host, other, "--peer", f"127.0.0.1:{port}")
    assert levels(checks["peer-policy"]) == {"fail"}
    assert "RDMA none" not in evidence(checks.get("peer-promotion", []))
    assert levels(checks["peer-tcp"]) == {"ok"}


def test_a_program_of_this_machine_is_judged_by_its_file(host, policy):
    checks = examine(host, policy, "--only", "program", "--program", "/usr/bin/python3")
    assert levels(checks["program"]) == {"ok"}
    checks = examine(host, policy, "--only", "program", "--program", "/bin/busybox")
    assert "linked statically" in evidence(checks["program"])


def test_a_preloaded_process_is_told_from_another(host, policy):
    for preload, level in ((host.preload(policy), "ok"), (None, "fail")):
        with support.Talker("serve", "127.0.0.1", 0, preload=preload) as talker:
            talker.line()
            checks = examine(host, policy, "--only", "process,memlock", "--pid", talker.pid)
            assert levels(checks["process"]) == {level}, checks
            assert len(checks["memlock"]) == 1
            assert talker.finish() == 0


def test_the_page_describes_every_check_and_no_other(host):
    done = subprocess.run([host.tool.command, "doctor", "--list"], capture_output=True, text=True,
                          check=True)
    names = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert len(names) >= 25
    described = re.findall(r"^\| `([\w-]+)` \|", PAGE.partition("\n## The checks\n")[2], re.MULTILINE)
    assert [name for name in described if not name.startswith("peer-")] == names
    peer = {name for name in described if name.startswith("peer-")}
    said = set(re.findall(r'"(peer-\w+)"', "".join(
        path.read_text() for path in (support.ROOT / "cli" / "doctor").glob("peer*.cc"))))
    assert peer == said
