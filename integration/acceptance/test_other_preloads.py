"""Beside other libraries that a program is preloaded with, in both orders, and in sanitizers' programs.

     LD_PRELOAD=other:libringroad.so      LD_PRELOAD=libringroad.so:other      /etc/ld.so.preload and LD_PRELOAD
"""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from . import support
from .test_programs import check_promoted, fixture_eager, fixture_host, needs, \
    output  # pylint: disable=unused-import
from .test_redis import ask, load, redis

LIBRARIES = Path("/usr/lib")
HERE = f"{os.uname().machine}-linux-gnu"
# Each takes over calls that the library knows or makes: pattern, and variables that it needs.
OTHERS = {
    "jemalloc": (f"{HERE}/libjemalloc.so.?", {}),
    "tcmalloc": (f"{HERE}/libtcmalloc_minimal.so.?", {}),
    "mimalloc": (f"{HERE}/libmimalloc.so.?", {}),
    "eatmydata": (f"{HERE}/libeatmydata.so.?", {}),
    "heaptrack": ("heaptrack/libheaptrack_preload.so", {"DUMP_HEAPTRACK_OUTPUT": "/dev/null"}),
}
# It has its own poll(), select() and epoll_wait(), for time-outs in another time. Debian's Redis hangs under
# it, without Ringroad as well.
FAKETIME = f"{HERE}/faketime/libfaketimeMT.so.?"
ROUNDS = 2000


def installed(pattern):
    found = sorted(LIBRARIES.glob(pattern))
    assert found, f"{LIBRARIES / pattern} is not installed: make deps"
    return found[0]


def beside(environment, other, is_first, variables):
    ours = environment["LD_PRELOAD"]
    both = f"{other}:{ours}" if is_first else f"{ours}:{other}"
    return {**environment, **variables, "LD_PRELOAD": both}


def pipelines(host, name, environment):
    """What eight clients are told, and what a server of Redis has then."""
    port = support.free_port()
    with redis(host, name, port, environment) as child:
        result = load(port, environment), ask(port, "debug", "digest")
        if environment:
            check_promoted(host, child.pid, 1_000_000)
        return result


def symbols(path, kind):
    """The names that a program or a library asks for (`kind` is undefined-only) or gives (defined-only)."""
    listed = output(["nm", "--dynamic", f"--{kind}", "--format=just-symbols", path]).decode()
    return {name.partition("@")[0] for name in listed.split()}


def is_asked_for_the_size_of_others_memory(other):
    """Whether Redis takes memory from the jemalloc that it is linked with, and asks `other` for its size.

    It then reads and crashes by chance, without Ringroad as well. Debian 13's Redis does so: it calls mallocx().
    """
    asks, gives = symbols(shutil.which("redis-server"), "undefined-only"), symbols(other, "defined-only")
    return "mallocx" in asks - gives and "malloc_usable_size" in asks & gives


@pytest.fixture(name="expected", scope="module")
def fixture_expected(tmp_path_factory):
    return pipelines(support.Host(tmp_path_factory.mktemp("plain")), "plain", None)


@needs("redis-server", "redis-cli", "gcc", "nm")
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("name", OTHERS)
def test_streams_are_on_channels_beside(host, eager, expected, name, is_first):
    pattern, variables = OTHERS[name]
    there = beside(eager, installed(pattern), is_first, variables)
    if is_asked_for_the_size_of_others_memory(installed(pattern)):
        program = build(host)
        assert reports(host, [program, ROUNDS], there) == output([program, ROUNDS])
    else:
        assert pipelines(host, name, there) == expected


def build(host, *flags):
    program = host.directory / "two_ends"
    subprocess.run(["gcc", "-g", "-O1", "-pthread", *flags, "-o", program,
                    Path(__file__).parent / "two_ends.c"], check=True)
    return program


def reports(host, words, environment):
    """What a program says, which has had both ends of a stream on a channel."""
    log = host.directory / "log"
    said = output(words, {**environment, "RINGROAD_LOG": str(log), "RINGROAD_LOG_LEVEL": "info"})
    assert log.read_text().count("goes over its channel") == 2, log.read_text()
    return said


@needs("gcc")
@pytest.mark.parametrize("is_first", [True, False], ids=["first", "last"])
def test_streams_are_on_channels_in_another_time(host, eager, is_first):
    program = build(host)
    expected = output([program, ROUNDS])
    there = beside(eager, installed(FAKETIME), is_first, {"FAKETIME": "-10d"})
    assert reports(host, [program, ROUNDS], there) == expected


@needs("gcc", "unshare")
@pytest.mark.parametrize("ours", [True, False], ids=["ours", "another"])
def test_one_of_them_is_in_etc_ld_so_preload(host, eager, ours):
    """As injectors of telemetry have it: the loader takes those of LD_PRELOAD first."""
    names = [str(installed(OTHERS["jemalloc"][0])), eager["LD_PRELOAD"]]
    program = build(host)
    above = host.directory / "etc"
    above.mkdir()
    (above / "ld.so.preload").write_text(names[ours] + "\n")
    outside = {name: value for name, value in eager.items() if name != "LD_PRELOAD"}
    mount = 'mount -t overlay overlay -o "lowerdir=$0:/etc" /etc && exec "$@"'
    said = reports(host, ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, above, "env",
                          f"LD_PRELOAD={names[not ours]}", program, ROUNDS], outside)
    assert said == output([program, ROUNDS])


@needs("gcc")
@pytest.mark.parametrize("kind", ["address", "thread", "undefined"])
def test_a_program_of_a_sanitizer_finds_nothing(host, eager, kind):
    """The runtime of ASan has to be the first: it is in the program, so that it is."""
    program = build(host, f"-fsanitize={kind}", "-static-libasan" if kind == "address" else "-g")
    expected = output([program, ROUNDS])
    assert reports(host, [program, ROUNDS], eager) == expected
