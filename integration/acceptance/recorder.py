"""A TCP proxy that keeps every byte of both directions.

        client ──▶ recorder (asked, one entry a connection) ──▶ server
               ◀── (answered)                               ◀──
"""

import socket
import threading


class Recorder:
    """Listens on loopback; a context. It runs in threads of the test, which is never preloaded."""

    def __init__(self, address, port):
        self._to = (address, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.asked, self.answered = [], []
        self._threads = []

    def __enter__(self):
        self._start(self._accept)
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def settle(self, timeout_s):
        """Waits until every connection seen so far has ended in both directions."""
        for thread in self._threads[1:]:
            thread.join(timeout_s)
            assert not thread.is_alive(), "a recorded connection did not end"

    def _start(self, work, *arguments):
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self):
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.create_connection(self._to)
            for record, source, sink in ((self.asked, near, far), (self.answered, far, near)):
                record.append(bytearray())
                self._start(self._carry, record[-1], source, sink)

    @staticmethod
    def _carry(record, source, sink):
        try:
            while part := source.recv(65536):
                record += part
                sink.sendall(part)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # either end has reset it; the record shows how far it came
