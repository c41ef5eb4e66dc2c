"""`ringroad bench accept` from one machine to another, run on both by boots.py.

   node 1: sshd                  ═══ eth0    10.7.0 ═══ node 2: `ringroad bench accept`
   node 1: mariadbd, an echo ... ═══ eth0.9  10.8.9 ═══ node 2: sysbench ...     the link that goes down
"""

import json
import os
import subprocess
from pathlib import Path

from integration.bench import oltp
from integration.lib import processes

from .. import sshd, support
from ..two_hosts import NODE, Meeting
from .two_hosts import SERVER, SERVES, answer_by_ssh, network

DEVICE = "eth0.9"
STEPS = "device,perftest"
ACCEPT_S = 120


def test_two_hosts_are_accepted_in_one_run_that_goes_on(tmp_path):
    with Meeting("accept") as meeting, network(
            f"link add link eth0 name {DEVICE} type vlan id 9", f"addr add 10.8.9.{NODE}/24 dev {DEVICE}",
            f"link set {DEVICE} up", undo=f"link del {DEVICE}"):
        # As a card has one: Soft-RoCE sends again for ever what a device without a queue drops.
        subprocess.run(["tc", "qdisc", "add", "dev", DEVICE, "root", "pfifo"], check=True)
        meeting.meet("up")
        (answer_by_ssh if SERVES else accept_by_ssh)(tmp_path, meeting)
        meeting.meet("over")


def accept_by_ssh(directory, meeting):
    reached = meeting.hear("ssh")
    key = directory / "user"
    key.touch(0o600)
    key.write_text(reached["key"])
    command = support.BUILD / "bin" / "ringroad"
    (directory / "hosts.toml").write_text(
        f'[server]\nssh = "root@{SERVER}"\naddress = "10.8.9.1"\n'
        f'ssh_options = {json.dumps(sshd.options(reached["port"], directory))}\n'
        f'ringroad = "{command}"\n\n[client]\naddress = "10.8.9.2"\n')
    out = directory / "out"
    environment = {**os.environ, oltp.TEMPLATE: str(support.prepared_data().parent)}
    words = [command, "bench", "accept", "--inventory", directory / "hosts.toml", "--out", out, "--quick", "--remove-device"]
    try:
        first, again = (subprocess.run([*words, "--steps", steps], text=True, check=False, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, env=environment, timeout=processes.patient(ACCEPT_S))
                        for steps in ("device", STEPS))
    finally:
        subprocess.run(["cp", "-r", out, os.environ["OUT"]], check=False)
    print(first.stdout, again.stdout)
    steps = {one["step"]: one for one in json.loads((out / "report.json").read_text())["steps"]}
    assert False, steps
    meeting.say("measured")
