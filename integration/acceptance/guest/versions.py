"""The release before this one and this one over RDMA, run inside the virtual machine by boots.py.

   the client's version ── 10.9.0.1 rxe0 ═══ veth ═══ rxe1 10.9.1.1 ── the server's version
"""

import pytest

from .one_host import ADDRESS, NETWORK

from integration.versions.test_versions import PAIRS, Pair, fixture_builds, fixture_host  # noqa: F401

COUNT = 4


def pair_over_rdma(host, builds, listener, connector):
    return Pair(host, builds, listener, connector, ADDRESS, COUNT, via="rdma", subnet=NETWORK)


@pytest.mark.parametrize("listener, connector", PAIRS)
def test_the_versions_share_queue_pairs_and_an_operator_moves_both(host, builds, listener, connector):
    with pair_over_rdma(host, builds, listener, connector) as pair:
        pair.are_moved_by_either_command()


@pytest.mark.parametrize("listener, connector", PAIRS)
def test_streams_of_two_versions_lose_nothing_over_rdma(host, builds, listener, connector):
    with pair_over_rdma(host, builds, listener, connector) as pair:
        pair.lose_nothing_at_forks()
        pair.lose_nothing_that_came_before_the_switch()
