"""The ways to run a suite: plain, and preloaded with policies that promote early."""

from integration.acceptance import support

from . import runner

# connect() waits in vain where the same thread has still to accept(), which then waits for the end.
PASSES = {
    "first_byte": {"promote_after": "{ messages = 0 }", "wait": '"20ms"'},
    # Promoted whenever it comes to be, with calls under way; and rings that are often full.
    "midway": {"promote_after": "{ messages = 0 }", "ring": '"64KiB"'},
}


def run(suite, name, directory, tell=print):
    """An Outcome. `name` is "plain" or one of PASSES."""
    if name == "plain":
        return runner.run(suite, directory, tell=tell)
    host = support.Host(directory)
    policy = host.policy(name, ["1-65535"], subnet=["127.0.0.0/8", "::1/128"], **PASSES[name])
    return runner.run(suite, directory, host.preload(policy), host.ss, tell)
