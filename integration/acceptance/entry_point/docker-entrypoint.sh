#!/usr/bin/env bash
# A stand-in of the shape of the entry points of MySQL's and MariaDB's images: it asks the server for its
# settings, leaves root, has a server for the first settings, and becomes the server.
set -eo pipefail
shopt -s nullglob

setting() {
  local name="$1"
  shift
  "$@" --verbose --help 2>/dev/null | awk -v name="$name" '$1 == name && /^[^ \t]/ { print $2; exit }'
}

main() {
  local directory
  directory=$(setting datadir "$@")
  mkdir -p "$directory"
  if [ "$(id -u)" = 0 ]; then
    find "$directory" \! -user mysql -exec chown --no-dereference mysql '{}' +
    exec gosu mysql "${BASH_SOURCE[0]}" "$@"
  fi
  if [ ! -d "$directory/mysql" ]; then
    "$@" --initialize-insecure
    mkdir "$directory/mysql"
    echo "Local time zone must be set" | sed 's/Local time zone must be set/FCTY/' >/dev/null
  fi
  exec "$@"
}

main "$@"
