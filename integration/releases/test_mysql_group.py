"""MySQL's Group Replication over shared memory: load, a primary that is killed, and its return.

     mysqlslap ══ primary ═══ second ═══ third        each talks to each, and recovers from one
"""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from integration.acceptance import support
from integration.lib import checks, mysql, processes

pytestmark = pytest.mark.releases
GROUP = "5f7d0a5e-0f62-4f0e-9a37-5b6a2c0a9d11"
LOOPBACK = ("127.0.0.1", "127.0.0.0/8")
FORM_S = 90
MEMBERS = 3
ROWS = 2000
INSERT = f"INSERT INTO {mysql.DATABASE}.t (v) VALUES (UUID())"


class Group:
    """Three members at one address; a context that forms and ends it.

    `everything`: the policy has all ports, else the group's own.
    """

    def __init__(self, directory, prepared, stack_name="XCOM", *, address=LOOPBACK[0],
                 subnet=LOOPBACK[1], via="shm", everything=True, options=()):
        directory.mkdir()
        self.host = support.Host(directory)
        self.via = via
        ports = [support.free_port(address) for _ in range(MEMBERS)]
        self.group_ports = ports if stack_name == "MYSQL" else [
            support.free_port(address) for _ in range(MEMBERS)]
        self.group_addresses = [f"{address}:{port}" for port in self.group_ports]
        self.preload = self.host.preload(self.host.policy(
            "mysql", ["1-65535"] if everything else self.group_ports, via=via, subnet=subnet,
            promote_after="{ messages = 2 }"))
        self.members = [mysql.MySql(
            f"member{index}", prepared, directory, address, ports[index], self.preload,
            support.BUILD, [
                f"--server-id={index + 1}", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
                "--plugin-load-add=group_replication.so", "--plugin-load-add=mysql_clone.so",
                f"--report-host={address}", "--mysqlx=OFF",
                f"--loose-group-replication-group-name={GROUP}",
                f"--loose-group-replication-local-address={self.group_addresses[index]}",
                f"--loose-group-replication-group-seeds={','.join(self.group_addresses)}",
                "--loose-group-replication-start-on-boot=OFF",
                f"--loose-group-replication-ip-allowlist={subnet}",
                "--loose-group-replication-member-expel-timeout=0",
                "--loose-group-replication-recovery-get-public-key=ON",
                f"--loose-group-replication-communication-stack={stack_name}", *options])
            for index in range(MEMBERS)]

    def join(self, member, first=False):
        if first:
            member.query("SET GLOBAL group_replication_bootstrap_group=ON")
        member.query(f"START GROUP_REPLICATION USER='{mysql.USER}', PASSWORD='{mysql.PASSWORD}'")
        if first:
            member.query("SET GLOBAL group_replication_bootstrap_group=OFF")

    def is_online(self, members):
        """Each of them sees all of them online and none else."""
        wanted = {str(member.port): "ONLINE" for member in members}
        return all({port: state for port, state in member.query(
            "SELECT member_port, member_state FROM performance_schema.replication_group_members")}
            == wanted for member in members)

    def forms(self, members):
        support.wait_for(lambda: self.is_online(members), f"{len(members)} members online", FORM_S)

    def primary(self, asked):
        port = asked.query("SELECT member_port FROM performance_schema.replication_group_members "
                           "WHERE member_role = 'PRIMARY'")
        return next(member for member in self.members if [[str(member.port)]] == port)

    def load(self, member, rows, preload=None):
        return mysql.client("mysqlslap", member, [
            "--concurrency=4", f"--number-of-queries={rows}", f"--create-schema={mysql.DATABASE}",
            "--no-drop", f"--query={INSERT}"], preload or self.preload, support.BUILD)

    def group_streams(self, member):
        """Of the member, to the others' group ports and from them."""
        own = set(self.group_addresses)
        return [stream for stream in self.host.streams(member.pid)
                if stream["role"] != "listen" and ({stream["local"], stream["remote"]} & own)]

    def is_on_channels(self, members):
        """Nothing between the members is on TCP, and there is something."""
        for member in members:
            streams = self.group_streams(member)
            if len(streams) < len(members) - 1 or any(
                    stream["carrier"] != self.via for stream in streams):
                return False
        return True

    def agree(self, members):
        """Waits until all have applied the same transactions; the checksums that all of them have."""
        def sets():
            return {member.query("SELECT @@GLOBAL.gtid_executed")[0][0] for member in members}
        support.wait_for(lambda: len(sets()) == 1, "the same transactions everywhere", FORM_S)
        first, *others = [checks.checksums(member) for member in members]
        assert others == [first] * len(others)
        return first

    def __enter__(self):
        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(mysql.MySql.start, self.members))
            for index, member in enumerate(self.members):
                self.join(member, first=index == 0)
            self.forms(self.members)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for member in self.members:
            member.abandon()  # to leave a group in good order takes each of them up to 15 s


@pytest.mark.parametrize("stack_name", ["XCOM", "MYSQL"])
def test_a_group_loses_its_primary_under_load_and_has_it_back(work, prepared, stack_name):
    with Group(work / stack_name.lower(), prepared, stack_name) as group:
        first = group.primary(group.members[0])
        subprocess.run(group.load(first, ROWS), check=True, stdout=subprocess.DEVNULL,
                       timeout=FORM_S)
        support.wait_for(lambda: group.is_on_channels(group.members),
                         "the group's streams to be on channels", support.ANSWER_S)
        assert first.query(f"SELECT COUNT(*) FROM {mysql.DATABASE}.t") == [[str(ROWS)]]
        group.agree(group.members)
        load = processes.Child(group.load(first, 1_000_000), group.host.directory / "load.log")
        try:
            support.wait_for(lambda: int(first.query(
                f"SELECT COUNT(*) FROM {mysql.DATABASE}.t")[0][0]) > ROWS, "the load", FORM_S)
            first.kill()
            assert load.ends_within(FORM_S), "a client of a killed server ends"
        finally:
            load.kill()
        rest = [member for member in group.members if member is not first]
        group.forms(rest)
        subprocess.run(group.load(group.primary(rest[0]), ROWS), check=True,
                       stdout=subprocess.DEVNULL, timeout=FORM_S)
        first.start()
        group.join(first)
        group.forms(group.members)
        support.wait_for(lambda: group.is_on_channels(group.members),
                         "all streams to be on channels again", support.ANSWER_S)
        group.agree(group.members)
        assert int(first.query(f"SELECT COUNT(*) FROM {mysql.DATABASE}.t")[0][0]) >= 2 * ROWS
