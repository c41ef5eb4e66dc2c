"""The Grafana dashboard in docs/grafana asks for what the exporter tells, and gets an answer.

     asker ══ 127.0.0.1 ══ echo server        preloaded, talking all the time
            exporter ◀── prometheus ◀── this test, with each panel's expression

There is no Grafana here: what it would ask Prometheus is asked, and what it would draw is not seen.
"""

import itertools
import json
import re
import shutil
import subprocess
import time
import urllib.parse
import urllib.request

import pytest

from . import support
from .test_exporter import exporter, once, prometheus
from .test_live_switch import Pair, set_mode

DASHBOARD = json.loads((support.ROOT / "docs" / "grafana" / "ringroad.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [(panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]]
# Of Grafana's units (packages/grafana-data, valueFormats/categories.ts) those that are used.
UNITS = {"none", "percentunit", "Bps", "bytes", "ops", "s"}
SCRAPE_S = 1
RATE_S = 4 * SCRAPE_S  # as Grafana has it: four times the interval
needs_prometheus = pytest.mark.skipif(shutil.which("prometheus") is None,
                                      reason="not installed: prometheus")


def names_in(expression):
    return set(re.findall(r"\bringroad_\w+", expression))


def test_every_panel_says_what_it_shows_and_in_which_unit():
    assert len(PANELS) > 15
    for panel in PANELS:
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"] == panel["datasource"] for target in panel["targets"])
        references = [target["refId"] for target in panel["targets"]]
        assert references and len(set(references)) == len(references)
    identities = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identities)) == len(identities)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


def test_panels_lie_within_the_page_and_not_upon_each_other():
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in itertools.combinations(places, 2):
        assert (one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
                or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]), (one, other)


def test_rates_are_of_counters_and_bytes_a_second_are_rates(tmp_path):
    types = {family.name: family.type for family in
             prometheus.text_string_to_metric_families(once(support.Host(tmp_path)))}
    for title, expression in EXPRESSIONS:
        for name in re.findall(r"(?:rate|increase)\((\w+)", expression):
            assert types[re.sub("_(total|bucket)$", "", name)] in ("counter", "histogram"), title
    for panel in PANELS:
        if panel["fieldConfig"]["defaults"]["unit"] in ("Bps", "ops"):
            assert all("rate(" in target["expr"] for target in panel["targets"]), panel["title"]


def test_it_shows_every_metric_and_no_other(tmp_path):
    exported = {line.split()[2] for line in once(support.Host(tmp_path)).splitlines()
                if line.startswith("# TYPE ")}
    asked = set().union(*(names_in(expression) for _, expression in EXPRESSIONS))
    # A histogram is asked for by the names of its parts.
    asked = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in exported else name
             for name in asked}
    assert asked == exported
    variables = [json.dumps(variable) for variable in DASHBOARD["templating"]["list"]]
    assert names_in(" ".join(variables)) <= exported


def test_the_reference_explains_every_metric(tmp_path):
    page = (support.ROOT / "docs" / "reference.md").read_text()
    section = page.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    table = "".join(line for line in section.splitlines() if line.startswith("| `ringroad_"))
    exported = {line.split()[2] for line in once(support.Host(tmp_path)).splitlines()
                if line.startswith("# TYPE ")}
    assert set(re.findall(r"`(ringroad_\w+)`", table)) == exported


class Prometheus:
    """A server of its own that scrapes one exporter."""

    def __init__(self, directory, target):
        self.port = support.free_port()
        config = directory / "prometheus.yml"
        config.write_text(f"global: {{scrape_interval: {SCRAPE_S}s}}\n"
                          "scrape_configs:\n- job_name: ringroad\n"
                          f"  static_configs: [{{targets: ['127.0.0.1:{target}']}}]\n")
        self.log = open(directory / "prometheus.log", "w", encoding="utf-8")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={directory}/tsdb",
             f"--web.listen-address=127.0.0.1:{self.port}"], stdout=self.log, stderr=self.log)

    def get(self, path, **words):
        query = urllib.parse.urlencode(words)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}?{query}",
                                    timeout=support.ANSWER_S) as answer:
            return json.load(answer)["data"]

    def query(self, expression):
        return self.get("/api/v1/query", query=expression)["result"]

    def is_up(self):
        try:
            return [sample["value"][1] for sample in self.query("up")] == ["1"]
        except OSError:
            return False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.log.close()


@needs_prometheus
def test_prometheus_answers_every_panel(tmp_path):
    host = support.Host(tmp_path)
    preload = host.preload(host.policy("shown", ["1-65535"], promote_after="{ messages = 2 }"))
    with Pair(preload, 2, host=host) as pair, exporter(host) as server, \
            Prometheus(tmp_path, server.port) as database:
        # One stream on TCP, and a mode that is not the usual one.
        set_mode(host, pair.askers[0].pid, "tcp")
        support.wait_for(database.is_up, "prometheus has scraped the exporter", 60)
        left = dict(numbered_expressions())
        deadline = time.monotonic() + support.ANSWER_S
        while left and time.monotonic() < deadline:
            for asker in pair.askers:
                pair.say(asker, 20)
            for key in [key for key, expression in left.items()
                        if is_number(database.query(expression))]:
                del left[key]
        assert not left
        metadata = database.get("/api/v1/targets/metadata", match_target='{job="ringroad"}')
        assert all(entry["type"] != "unknown" and entry["help"] for entry in metadata)
        shares = {title: float(database.query(replaced(expression))[0]["value"][1])
                  for title, expression in EXPRESSIONS
                  if title in ("Streams on a channel", "Bytes on a channel")}
        assert all(0 < share < 1 for share in shares.values()), shares


def replaced(expression):
    return (expression.replace("$__rate_interval", f"{RATE_S}s").replace("$instance", ".+")
            .replace("$program", ".+"))


def numbered_expressions():
    for number, (title, expression) in enumerate(EXPRESSIONS):
        assert "$" not in replaced(expression), title
        yield f"{number} {title}", replaced(expression)


def is_number(result):
    """Whether there are samples, and none of them is the result of dividing by nothing."""
    return bool(result) and all(sample["value"][1] not in ("NaN", "+Inf") for sample in result)
