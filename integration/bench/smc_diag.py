"""What the kernel says of SMC sockets, as smcss of smc-tools shows it: SMC-R, or TCP and why."""

import ipaddress
import socket
import struct

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x301, 2, 3
AF_SMC = 43
# <linux/smc_diag.h>: a request, an answer, the attribute with the reason.
REQUEST = struct.Struct("=BBBB48x")
ANSWER = struct.Struct("=BBBB48sIQ")
HEADER = struct.Struct("=IHHII")
FALLBACK_ATTRIBUTE = 5
MODES = {0: "SMC-R", 1: "TCP", 2: "SMC-D"}
# net/smc/smc_clc.h of Linux: SMC_CLC_DECL_*. The number is told besides.
REASONS = {0x02010000: "no answer in time", 0x03010000: "the peer has no SMC",
           0x03030000: "no SMC device for this route", 0x03030002: "no SMC-R device",
           0x03060000: "a socket option that SMC lacks", 0x05000000: "the peer declined"}


def sockets():
    """Each SMC socket: {"mode", "remote": (address, port), "reason", "peer_reason"}."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        body = REQUEST.pack(AF_SMC, 0, 0, 0xff)
        kernel.send(HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST_DUMP, 1,
                                0) + body)
        found = []
        while True:
            received = kernel.recv(1 << 16)
            while received:
                length, kind, _, _, _ = HEADER.unpack_from(received)
                if kind == NLMSG_DONE:
                    return found
                if kind == NLMSG_ERROR:
                    code = -struct.unpack_from("=i", received, HEADER.size)[0]
                    raise OSError(code, "smc_diag")
                found.append(_socket(received[HEADER.size:length]))
                received = received[(length + 3) & ~3:]


def _socket(message):
    _family, _state, mode, _shutdown, ends, _uid, _inode = ANSWER.unpack_from(message)
    found = {"mode": MODES.get(mode, str(mode)), "reason": 0, "peer_reason": 0,
             "remote": (str(ipaddress.ip_address(ends[20:24])),
                        struct.unpack_from("!H", ends, 2)[0])}
    at = (ANSWER.size + 3) & ~3
    while at + 4 <= len(message):
        length, kind = struct.unpack_from("=HH", message, at)
        if kind == FALLBACK_ATTRIBUTE:
            found["reason"], found["peer_reason"] = struct.unpack_from("=II", message, at + 4)
        at += max(4, (length + 3) & ~3)
    return found


def trouble(address, port):
    """Why the connection to this address and port is not SMC-R; "" when it is."""
    try:
        mine = [found for found in sockets() if found["remote"] == (address, port)]
    except OSError as problem:
        return f"smc_diag: {problem.strerror}"
    if any(found["mode"] == "SMC-R" for found in mine):
        return ""
    if not mine:
        return "smc_diag knows nothing of the connection"
    return (f"the kernel carries the connection by {mine[0]['mode']}: "
            f"{_reason(mine[0]['reason'])}; the peer: {_reason(mine[0]['peer_reason'])}")


def _reason(code):
    return f"{REASONS.get(code, 'reason')} ({code:#010x})" if code else "no reason given"
