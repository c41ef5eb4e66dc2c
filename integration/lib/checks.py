"""Are two servers' tables the same?"""

from . import mariadb


def checksums(server):
    """CHECKSUM TABLE of every sysbench table: {table: checksum}."""
    rows = server.query(f"SELECT table_name FROM information_schema.tables "
                        f"WHERE table_schema = '{mariadb.DATABASE}' ORDER BY table_name")
    tables = ", ".join(f"{mariadb.DATABASE}.{row[0]}" for row in rows)
    return {name.partition(".")[2]: int(checksum)
            for name, checksum in server.query(f"CHECKSUM TABLE {tables}")}
