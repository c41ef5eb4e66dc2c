#!/bin/bash
# A stand-in of the shape of the entry point of Percona XtraDB Cluster's image, which is nobody's root.
set -eo pipefail
directory=$("$@" --verbose --help --wsrep-provider=none 2>/dev/null | awk '$1 == "datadir" { print $2; exit }')
"$@" --version >"$directory/version_info"
exec "$@" --wsrep_start_position=
