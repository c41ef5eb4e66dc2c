"""Which library carries rsockets, and what a host without it says."""

from types import SimpleNamespace

import pytest

from integration.bench import carriers, hosts, probe

GIVEN = carriers.of("rsockets-given")


class Here:
    """A host whose functions are called here; its RDMA device is another test's."""

    name = "here"

    def call(self, function, *words):
        name = function.partition(":")[2]
        return "" if name == "verbs_obstacle" else getattr(probe, name)(*words)


def place(library):
    end = hosts.End(Here(), "10.9.1.1", "ringroad")
    return SimpleNamespace(ends={"server": end, "client": end}, rsockets=str(library))


@pytest.fixture(name="library")
def fixture_library(tmp_path, monkeypatch):
    monkeypatch.setattr(probe.glob, "glob", lambda _: ["/the/host's/librspreload.so"])
    library = tmp_path / "librspreload.so"
    library.touch()
    return library


@pytest.mark.parametrize("role", ["server", "client"])
def test_the_library_that_is_given_is_preloaded_beside_the_hosts_own(library, role):
    where = place(library)
    assert carriers.of("rsockets").environment(where, role, [1]) == {"LD_PRELOAD": "/the/host's/librspreload.so"}
    assert GIVEN.environment(where, role, [1]) == {"LD_PRELOAD": str(library)}
    assert GIVEN.obstacle(where) == ""


def test_a_library_that_a_host_does_not_have_is_named(library):
    library.unlink()
    assert GIVEN.obstacle(place(library)) == f"here: --rsockets: there is no file {library}"
