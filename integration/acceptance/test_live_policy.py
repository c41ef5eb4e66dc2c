"""An edited policy moves streams between TCP and their channels while they are used.

     asker ══ 127.0.0.1 ══ echo server        talker.py, both preloaded
"""

import os
import signal
import socket
import subprocess

import pytest

from integration.lib import processes

from . import support
from .test_live_switch import ON_CHANNEL, Pair, states, wait_for_states, fixture_host, \
    fixture_policy, fixture_preload  # pylint: disable=unused-import


def edit(policy, old, new):
    """As an editor does it: a new file that takes the old one's name."""
    text = policy.read_text()
    assert old in text
    fresh = policy.with_suffix(".new")
    fresh.write_text(text.replace(old, new))
    os.rename(fresh, policy)


@pytest.mark.parametrize("in_place", [True, False])
def test_what_an_edited_policy_does_not_allow_goes_back_and_comes_again(host, policy, preload,
                                                                       in_place):
    with Pair(preload, 1, host=host) as pair:
        asker = pair.askers[0]
        text = policy.read_text()
        for _ in range(2):
            if in_place:
                policy.write_text(text.replace('"shm"', '"tcp"'))
            else:
                edit(policy, '"shm"', '"tcp"')
            wait_for_states(host, asker.pid, ("tcp", "ON_TCP", "policy"))
            pair.say(asker, 2)
            if in_place:
                policy.write_text(text)
            else:
                edit(policy, '"tcp"', '"shm"')
            # With the next use, which must come after both processes have read it.
            support.wait_for(lambda: all(state[2] != "policy" for process in (asker, pair.server)
                                         for state in states(host, process.pid)), "the edit")
            pair.say(asker, 2)
            host.wait_for_channels(asker.pid, 1)
        assert host.ss(asker.pid)["policy"]["reloads"] == 4


def test_a_refused_edit_changes_nothing_and_is_told(host, policy, preload):
    with Pair(preload, 1, host=host) as pair:
        asker = pair.askers[0]
        good = policy.read_text()
        policy.write_text(good + "nonsense = true\n")
        support.wait_for(lambda: host.ss(asker.pid)["policy"]["status"] == "edit_refused",
                         "the edit to be refused")
        assert str(policy) in host.ss(asker.pid)["policy"]["detail"]
        assert states(host, asker.pid) == [ON_CHANNEL]
        shown = subprocess.run([host.tool.command, "ss", "--directory", host.runtime],
                               capture_output=True, text=True, check=True).stdout
        assert "edit of the policy refused, the policy before it holds (1 rule)" in shown
        with support.Talker("ask", "127.0.0.1", pair.port, preload=preload) as refused:
            assert refused.line() == "connected"  # a new process has no policy: all TCP
            pair.say(refused, 4)
        policy.write_text(good)
        support.wait_for(lambda: host.ss(asker.pid)["policy"]["status"] == "loaded", "the repair")
        pair.say(asker)
        assert states(host, asker.pid) == [ON_CHANNEL]


def test_a_listener_of_before_an_edit_that_allows_it_is_answered_for(host):
    """The process has another listener's rule at first, or it would look at no policy at all."""
    policy = host.policy("later", ["1"], promote_after="{ messages = 2 }")
    preload = host.preload(policy)
    code = """if True:
        import socket, sys
        unused = socket.create_server(("127.0.0.1", int(sys.argv[1])))
        listener = socket.create_server(("127.0.0.1", 0))
        print("PORT", listener.getsockname()[1], flush=True)
        while True:
            connection, _ = listener.accept()
            while received := connection.recv(65536):
                connection.sendall(received)
    """
    known = support.free_port()
    edit(policy, '"1"', f'"{known}"')
    with subprocess.Popen(["/usr/bin/python3", "-I", "-c", code, str(known)],
                          stdout=subprocess.PIPE, text=True, env={**os.environ, **preload}) as server:
        try:
            port = int(server.stdout.readline().split()[1])
            assert host.ss(server.pid)["policy"]["rules"] == 1
            edit(policy, f'"{known}"', f'"{port}"')
            support.wait_for(lambda: host.ss(server.pid)["policy"]["reloads"] == 1, "the edit")
            # The listener is known from the first accept() after it.
            for expected in (None, 1):
                with support.Talker("ask", "127.0.0.1", port, preload=preload) as asker:
                    assert asker.line() == "connected"
                    Pair.say(asker, 4)
                    if expected:
                        host.wait_for_channels(asker.pid, expected)
                    assert asker.finish() == 0
        finally:
            server.kill()


