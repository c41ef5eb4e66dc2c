import socket

import pytest

from . import smc_net


def test_attributes_are_read_as_they_are_written():
    written = {smc_net.PNET_NAME: "RINGROAD", smc_net.PNET_PORT: b"\1", smc_net.PNET_RDMA: "rxe0"}
    read = smc_net.attributes(b"".join(smc_net.attribute(*one) for one in written.items()))
    assert read == {smc_net.PNET_NAME: b"RINGROAD\0", smc_net.PNET_PORT: b"\1",
                    smc_net.PNET_RDMA: b"rxe0\0"}


def test_the_kernel_is_asked_for_a_family_and_refuses_one_that_is_none():
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, smc_net.NETLINK_GENERIC) as kernel:
        assert smc_net.family_of(kernel, "nlctrl") == smc_net.CONTROL
        with pytest.raises(OSError):
            smc_net.family_of(kernel, "no such")


@pytest.mark.parametrize("release, old", [("6.1.0-37-amd64", True), ("5.19.2", True),
                                          ("6.12.107+deb12-amd64", False), ("7.0", False)])
def test_a_kernel_on_which_connections_hang_is_left_alone(release, old):
    assert smc_net.too_old(release) == old


def test_what_is_no_pair_of_devices_is_refused(capsys):
    assert smc_net.main(["v0"]) == 2
    assert "NETWORK-DEVICE=RDMA-DEVICE" in capsys.readouterr().err
