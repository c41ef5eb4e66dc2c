"""How long a commit takes where MySQL's Group Replication is on TCP and where on a channel, in turns.

   sysbench ── primary ═══ second, third        the client's connections stay on TCP

Three members on this host, over shared memory, in the root `sid` (integration/lib/roots.py).

Prints what `ringroad ab` says of the three members for each number of threads. After each, all members
catch up and their tables are compared; the exit status is 1 if they differ, or if something could not be
measured.
"""

import sys

from integration.acceptance import support
from integration.acceptance.test_sysbench import load_for
from integration.lib import mysql, processes, roots
from integration.releases.test_mysql_group import Group
from integration.systems import commit_latency

# Else the load has a quota once the others are 25000 transactions behind, and that would be measured.
FREELY = "--loose-group-replication-flow-control-mode=DISABLED"


def main():
    options = commit_latency.parser(__doc__).parse_args()
    processes.end_on_signals()
    roots.ensure(mysql.ROOT)
    with processes.WorkDirectory("ringroad-group") as work, \
            Group(work / "group", mysql.prepare(work), everything=False, options=[FREELY]) as group:
        primary = group.primary(group.members[0])
        load_for(primary).prepare()
        support.wait_for(lambda: group.is_on_channels(group.members),
                         "the group's streams to be on channels", support.ANSWER_S)
        measured = []
        for threads in options.threads:
            measured.append(commit_latency.alternate(group.host, primary, group.members, threads, options))
            sums = group.agree(group.members)
    commit_latency.tell(sums)
    return 0 if all(measured) else 1


if __name__ == "__main__":
    sys.exit(main())
