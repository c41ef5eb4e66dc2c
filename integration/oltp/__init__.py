"""The OLTP comparison: sysbench against MariaDB over TCP and over a Ringroad channel."""
