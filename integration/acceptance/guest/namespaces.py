"""RDMA in a network namespace as a pod has one, run inside the virtual machine by boots.py.

   talker ── 10.8.0.2 (namespace pod) rxepod ═══ veth ═══ rxehost 10.8.0.1 ── talker

Whether Soft-RoCE's packets go from one namespace to another is the kernel's affair: they do not in Linux
6.1, and do in 7.2. rping says which it is, and the library must come to the same.
"""

import subprocess

import pytest

from .. import support
from ..doctor import evidence, examine, levels

HOST, POD = "10.8.0.1", "10.8.0.2"
NETWORK = "10.8.0.0/24"
IN_POD = ("ip", "netns", "exec", "pod")
RPING_S = 20
STEPS = f"""
ip netns add pod
ip link add ehost type veth peer name epod netns pod
ip address add {HOST}/24 dev ehost
ip link set ehost up
ip -n pod address add {POD}/24 dev epod
ip -n pod link set lo up
ip -n pod link set epod up
rdma link add rxehost type rxe netdev ehost
ip netns exec pod rdma link add rxepod type rxe netdev epod
"""


def run(*words):
    subprocess.run(words, check=True, timeout=support.ANSWER_S)


@pytest.fixture(name="pod", scope="module", autouse=True)
def fixture_pod():
    for step in STEPS.strip().splitlines():
        run(*step.split())
    yield
    for device in ("rxepod", "rxehost"):
        subprocess.run(["rdma", "link", "delete", device], check=False)
    run("ip", "netns", "delete", "pod")


@pytest.fixture(name="host")
def fixture_host(tmp_path):
    return support.Host(tmp_path)


def packets_cross():
    with subprocess.Popen(["rping", "-s", "-a", HOST, "-C", "1"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL) as server:
        try:
            listening = ("rdma", "resource", "show", "cm_id")
            support.wait_for(lambda: HOST in subprocess.run(listening, capture_output=True, text=True,
                                                            check=True).stdout, "rping to listen")
            done = subprocess.run([*IN_POD, "timeout", str(RPING_S), "rping", "-c", "-a", HOST, "-C", "1"],
                                  capture_output=True, check=False)
            return done.returncode == 0
        finally:
            server.kill()


def test_a_pods_streams_are_on_rdma_where_rping_gets_through(host):
    crosses = packets_cross()
    print("rping gets through" if crosses else "rping does not get through: this kernel's Soft-RoCE cannot")
    preload = host.preload(host.policy("pods", ["1-65535"], via="rdma", subnet=NETWORK,
                                       promote_after="{ messages = 2 }"))
    with support.Talker("serve", HOST, 0, preload=preload) as server:
        port = int(server.line().split()[1])
        with support.Talker("ask", HOST, port, preload=preload, prefix=IN_POD) as client:
            assert client.line() == "connected"

            def stream():
                assert client.tell("bulk 1000").startswith("same ")
                return host.streams(client.pid)[0]

            if crosses:
                support.wait_for(lambda: stream()["carrier"] == "rdma", "the pod's stream on RDMA")
                assert stream()["device"] == "rxepod"
            else:
                support.wait_for(lambda: stream()["reason"] == "timeout", "the attempt to be over")
                assert stream()["carrier"] == "tcp"
            # Either way no byte is lost.
            assert client.tell("bulk 300000").startswith("same ")


def test_the_doctor_in_a_pod_names_its_own_device_and_whose_the_others_are(host):
    policy = host.policy("pods", ["1-65535"], via="rdma", subnet=NETWORK)
    checks = examine(host, policy, "--only", "device,mtu,gid,route", prefix=IN_POD)
    told = evidence(checks["device"])
    assert any(finding["subject"] == "rxepod" and "software device" in finding["evidence"]
               for finding in checks["device"]), told
    assert {finding["subject"] for finding in checks["device"]
            if "for another network namespace" in finding["evidence"]} >= {"rxe0", "rxe1", "rxehost"}
    assert "unknown" not in levels(checks["mtu"]) and levels(checks["gid"]) == {"ok"}
    assert levels(checks["route"]) == {"ok"}


def test_the_doctor_in_a_namespace_without_a_device_says_what_it_needs(host):
    policy = host.policy("pods", ["1-65535"], via="rdma", subnet=NETWORK)
    with_its_sys = ("unshare", "--net", "--mount", "sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh")
    checks = examine(host, policy, "--only", "device", prefix=with_its_sys)
    assert levels(checks["device"]) >= {"fail"}
    assert "no network device of an RDMA device's" in evidence(checks["device"])
