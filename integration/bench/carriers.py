"""The carriers that a bench compares. Each says whether it can run between the ends of a Place,
and what has to be in the environment of a program at either end to be carried by it.

   tcp        nothing is preloaded
   rdma shm   Ringroad, with a policy of one rule for the other end's address and the ports;
              -polls and -sleeps are the same with a long `spin` and without
   rsockets   rdma-core's preload library: the host's, and -given is the one that --rsockets names
   smc        Linux's SMC-R: AF_SMC instead of AF_INET, by smc_run or by a library of our own
   unix       a Unix socket, for programs that can be told its path
   write send events   raw verbs, by perftest's own programs, which poll or wait for events
"""

import ipaddress

from integration.lib import template


class Carrier:
    """`name` is what the results call it; `ours` says that its failure is this project's."""

    name = title = ""
    ours = False
    # By which proof (see oltp and lib.rdma_counters) it is to be believed.
    by_device = False
    # Of Ringroad's: "rdma" or "shm".
    via = ""

    def obstacle(self, place):
        """Why it cannot run here, with the evidence; "" when it can."""
        raise NotImplementedError

    def trouble(self, place):
        """What goes wrong when it is tried with small programs; "" when nothing does."""
        return ""

    def environment(self, place, role, ports, **keys):
        """The variables for a program at the end `role` ("server" or "client"). `keys` are of a
        Ringroad rule, as lib.ringroad.write_policy takes them."""
        raise NotImplementedError


class Tcp(Carrier):
    name, title, ours = "tcp", "TCP", True

    def obstacle(self, place):
        return ""

    def environment(self, place, role, ports, **keys):
        return {}


class Unix(Tcp):
    name, title = "unix", "Unix socket"

    def obstacle(self, place):
        return "" if place.one_host else "the ends are on two hosts"


class Ringroad(Carrier):
    ours = True

    def __init__(self, via, waits="", **keys):
        self.via = via
        self.name = f"{via}-{waits}" if waits else via
        self.title = {"rdma": "Ringroad, RDMA", "shm": "Ringroad, shared memory"}[via] + (
            f", {waits}" if waits else "")
        self.by_device = via == "rdma"
        self._keys = keys

    def obstacle(self, place):
        for end in place.ends.values():
            library, problem = end.host.call("integration.bench.probe:ringroad_library", end.ringroad)
            if library is None:
                return f"{end.host.name}: {problem}"
        if self.via == "shm":
            return "" if place.one_host else "the ends are on two hosts: they share no memory"
        return _verbs_obstacle(place)

    def environment(self, place, role, ports, **keys):
        here, other = place.ends[role], place.ends["client" if role == "server" else "server"]
        shared, variables = place.rendezvous if self.via == "shm" else "", {}
        if shared:
            keys, variables = {**keys, "key_file": f"{shared}/key"}, {"RINGROAD_RENDEZVOUS_DIR": shared}
        policy = f"{here.host.work}/{self.name}-{role}-{'-'.join(map(str, ports))}.toml"
        here.host.call("integration.lib.ringroad:write_policy", policy, "bench",
                       [f"{other.address}/{ipaddress.ip_address(other.address).max_prefixlen}"],
                       list(ports), self.via, device=here.device if self.by_device else "",
                       **self._keys, **keys)
        library, _ = here.host.call("integration.bench.probe:ringroad_library", here.ringroad)
        return here.host.call("integration.lib.ringroad:environment", library, policy) | variables


class Rsockets(Carrier):
    name, title, by_device = "rsockets", "rsockets", True

    def obstacle(self, place):
        for end in place.ends.values():
            if not self._library(place, end):
                return f"{end.host.name}: {self._missing(place)}"
        return _verbs_obstacle(place)

    def trouble(self, place):
        return _echo_trouble(self, place)

    def environment(self, place, role, ports, **keys):
        return {"LD_PRELOAD": self._library(place, place.ends[role])}

    def _library(self, _place, end):
        return end.host.call("integration.bench.probe:rsockets_library")

    def _missing(self, _place):
        return "there is no librspreload.so; apt-get install --no-install-recommends librdmacm1"


class RsocketsGiven(Rsockets):
    name, title = "rsockets-given", "rsockets, given"

    def _library(self, place, end):
        return end.host.call("integration.bench.probe:rsockets_library", place.rsockets)

    def _missing(self, place):
        return f"--rsockets: there is no file {place.rsockets}"


class Smc(Carrier):
    name, title, by_device = "smc", "SMC-R", True

    def obstacle(self, place):
        for end in place.ends.values():
            why = end.host.call("integration.bench.probe:smc_obstacle")
            if why:
                return f"{end.host.name}: {why}"
            library, why = end.host.call("integration.bench.probe:smc_preload", end.host.work)
            if not library:
                return f"{end.host.name}: {why}"
        return _verbs_obstacle(place)

    def trouble(self, place):
        # Where it does not work it is TCP without a word, or its processes stay in the kernel.
        return _echo_trouble(self, place, lambda client, port: client.host.call(
            "integration.bench.smc_diag:trouble", place.server.address, port))

    def environment(self, place, role, ports, **keys):
        host = place.ends[role].host
        return {"LD_PRELOAD": host.call("integration.bench.probe:smc_preload", host.work)[0]}


class RawVerbs(Carrier):
    by_device = True

    def __init__(self, name, title):
        self.name, self.title = name, f"raw verbs, {title}"

    def obstacle(self, place):
        for end in place.ends.values():
            missing = end.host.call("integration.bench.probe:missing_programs", {"ib_write_lat": "perftest"})
            if missing:
                return f"{end.host.name}: apt-get install --no-install-recommends perftest"
        return _verbs_obstacle(place)


# Longer than any answer takes here.
POLLS, SLEEPS = {"spin": "100ms"}, {"spin": "0us"}
FIRST = (Tcp(), Ringroad("rdma"), Ringroad("shm"), Rsockets(), Smc())
NAMES = tuple(carrier.name for carrier in FIRST)
ALL = (*FIRST, *(Ringroad(via, waits, **keys) for via in ("rdma", "shm")
                 for waits, keys in (("polls", POLLS), ("sleeps", SLEEPS))),
       RsocketsGiven(), Unix(), RawVerbs("write", "ib_write"), RawVerbs("send", "ib_send"),
       RawVerbs("events", "ib_send -e"))


def of(name):
    return next(carrier for carrier in ALL if carrier.name == name)


def _verbs_obstacle(place):
    for end in place.ends.values():
        why = end.host.call("integration.bench.probe:verbs_obstacle", end.device)
        if why:
            return f"{end.host.name}: {why}"
    return ""


def _echo_trouble(carrier, place, look=lambda client, port: ""):
    """Why a small program cannot talk to another over this carrier here, or what `look` says of
    their connection; "" when all is well.

    This goes before a database: a carrier that leaves its processes in the kernel for ever leaves
    only these.
    """
    port = place.server.host.call(f"{template.__name__}:free_port")
    ends = {}
    try:
        for role in ("server", "client"):
            end = place.ends[role]
            ends[role] = end.host.make(
                "integration.bench.probe:EchoEnd", end.host.work, role, place.server.address, port,
                carrier.environment(place, role, [port]))
            why = ends[role].trouble()
            if why:
                other = f"; the server: {ends['server'].state()}" if role == "client" else ""
                return f"{role}: {why}{other}"
        return look(place.client, port)
    finally:
        for end in ends.values():
            end.forget()
