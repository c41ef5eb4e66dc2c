"""What a bench has on each host: a process that makes objects there and calls their methods.

It is started by hosts.Host, with this project's Python packages sent to it, and speaks JSON lines:

    {"make": "integration.lib.mariadb:MariaDb", "words": {...}}          -> {"object": 3}
    {"object": 3, "call": "status", "words": [...], ...}     -> {"value": ...}
    {"function": "integration.lib.rdma_counters:read", "words": [...]}   -> {"value": ...}

When its input ends (the bench is over, has been killed, or its host is out of reach) it lets go of
the objects, newest first, by their `close` or `stop`: nothing is left running.
"""

import importlib
import json
import os
import shutil
import sys
import traceback

from integration.lib import processes

CLOSERS = ("close", "stop")
_work = [None]


def work():
    """The agent's own folder, in memory; it goes with the agent."""
    return str(_work[0])


class Agent:
    def __init__(self):
        self._objects = {}
        self._made = 0

    def answer(self, request):
        if "make" in request:
            self._made += 1
            # Known before it is complete, so that what it has begun is ended.
            self._objects[self._made] = self._named(request["make"])(
                *request.get("words", ()), **request.get("named", {}))
            return {"object": self._made}
        if "function" in request:
            function = self._named(request["function"])
        elif request["call"] == "forget":
            self._let_go(self._objects.pop(request["object"]))
            return {"value": None}
        else:
            function = getattr(self._objects[request["object"]], request["call"])
        if not callable(function):
            return {"value": function}
        return {"value": function(*request.get("words", ()), **request.get("named", {}))}

    def _named(self, path):
        module, _, name = path.partition(":")
        return getattr(importlib.import_module(module), name)

    @staticmethod
    def _let_go(thing):
        for name in CLOSERS:
            if hasattr(thing, name):
                getattr(thing, name)()
                return

    def end(self):
        for thing in reversed(self._objects.values()):
            try:
                self._let_go(thing)
            except Exception:  # pylint: disable=broad-except
                traceback.print_exc()  # the others are to be let go all the same


def main(directory):
    """Serves until the input ends. The packages were unpacked in `directory`."""
    _work[0] = directory
    processes.end_on_signals()
    agent = Agent()
    # A function that prints here would spoil an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    try:
        for line in sys.stdin:
            try:
                answer = agent.answer(json.loads(line))
            except Exception as problem:  # pylint: disable=broad-except
                answer = {"problem": str(problem), "kind": type(problem).__name__,
                          "trace": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
    except BrokenPipeError:
        pass
    finally:
        agent.end()
        shutil.rmtree(directory, ignore_errors=True)