ASK_LATER = """if True:
    import os, socket, sys
    known, port = map(int, sys.argv[1:])
    socket.create_connection(("127.0.0.1", known)).close()  # no rule's: the policy is read all the same
    os.chdir("/")
    print("ready", flush=True)
    sys.stdin.readline()
    with socket.create_connection(("127.0.0.1", port)) as asker:
        for _ in range(20):
            asker.sendall(b"word\\n")
            assert asker.recv(100) == b"word\\n"
        print("talked", flush=True)
        sys.stdin.readline()
"""


@pytest.mark.parametrize("relative", [False, True])
def test_an_edit_from_before_the_first_connection_is_taken_up_with_it(host, preload, relative):
    with Pair(preload, 0) as pair, socket.create_server(("127.0.0.1", 0)) as other:
        own = host.policy("own", [str(pair.port)], promote_after="{ messages = 2 }")
        environment = {**os.environ, **host.preload(own.name if relative else own)}
        with subprocess.Popen(["/usr/bin/python3", "-I", "-c", ASK_LATER,
                               str(other.getsockname()[1]), str(pair.port)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                              cwd=own.parent, env=environment) as late:
            try:
                assert late.stdout.readline() == "ready\n"
                edit(own, '"shm"', '"tcp"')
                late.stdin.write("go\n")
                late.stdin.flush()
                assert late.stdout.readline() == "talked\n"
                wait_for_states(host, late.pid, ("tcp", "ON_TCP", "policy"))
                assert host.ss(late.pid)["policy"]["status"] == "loaded"
            finally:
                late.kill()


def test_a_child_takes_up_an_edit_from_between_its_fork_and_its_first_connection(host, preload):
    own = host.policy("own", ["1-65535"], promote_after="{ messages = 2 }")
    with support.Talker("prefork", "127.0.0.1", 0, preload=host.preload(own)) as server:
        port = int(server.line().split()[1])
        edit(own, '"shm"', '"tcp"')
        with support.Talker("ask", "127.0.0.1", port, preload=preload) as asker:
            assert asker.line() == "connected"
            Pair.say(asker, 8)
            support.wait_for(
                lambda: [state[:3] for child in support.children(server.pid)
                         for state in states(host, child)] in ([("tcp", "ON_TCP", "policy")], []),
                "the child to follow")
            assert states(host, asker.pid)[0][0] == "tcp"


def watchers(*pids):
    """Those of the processes that have an inotify instance."""
    def has_one(pid):
        links = (os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
        return "anon_inode:inotify" in links
    return [pid for pid in pids if has_one(pid)]


def test_one_process_of_a_family_watches_and_another_when_that_ends(host, policy, preload):
    """A user has 128 inotify instances, and more workers than that."""
    with Pair(preload, 2, how="prefork", host=host) as pair:
        family = [pair.server.pid, *support.children(pair.server.pid)]
        support.wait_for(lambda: len(watchers(*family)) == 1, "one to watch")
        for ending in (True, False):
            edit(policy, '"shm"', '"tcp"')
            for asker in pair.askers:
                support.wait_for(lambda asker=asker: states(host, asker.pid)[0][1] == "ON_TCP",
                                 "the edit")
            for pid in family:
                if host.streams(pid):
                    support.wait_for(
                        lambda pid=pid: {state[2] for state in states(host, pid)} == {"policy"},
                        f"{pid} to follow")
            edit(policy, '"tcp"', '"shm"')
            support.wait_for(
                lambda: all(state[2] != "policy"
                            for pid in [*family, *(asker.pid for asker in pair.askers)]
                            for state in states(host, pid)), "the edit back")
            if ending:
                # The parent: its input stays open, and so its workers go on.
                assert watchers(*family) == family[:1]
                os.kill(family.pop(0), signal.SIGKILL)
                support.wait_for(lambda: len(watchers(*family)) == 1, "another one to watch")
