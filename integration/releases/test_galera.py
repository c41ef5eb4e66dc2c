"""MariaDB 11.8 with Galera 26.4 of sid: the cluster heals under load, with the build of this machine."""

import pytest

from integration.acceptance import support
from integration.acceptance.test_galera import ADDRESSES, fixture_host, heals  # pylint: disable=unused-import
from integration.lib import galera, mariadb, processes, roots, servers, template

pytestmark = pytest.mark.releases
RELEASE = "sid-mariadb"
# MariaDB refuses to write what another has written since (error 1020), which the load does not expect, unless told so.
REPEATABLE = ("--innodb-snapshot-isolation=OFF",)


def prepared_data(host, place):
    """The tables that the load writes to, as this MariaDB keeps them."""
    servers.Product("mariadbd", "MariaDB").install(host.directory / "empty", place)
    with mariadb.MariaDb("template", host.directory / "empty", host.directory, "127.0.0.1",
                         support.free_port(), native_aio=False, place=place,
                         start_timeout_s=processes.patient(mariadb.START_TIMEOUT_S)) as server:
        template.fill(server, support.TABLES, support.TABLE_SIZE)
    return server.data


def test_a_cluster_forms_runs_and_heals_with_its_replication_promoted(root, host, tmp_path):
    root(RELEASE)
    place = roots.Place(RELEASE, (host.directory, support.BUILD))
    preload = host.preload(host.policy("galera", [galera.GROUP_PORT, galera.IST_PORT],
                                       promote_after="{ messages = 2 }"))
    with galera.Cluster(prepared_data(host, place), host.directory / "nodes", ADDRESSES,
                        support.free_port(ADDRESSES[0]), preload, options=REPEATABLE, place=place) as cluster:
        heals(host, cluster, tmp_path)
