#!/usr/bin/python3
"""Writes to a GlusterFS volume through libgfapi, reads it back, and says the digests:
gluster_client.py HOST VOLUME FILES BYTES. Then it waits for the end of its input."""

import ctypes
import hashlib
import json
import os
import sys

GFAPI = ctypes.CDLL("libgfapi.so.0", use_errno=True)
GFAPI.glfs_new.restype = GFAPI.glfs_creat.restype = GFAPI.glfs_open.restype = ctypes.c_void_p
GFAPI.glfs_write.restype = GFAPI.glfs_read.restype = ctypes.c_ssize_t
GFAPI.glfs_write.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int]
GFAPI.glfs_read.argtypes = GFAPI.glfs_write.argtypes
GFAPI.glfs_creat.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint]
GFAPI.glfs_open.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int]
GFAPI.glfs_set_volfile_server.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p,
                                          ctypes.c_int]
for call in ("glfs_close", "glfs_fini", "glfs_init"):
    getattr(GFAPI, call).argtypes = [ctypes.c_void_p]
PORT = 24007
CHUNK = 128 * 1024


def checked(result, what):
    if result is None or result == -1:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def body(number, size):
    block = hashlib.sha256(str(number).encode()).digest()
    return (block * (size // len(block) + 1))[:size]


def main(host, volume, files, size):
    place = checked(GFAPI.glfs_new(volume.encode()), "glfs_new")
    checked(GFAPI.glfs_set_volfile_server(place, b"tcp", host.encode(), PORT), "volfile server")
    checked(GFAPI.glfs_init(place), "glfs_init")
    for number in range(files):
        name, data = f"file{number}".encode(), body(number, size + number)
        opened = checked(GFAPI.glfs_creat(place, name, os.O_RDWR, 0o644), "creat")
        for start in range(0, len(data), CHUNK):
            part = data[start:start + CHUNK]
            assert checked(GFAPI.glfs_write(opened, part, len(part), 0), "write") == len(part)
        checked(GFAPI.glfs_close(opened), "close")
    said = {}
    buffer = ctypes.create_string_buffer(CHUNK)
    for number in range(files):
        opened = checked(GFAPI.glfs_open(place, f"file{number}".encode(), os.O_RDONLY), "open")
        read = hashlib.sha256()
        while (count := checked(GFAPI.glfs_read(opened, buffer, CHUNK, 0), "read")) > 0:
            read.update(buffer.raw[:count])
        checked(GFAPI.glfs_close(opened), "close")
        assert read.hexdigest() == hashlib.sha256(body(number, size + number)).hexdigest(), number
        said[f"file{number}"] = read.hexdigest()
    print(json.dumps(said), flush=True)
    sys.stdin.read()
    GFAPI.glfs_fini(place)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
