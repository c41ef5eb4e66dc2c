"""Tells the kernel which network and RDMA devices are one physical network, as smc_pnet and smcd of smc-tools do.

   python3 -m integration.bench.smc_net NETWORK-DEVICE=RDMA-DEVICE...

Cards with a PNET id of their own need none of this; Soft-RoCE's devices have none. A user-defined EID makes SMC-Rv2
possible, and Soft-RoCE speaks no other, for version 1 asks for a RoCEv1 GID. That works since Linux 6.12; with 6.1
every connection hangs, so nothing is done there.
exit status: 0 done, 1 the kernel is too old or has refused, 2 wrong arguments
"""

import os
import re
import socket
import struct
import subprocess
import sys

from .smc_diag import HEADER, NLMSG_ERROR

NETLINK_GENERIC, NLM_F_REQUEST_ACK = 16, 0x5
# <linux/genetlink.h>: the family that knows the others by their names.
GENERIC = struct.Struct("=BBH")  # command, version
CONTROL, GET_FAMILY, FAMILY_ID, FAMILY_NAME = 0x10, 3, 1, 2
# <linux/smc.h>.
PNET, ADD_PNET, PNET_NAME, PNET_NETWORK, PNET_RDMA, PNET_PORT = "SMC_PNETID", 2, 1, 2, 3, 4
SMC, ADD_EID, EID_ENTRY = "SMC_GEN_NETLINK", 10, 1
PNET_ID, EID = "RINGROAD", "RINGROAD"
EID_BYTES = 32
PORT = 1  # of the RDMA device
SINCE = (6, 12)


def attribute(kind, value):
    data = value.encode() + b"\0" if isinstance(value, str) else value
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def attributes(data):
    found = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("=HH", data)
        found[kind] = data[4:length]
        data = data[max(4, (length + 3) & ~3):]
    return found


def call(kernel, family, command, body):
    """Sends a command and waits for its end; the attributes of what came before that.

    OSError if the kernel refuses.
    """
    payload = GENERIC.pack(command, 1, 0) + body
    kernel.send(HEADER.pack(HEADER.size + len(payload), family, NLM_F_REQUEST_ACK, 1, 0) + payload)
    found = {}
    while True:
        received = kernel.recv(1 << 16)
        while received:
            length, kind, _, _, _ = HEADER.unpack_from(received)
            if kind == NLMSG_ERROR:
                code = -struct.unpack_from("=i", received, HEADER.size)[0]
                if code:
                    raise OSError(code, "")
                return found
            found |= attributes(received[HEADER.size + GENERIC.size:length])
            received = received[(length + 3) & ~3:]


def family_of(kernel, name):
    found = call(kernel, CONTROL, GET_FAMILY, attribute(FAMILY_NAME, name))
    return struct.unpack("=H", found[FAMILY_ID])[0]


def join(pairs):
    """`pairs` of (network device, RDMA device) become one network, on which SMC-Rv2 may be used."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as kernel:
        pnet, smc = family_of(kernel, PNET), family_of(kernel, SMC)
        for network, rdma in pairs:
            call(kernel, pnet, ADD_PNET,
                 attribute(PNET_NAME, PNET_ID) + attribute(PNET_NETWORK, network)
                 + attribute(PNET_RDMA, rdma) + attribute(PNET_PORT, bytes([PORT])))
        call(kernel, smc, ADD_EID, attribute(EID_ENTRY, EID.ljust(EID_BYTES)))


def too_old(release):
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2]) < SINCE


def main(words):
    pairs = [word.split("=") for word in words]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        print(__doc__, file=sys.stderr)
        return 2
    if too_old(os.uname().release):
        print(f"bench.smc_net: Linux {os.uname().release} is too old for SMC-Rv2 over Soft-RoCE: "
              f"{SINCE[0]}.{SINCE[1]} is needed", file=sys.stderr)
        return 1
    subprocess.run(["modprobe", "-a", "smc", "smc_diag"], check=False)
    try:
        join(pairs)
    except OSError as problem:
        print(f"bench.smc_net: the kernel refused: {problem.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
