"""What the kernel's answer about an SMC socket means."""

import struct

import pytest

from integration.bench import smc_diag


def answer(mode, reason, peer_reason, port=3306):
    """As the kernel writes it of a connection to 10.9.1.1."""
    ends = struct.pack("!HH16s16s", 40000, port, bytes([10, 9, 0, 1]), bytes([10, 9, 1, 1]))
    conninfo = struct.pack("=HH8x", 12, 1)
    fallback = struct.pack("=HHII", 12, smc_diag.FALLBACK_ATTRIBUTE, reason, peer_reason)
    return smc_diag.ANSWER.pack(smc_diag.AF_SMC, 1, mode, 0, ends.ljust(48, b"\0"), 0, 1) + conninfo \
        + fallback


@pytest.mark.parametrize("messages, said", [
    ([answer(0, 0, 0)], ""),
    ([answer(1, 0x03030000, 0)], "by TCP: no SMC device for this route (0x03030000); the peer: no reason"),
    ([answer(1, 0x05000000, 0x77)], "the peer declined (0x05000000); the peer: reason (0x00000077)"),
    ([answer(0, 0, 0, port=3307)], "knows nothing of the connection"),
    ([], "knows nothing of the connection")])
def test_a_connection_that_fell_back_says_why(monkeypatch, messages, said):
    monkeypatch.setattr(smc_diag, "sockets", lambda: [smc_diag._socket(each) for each in messages])
    why = smc_diag.trouble("10.9.1.1", 3306)
    assert said in why and bool(said) == bool(why)
