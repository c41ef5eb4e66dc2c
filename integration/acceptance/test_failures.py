"""Where Ringroad cannot work, programs run on TCP, `ringroad ss` says why, and the log says it once."""

import re
import shutil
from pathlib import Path

import pytest

from . import support

LINE = re.compile(r"^\S+ ringroad (?P<program>\S+)\[(?P<pid>\d+)\] (?P<level>\w+): (?P<text>.+)$")
TEXT = "carried all the same"
LINES = 20
# Root may read any file, unless it gives that up.
AS_ORDINARY_USERS_DO = ("setpriv", "--bounding-set=-dac_override,-dac_read_search",
                        "--inh-caps=-dac_override,-dac_read_search")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def log_lines(path):
    """{pid: [(level, text), ...]} of a log file; every line must have the log's form."""
    found = {}
    for line in Path(path).read_text().splitlines():
        match = LINE.match(line)
        assert match, line
        found.setdefault(int(match["pid"]), []).append((match["level"], match["text"]))
    return found


class Pair:
    """A server and its client, both preloaded the same way, after a dialogue that worked."""

    def __init__(self, host, preload, prefix=()):
        self._host = host
        self.server = support.Talker("serve", "127.0.0.1", 0, preload=preload, prefix=prefix)
        try:
            self.port = int(self.server.line().split()[1])
            self.client = support.Talker("ask", "127.0.0.1", self.port, preload=preload,
                                         prefix=prefix)
        except BaseException:
            self.server.kill()
            raise
        self.ends = (self.client, self.server)

    def talk(self):
        assert self.client.line() == "connected"
        for number in range(LINES):
            assert self.client.tell(f"say {TEXT} {number}") == f"{TEXT} {number}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.client.kill()
        self.server.kill()

    def wait_for_reason(self, reason):
        """Waits until the client's stream gives the reason; it and the server's are on TCP."""
        support.wait_for(
            lambda: [stream["reason"] for stream in self._host.streams(self.client.pid)] == [reason],
            f"the reason {reason}")
        for end in self.ends:
            stream, = self._host.streams(end.pid)
            assert (stream["state"], stream["carrier"]) == ("ON_TCP", "tcp")
            assert stream["tx_bytes"]["tcp"] > LINES * len(TEXT)
            assert stream["tx_bytes"]["channel"] == stream["rx_bytes"]["channel"] == 0

    def end(self):
        assert [end.finish() for end in self.ends] == [0, 0]


def check_promotion_fails(host, preload, log, reason, words):
    """The dialogue works on TCP for `reason`, and each end's log has one line with `words`."""
    with Pair(host, preload) as pair:
        pair.talk()
        pair.wait_for_reason(reason)
        assert host.ss(pair.client.pid)["promotions_refused"] == {reason: 1}
        pair.end()
        lines = log_lines(log)
    assert set(lines) == {end.pid for end in pair.ends}
    for said in lines.values():
        assert len(said) == 1, said
        level, text = said[0]
        assert level == "warning"
        assert re.search(words, text), text


def rdma_policy(host):
    return host.policy("rdma", ["1-65535"], via="rdma", promote_after="{ messages = 1 }")


@pytest.mark.skipif(Path("/sys/class/infiniband").is_dir()
                    and any(Path("/sys/class/infiniband").iterdir()),
                    reason="there is an RDMA device here")
def test_without_an_rdma_device(host, tmp_path):
    log = tmp_path / "log"
    check_promotion_fails(host, host.preload(rdma_policy(host), log), log, "no_rdma_device",
                          "no RDMA device")


def test_without_the_verbs_object(host, tmp_path):
    log = tmp_path / "log"
    library = shutil.copy(host.tool.library, tmp_path)
    check_promotion_fails(host, host.preload(rdma_policy(host), log, library=library), log,
                          "no_verbs_library", "libringroad-verbs.so: cannot open shared object")


@pytest.mark.parametrize("library", ["libibverbs.so.1", "librdmacm.so.1"])
def test_without_the_verbs_libraries(host, tmp_path, library):
    log = tmp_path / "log"
    (tmp_path / library).write_bytes(b"")
    preload = host.preload(rdma_policy(host), log) | {"LD_LIBRARY_PATH": str(tmp_path)}
    check_promotion_fails(host, preload, log, "no_verbs_library", library)


@pytest.mark.parametrize("level, count", [("error", 0), ("warn", 1), ("info", 2)])
def test_the_log_level_chooses_what_is_said(host, tmp_path, level, count):
    """At `info` there is one line more, for the connection."""
    log = tmp_path / "log"
    library = shutil.copy(host.tool.library, tmp_path)
    preload = host.preload(rdma_policy(host), log, level=level, library=library)
    with Pair(host, preload) as pair:
        pair.talk()
        pair.wait_for_reason("no_verbs_library")
        pair.end()
        said = log_lines(log).get(pair.client.pid, []) if log.exists() else []
    assert len(said) == count, said


def check_policy_refused(host, policy, log, words, prefix=()):
    with Pair(host, host.preload(policy, log), prefix) as pair:
        pair.talk()
        for end in pair.ends:
            process = host.ss(end.pid)
            assert process["streams"] == []
            assert process["policy"]["status"] == "refused"
            assert re.search(words, process["policy"]["detail"]), process["policy"]
        pair.end()
        lines = log_lines(log)
    assert set(lines) == {end.pid for end in pair.ends}
    for said in lines.values():
        assert len(said) == 1, said
        level, text = said[0]
        assert level == "warning"
        assert text.startswith("policy refused, every connection stays on TCP: ")
        assert re.search(words, text), text


def test_a_broken_policy_is_named_with_line_and_column(host, tmp_path):
    policy = tmp_path / "broken.toml"
    policy.write_text('version = 1\n\n[[rule]]\nsubnet = "127.0.0.0/8"\nvia    = "roce"\n')
    check_policy_refused(host, policy, tmp_path / "log",
                         rf"{re.escape(str(policy))}:5:10: .*unknown via \"roce\"")


def test_a_policy_that_may_not_be_read(host, tmp_path):
    policy = rdma_policy(host)
    policy.chmod(0)
    check_policy_refused(host, policy, tmp_path / "log",
                         rf"{re.escape(str(policy))}.*[Pp]ermission denied", AS_ORDINARY_USERS_DO)


def test_a_policy_that_does_not_exist(host, tmp_path):
    policy = tmp_path / "nowhere.toml"
    check_policy_refused(host, policy, tmp_path / "log",
                         rf"{re.escape(str(policy))}.*[Nn]o such file")


def test_switched_off_there_is_nothing_to_see(host, tmp_path):
    log = tmp_path / "log"
    preload = host.preload(rdma_policy(host), log) | {"RINGROAD_DISABLE": "1"}
    with Pair(host, preload) as pair:
        pair.talk()
        assert [host.ss(end.pid) for end in pair.ends] == [None, None]
        pair.end()
    assert not log.exists()


def test_a_log_that_cannot_be_written_harms_nothing(host, tmp_path):
    preload = host.preload(rdma_policy(host), tmp_path / "no" / "such" / "log")
    with Pair(host, preload) as pair:
        pair.talk()
        support.wait_for(lambda: host.streams(pair.client.pid)[0]["reason"] != "pending", "a reason")
        pair.end()
    assert pair.client.errors == pair.server.errors == ""
