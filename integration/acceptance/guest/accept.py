"""`ringroad bench accept` from one machine to another, run on both by boots.py.

   node 1: sshd             ═══ eth0    10.7.0 ═══ node 2: `ringroad bench accept`
   node 1: what is measured ═══ eth0.9  10.8.9 ═══ node 2: its client; this link goes down and up

With RINGROAD_ACCEPTANCE_ALL=1 each step but the one that removes the device; it takes ten minutes.
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
STEPS = ["doctor", "perftest", "net", "oltp", "link", "upgrade"] if support.ALL else ["doctor", "link"]
ACCEPT_S = 1500 if support.ALL else 120
# Where both machines have a second build.
OTHER = Path("/tmp/ringroad-other")


def test_two_hosts_are_accepted_over_ssh_and_one_loses_its_link_under_load(tmp_path):
    with Meeting("accept") as meeting, network(
            f"link add link eth0 name {DEVICE} type vlan id 9", f"addr add 10.8.9.{NODE}/24 dev {DEVICE}",
            f"link set {DEVICE} up", undo=f"link del {DEVICE}"):
        support.other_build(OTHER)
        # As a card has one; without, the command refuses.
        subprocess.run(["tc", "qdisc", "add", "dev", DEVICE, "root", "pfifo"], check=True)
        meeting.meet("up")
        if SERVES:
            answer_by_ssh(tmp_path, meeting, ACCEPT_S)
        else:
            accept_by_ssh(tmp_path, meeting)
        meeting.meet("over")


def accept_by_ssh(directory, meeting):
    reached = meeting.hear("ssh")
    key = directory / "user"
    key.touch(0o600)
    key.write_text(reached["key"])
    command = support.BUILD / "bin" / "ringroad"
    inventory, out = directory / "hosts.toml", directory / "out"
    inventory.write_text(
        f'[server]\nssh = "root@{SERVER}"\naddress = "10.8.9.1"\n'
        f'ssh_options = {json.dumps(sshd.options(reached["port"], directory))}\n'
        f'ringroad = "{command}"\n\n[client]\naddress = "10.8.9.2"\n')
    done = subprocess.run(
        [command, "bench", "accept", "--quick", "--steps", ",".join(STEPS), "--inventory", inventory, "--out", out,
         "--upgrade", OTHER / "bin" / "ringroad"],
        text=True, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=processes.patient(ACCEPT_S),
        env={**os.environ, oltp.TEMPLATE: str(support.prepared_data().parent)})
    print(done.stdout)
    assert done.returncode == 0, done.stdout
    steps = {one["step"]: one for one in json.loads((out / "report.json").read_text())["steps"]}
    assert [steps[name]["verdict"] for name in STEPS] == ["passed"] * len(STEPS), steps
    assert "the link of the client's host" in steps["link"]["figure"]
    link = json.loads((out / "link.json").read_text())
    assert link["back_s"] is not None and link["report"]["transactions"] > 0 and link["report"]["reconnects"] == 0
    shown = subprocess.run(["ip", "-j", "link", "show", DEVICE], check=True, capture_output=True, text=True)
    assert "UP" in json.loads(shown.stdout)[0]["flags"]
    meeting.say("measured")
