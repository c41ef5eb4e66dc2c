"""PostgreSQL's streaming replication: a standby that commits wait for, that loses its stream, and takes over.

     pgbench ══ primary ═══ standby      a child of the one sends the log to a child of the other
"""

from contextlib import ExitStack

from integration.acceptance import support
from integration.acceptance.test_forking_programs import PostgreSql, fixture_host, fixture_preload, \
    needs_postgresql  # pylint: disable=unused-import

pytestmark = needs_postgresql
TABLES = ("pgbench_accounts", "pgbench_branches", "pgbench_tellers", "pgbench_history")


def sums(database):
    return database.ask("; ".join(f"select count(*), sum(hashtextextended(t::text, 0)) from {name} t"
                                  for name in TABLES))


def load(database, preload):
    text = database.client("pgbench", "-n", "-c", 4, "-j", 2, "-T", 1, "postgres",
                           preload=preload).decode()
    assert "number of failed transactions: 0 " in text, text


def is_promoted(host, database, view, condition="true"):
    """Whether the one process that `view` has is on a channel."""
    pids = database.ask(f"select pid from {view} where {condition}").split()
    return len(pids) == 1 and len(host.on_channel(int(pids[0]))) == 1


def test_a_standby_has_what_was_committed_and_takes_over(host, preload):
    with ExitStack() as outlives:
        primary = PostgreSql(host)
        with primary.running(preload):
            primary.client("pgbench", "-i", "-q", "-s", "1", "postgres")
            # The standby's settings are a copy.
            primary.ask("alter system set wal_retrieve_retry_interval = '100ms'")
            standby = PostgreSql(host, copy_of=primary)
            outlives.enter_context(standby.running(preload))
            primary.ask("alter system set synchronous_standby_names = '*'")
            primary.ask("alter system set synchronous_commit = 'remote_apply'")
            primary.ask("select pg_reload_conf()")
            for again in (False, True):
                if again:
                    primary.ask("select pg_terminate_backend(pid) from pg_stat_replication")
                load(primary, preload)
                support.wait_for(lambda: is_promoted(host, primary, "pg_stat_replication",
                                                     "sync_state = 'sync'"), "the sender's channel")
                support.wait_for(lambda: is_promoted(host, standby, "pg_stat_wal_receiver"),
                                 "the receiver's channel")
                load(primary, preload)
                # A commit has waited until the standby had it.
                committed = sums(primary)
                assert committed.count(b"\n") == len(TABLES)
                assert sums(standby) == committed
        # The primary has ended.
        assert standby.ask("select pg_promote()") == b"t\n"
        assert sums(standby) == committed
        load(standby, preload)
        assert sums(standby) != committed
