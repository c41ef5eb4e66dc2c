"""Which suites are run, and what is known about them."""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).parent
# Those that have to do with sockets.
ASYNCIO = ("base_events buffered_proto events selector_events sendfile server sock_lowlevel ssl "
           "sslproto streams transports unix_events")
TORNADO = ("http1connection httpclient httpserver ioloop iostream netutil simple_httpclient "
           "tcpclient tcpserver web websocket")


@dataclass(frozen=True)
class Suite:
    name: str
    package: str          # Debian's
    names: tuple          # what unittest loads
    resources: tuple = ()  # of CPython's tests
    tcp_pairs: bool = False  # see one_by_one.py
    promoted: int = 1     # streams that must have been promoted in each pass

    @property
    def without(self):
        return left_out(self.name)

    def only(self, tests):
        """The same with these tests alone."""
        return replace(self, names=tuple(tests))


def cpython(name, names=None, **more):
    return Suite(f"test_{name}", f"libpython3.{sys.version_info.minor}-testsuite", names or (f"test.test_{name}",), **more)


SUITES = (
    cpython("socket"),
    cpython("select", promoted=0),  # of pipes and files alone
    cpython("selectors", tcp_pairs=True),
    cpython("asyncio", tuple(f"test.test_asyncio.test_{name}" for name in ASYNCIO.split())),
    cpython("ssl"),
    # Its "network" is 127.0.0.1.
    cpython("socketserver", resources=("network",)),
    cpython("httplib"),
    Suite("tornado", "python3-tornado",
          tuple(f"tornado.test.{name}_test" for name in TORNADO.split())),
    Suite("twisted", "python3-twisted", ("twisted.internet.test.test_tcp",
                                         "twisted.internet.test.test_tls",
                                         "twisted.test.test_tcp", "twisted.test.test_ssl",
                                         "twisted.test.test_internet", "twisted.test.test_amp",
                                         "twisted.test.test_ftp",
                                         "twisted.web.test.test_webclient")),
)


def _listed(file, suite):
    """The lines below `[suite]` of a file: {first word: the rest}."""
    found, section = {}, None
    for line in (HERE / file).read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#") and section == suite:
            word, _, rest = line.partition(" ")
            found[word] = rest.strip()
    return found


def left_out(suite):
    return _listed("left_out.txt", suite)


# The lists of failures are this release's: the words of its os-release(5).
RELEASE = "Debian GNU/Linux 12"


def fails(suite, preloaded):
    """What is known to fail: {id: fail, error, xpass or died}."""
    return _listed("fails_preloaded.txt" if preloaded else "fails_plain.txt", suite)


def differs(suite):
    """{id: why it may be another thing preloaded}."""
    return _listed("differs.txt", suite)
