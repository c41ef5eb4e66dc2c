"""`ringroad bench oltp`: MariaDB under sysbench, by each carrier."""
