"""The ends of `ringroad bench oltp`, each made by the agent of its host: a MariaDB or MySQL
server with its account, and sysbench."""

import os
import signal

from integration.bench import phase, probe
from integration.lib import ringroad, servers, sysbench, template


def facts(role, address):
    """What the figures depend on at one end, as words; `address` is the other's."""
    return {**probe.facts(role, address),
            **({"sysbench": sysbench.version()} if role == "client" else {})}


class Server(phase.ServerEnd):
    """A server on a copy of `prepared`, that is stopped while others are measured.

    `patient`: it is asked to end and waited for, else killed.
    """

    def __init__(self, name, prepared, work, address, port, preload, options, command, patient,
                 start_timeout_s, program):
        # Its data is in memory, where there is no native asynchronous I/O everywhere.
        super().__init__(
            servers.of(program).server(name, prepared, work, address, port, preload,
                                       native_aio=False, options=options,
                                       start_timeout_s=start_timeout_s),
            ringroad.Ringroad(command=command) if command else None)
        self._patient = patient

    def start(self):
        self.server.start()

    def socket(self):
        """The path of its Unix socket."""
        return str(self.server.socket)

    def pause(self):
        os.kill(self.server.pid, signal.SIGSTOP)

    def resume(self):
        os.kill(self.server.pid, signal.SIGCONT)

    def evidence(self):
        """What became of it: how it ended or where it hangs, and its last words."""
        return self.server.doing()

    def close(self):
        if self._patient:
            self.resume()
            self.server.stop()
        else:
            self.server.abandon()
        self.server.remove()


def client(address, port, socket, tables, table_size, work, command, own_devices):
    """sysbench's end for a server at `address`, or at its Unix socket if that is not ""."""
    return phase.ClientEnd(sysbench.Load(address, port, tables, table_size, socket), work,
                           ringroad.Ringroad(command=command) if command else None, own_devices)


def prepare(directory, tables, table_size, program):
    """The data directory that servers are started on copies of, made unless it is there."""
    return str(template.make(directory, tables, table_size, program))
