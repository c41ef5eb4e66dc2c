"""Other people's test suites fail in the same tests preloaded as plain.

     suite ── plain ───────────── results ─┐
     suite ══ first_byte policy ══ results ─┼─ the same, and as fails_*.txt say
     suite ══ midway policy ══════ results ─┘   (left_out.txt: not run, differs.txt: may differ)

Two suites run at a time, since they mostly wait; never one twice, since they have fixed names. A
result that is another one than plain is looked at again by running its test alone, because these
suites hold many deadlines of their own: the difference counts if it shows once more in three runs.
A test that hangs or ends its process counts at once.
"""

import shutil
import sys
import tempfile
from concurrent import futures
from pathlib import Path

import pytest

from . import catalogue, passes

AGAIN = 3
LANES = (("test_socket", "test_select", "test_selectors", "test_ssl", "test_socketserver",
          "test_httplib"),
         ("test_asyncio", "tornado", "twisted"))
SUITES = {suite.name: suite for suite in catalogue.SUITES}


def installed(package):
    return Path(f"/var/lib/dpkg/info/{package}.list").exists() or any(
        Path("/var/lib/dpkg/info").glob(f"{package}:*.list"))


@pytest.fixture(name="tell")
def fixture_tell(capfd):
    def tell(text):
        with capfd.disabled():
            print(text, file=sys.stderr, flush=True)
    return tell


def one_run(suite, way):
    directory = Path(tempfile.mkdtemp(prefix="ringroad-suites."))
    try:
        return passes.run(suite, way, directory, lambda _: None)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Runs:
    """Every run that the chosen tests need, in LANES threads."""

    def __init__(self, needed):
        self._outcomes = {}
        self._lanes = [futures.ThreadPoolExecutor(1) for _ in LANES]
        for lane, names in zip(self._lanes, LANES):
            for suite in (SUITES[name] for name in names if installed(SUITES[name].package)):
                ways = [way for name, way in needed if name == suite.name]
                for way in {"plain": 0, **dict.fromkeys(ways, 0)} if ways else ():
                    self._outcomes[suite.name, way] = lane.submit(one_run, suite, way)

    def outcome(self, name, way, tell):
        future = self._outcomes[name, way]
        while not future.done():
            tell(f"  {name} {way}: {sum(f.done() for f in self._outcomes.values())} of "
                 f"{len(self._outcomes)} runs are over")
            futures.wait([future], 15)
        return future.result()

    def end(self):
        for lane in self._lanes:
            lane.shutdown(cancel_futures=True)


@pytest.fixture(name="runs", scope="module")
def fixture_runs(request):
    chosen = [item.callspec.params for item in request.session.items
              if item.module is request.module and hasattr(item, "callspec")]
    runs = Runs([(params["name"], params.get("way", "plain")) for params in chosen])
    yield runs
    runs.end()


def differences(was, now):
    """{id: (was, now)}; what only one of them ran counts as "missing" in the other."""
    return {test: (was.get(test, "missing"), now.get(test, "missing"))
            for test in {**was, **now} if was.get(test) != now.get(test)}


def settled(suite, way, found, last_words, tell):
    """Those of the differences that show again, or that nobody may repeat."""
    kept = {}
    for test, (was, now) in sorted(found.items()):
        if "missing" in (was, now) or "died" in (was, now):
            tell(f"  {test}: {was} expected, {now}; {last_words.get(test, '')}")
            kept[test] = (was, now)
            continue
        alone = suite.only([test.partition("#")[0]])
        runs = [one_run(alone, way) for _ in range(AGAIN)]
        again = [run.results.get(test.partition("#")[0], "missing") for run in runs]
        tell(f"  {test}: {was} expected, {now}; run again alone: {', '.join(again)}"
             + "".join(words for run in runs for words in run.last_words.values()))
        if any(result != was for result in again):
            kept[test] = (was, now)
    return kept


def lists_agree(name):
    """What fails_plain.txt and fails_preloaded.txt say differs only where differs.txt says why."""
    suite = SUITES[name]
    return differences(catalogue.fails(name, False), catalogue.fails(name, True)).keys() <= set(
        catalogue.differs(suite.name))


@pytest.mark.parametrize("name", SUITES)
def test_what_fails_plain_is_what_the_list_says(name, runs, tell):
    suite = SUITES[name]
    if not installed(suite.package):
        pytest.skip(f"not installed: {suite.package}")
    assert lists_agree(name)
    if catalogue.RELEASE not in Path("/etc/os-release").read_text(encoding="utf-8"):
        pytest.skip(f"the list is of {catalogue.RELEASE}")
    outcome = runs.outcome(name, "plain", tell)
    known = catalogue.fails(name, False)
    expected = {test: known.get(test, "ok") for test in {**outcome.failing(), **known}}
    found = differences(expected, {test: outcome.results.get(test) for test in expected})
    tell(f"  {name} plain: {len(outcome.results)} tests, {len(outcome.failing())} fail, "
         f"{sum(outcome.seconds.values()):.0f} s")
    assert len(outcome.results) > 5
    assert settled(suite, "plain", found, outcome.last_words, tell) == {}


@pytest.mark.parametrize("way", passes.PASSES)
@pytest.mark.parametrize("name", SUITES)
def test_what_fails_preloaded_is_what_fails_plain(name, way, runs, tell):
    suite = SUITES[name]
    if not installed(suite.package):
        pytest.skip(f"not installed: {suite.package}")
    plain = runs.outcome(name, "plain", tell)
    outcome = runs.outcome(name, way, tell)
    tell(f"  {name} {way}: {len(outcome.results)} tests, {len(outcome.failing())} fail, "
         f"{outcome.promoted} of {outcome.opened} streams promoted, "
         f"{sum(outcome.seconds.values()):.0f} s")
    may = catalogue.differs(name)
    found = {test: pair for test, pair in differences(plain.results, outcome.results).items()
             if test not in may}
    assert settled(suite, way, found, outcome.last_words, tell) == {}
    # In those, as the list has it or, where timing decides, as plain.
    for test in may:
        assert outcome.results[test] in (plain.results[test],
                                         catalogue.fails(name, True).get(test)), test
    assert outcome.promoted >= suite.promoted, "a suite without a promoted stream proves nothing"
