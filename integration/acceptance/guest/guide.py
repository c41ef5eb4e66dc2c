"""The pages of the guide from top to bottom, as their reader would, run on two machines by boots.py.

   db1 (NODE=1) 10.9.1.1 eth0 ═══ Ethernet ═══ eth0 10.9.1.2 (NODE=2) db2

Nothing is there at first but the addresses and a MariaDB with an empty database. The commands are the pages',
and what they say is what these print. The sections that take minutes on emulated machines are followed with
RINGROAD_ACCEPTANCE_ALL=1; guest/galera.py has a cluster on one machine.
"""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

from .. import guide, support
from ..two_hosts import NODE, Meeting

HOST = f"db{NODE}"
DATA = Path("/var/lib/mysql")
ANSWER_S = 90
# A node that takes another's data, emulated.
END_S = 300
# On two emulated processors, and within a test's time. apt would read for a minute what else is installed
# on this machine: test_packages.py installs them.
SHORTER = {
    "apt-get install -y iproute2 rdma-core ibverbs-utils mariadb-server galera-4 sysbench jq ./build/package/*.deb":
        "for package in ./build/package/*.deb; do dpkg-deb -x $package /; done",
    "--period 5s --rounds 6 -- sleep 300": "--period 1s --rounds 2 --warm-up 1s --move 10s -- sleep 100",
    "--watch 10": "--watch 1",
    "--threads=4 --time=600": "--threads=4 --rate=40 --time=600"}
# A reader looks again where a load has only just begun.
LOOKS = re.compile(r"(ringroad )?ss\b|ringroad doctor --(?!answer)|grep |rdma resource|mariadb -e \"S")
SLOW = ("8. Galera", "9. Node by node, and back")
# A warning is no failure, nor is what cannot be found out.
# Under load an emulated processor acknowledges late, which is counted as what it is.
STATUSES = {"ringroad doctor --only counters": (0, 4, 5), "ringroad doctor": (0, 3, 4)}


def run(*words):
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def make_bare():
    """What db1 and db2 are before the first step."""
    run("rdma", "link", "delete", "rxe0")
    run("ip", "addr", "flush", "dev", "eth0")
    run("ip", "addr", "add", f"10.9.1.{NODE}/24", "dev", "eth0")
    run("ip", "link", "set", "eth0", "mtu", "1500")
    shutil.rmtree(DATA, ignore_errors=True)
    shutil.copytree(support.prepared_data(), DATA)
    Path("/run/mysqld").mkdir(exist_ok=True)
    run("chown", "-R", "mysql:", DATA, "/run/mysqld")
    # Its files are on a tmpfs, and small.
    Path("/etc/mysql/mariadb.conf.d/59-machine.cnf").write_text(
        "[mariadbd]\ninnodb_use_native_aio = 0\ninnodb_log_file_size = 16M\nskip_name_resolve\n")


class Shell:
    """One that stays, as the reader's: jobs, variables and the folder last."""

    def __init__(self, directory):
        self._directory = directory
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith("RINGROAD_")}
        self._process = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, text=True,
                                         cwd=support.ROOT, env=environment)
        self._write("set -m")

    def _write(self, line):
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def give(self, command, name):
        """Runs it; its status and the file that what it says goes to."""
        output, status = self._directory / name, self._directory / f"{name}.status"
        status.unlink(missing_ok=True)
        self._write(f"{{ {command}\n}} >{output} 2>&1 </dev/null; "
                    f"echo $? >{status}.new; mv {status}.new {status}")
        try:
            support.wait_for(status.exists, f"the end of: {command}", END_S)
        except Exception as problem:
            raise AssertionError(f"{problem}\n{output.read_text()}") from problem
        return int(status.read_text()), output

    def end(self):
        self._process.stdin.close()
        self._process.kill()
        self._process.wait()


class Reader:
    def __init__(self, directory):
        self._shell = Shell(directory)
        self._seconds = []

    def follow(self, step):
        began = time.monotonic()
        if step.file:
            Path(step.file).parent.mkdir(parents=True, exist_ok=True)
            Path(step.file).write_text(step.content)
        else:
            self._command(step)
        took_s = time.monotonic() - began
        self._seconds.append((took_s, step, step.command or step.file))

    def _command(self, step):
        command = step.command
        for long, short in SHORTER.items():
            command = command.replace(long, short)
        statuses = next((allowed for words, allowed in STATUSES.items() if command.startswith(words)),
                        (0,))
        again = LOOKS.match(command)
        deadline = time.monotonic() + ANSWER_S
        name = f"{step.page}.{step.line}"
        status, output = self._shell.give(command, name)
        while True:
            said = output.read_text()
            right = status in statuses and guide.says(said, step.expected)
            if right or not (again or step.background) or time.monotonic() > deadline:
                break
            time.sleep(0.2)
            if again:
                status, output = self._shell.give(command, name)
        print(f"---- {HOST}# {command}   (status {status})\n{said}", flush=True)
        assert right, (f"docs/{step.page}:{step.line}: {command}\nstatus {status}, it says:\n{said}\n"
                       "the page:\n" + "\n".join(step.expected))

    def report(self):
        """Leaves what took long for a person who wants the steps to be quicker."""
        lines = [f"{seconds:6.1f} s  {step.page}:{step.line}: {what[:90]}"
                 for seconds, step, what in sorted(self._seconds, key=lambda one: -one[0])]
        with open(os.path.join(os.environ["OUT"], "guide.txt"), "w", encoding="ascii") as file:
            file.write("\n".join(lines) + f"\n{sum(one[0] for one in self._seconds):6.1f} s in all\n")

    def end(self):
        self._shell.end()


def test_the_guide_is_followed_from_top_to_bottom(tmp_path):
    # boots.py has made the packages.
    steps = [step for step in guide.all_steps()
             if "build" not in step.hosts and (support.ALL or step.section not in SLOW)]
    assert len(steps) > 40
    with Meeting("guide") as meeting:
        make_bare()
        reader = Reader(tmp_path)
        try:
            last = None
            for number, step in enumerate(steps):
                if step.hosts != last:
                    meeting.meet(f"step{number}")
                last = step.hosts
                if HOST in step.hosts:
                    reader.follow(step)
            meeting.meet("end")
        finally:
            reader.report()
            reader.end()
