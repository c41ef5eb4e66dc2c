"""The manifests in packaging/kubernetes fit together, and say what their readers are told."""

import re
import subprocess

import pytest

from . import manifests, support

VERSION = (support.ROOT / "VERSION").read_text().strip()
ROCE = ("UDP", 4791)


@pytest.fixture(name="resources", params=manifests.APPLICATIONS)
def fixture_resources(request):
    return manifests.resources(request.param)


def labels_of(resources):
    return resources["StatefulSet"]["spec"]["template"]["metadata"]["labels"]


def containers(resources):
    pod = manifests.pod_of(resources["StatefulSet"])
    return [*pod["initContainers"], *pod["containers"]]


@pytest.mark.parametrize("application", manifests.APPLICATIONS)
def test_kustomize_applies_every_file_of_the_folder(application):
    folder = manifests.FOLDER / application
    names = {path.name for path in folder.iterdir()} - {"kustomization.yaml"}
    assert names == set(manifests.read(folder / "kustomization.yaml")["resources"])


def test_every_mount_has_a_volume_and_every_volume_a_mount(resources):
    claims = resources["StatefulSet"]["spec"]["volumeClaimTemplates"]
    volumes = [volume["name"] for volume in manifests.pod_of(resources["StatefulSet"])["volumes"]]
    volumes += [claim["metadata"]["name"] for claim in claims]
    mounted = {mount["name"] for container in containers(resources) for mount in container["volumeMounts"]}
    assert len(volumes) == len(set(volumes)) and set(volumes) == mounted
    [policy] = [volume["configMap"]["name"] for volume in manifests.pod_of(resources["StatefulSet"])["volumes"]
                if "configMap" in volume]
    assert policy == resources["ConfigMap"]["metadata"]["name"]


def test_the_selectors_find_the_pods_and_names_lead_to_them_without_translation(resources):
    spec = resources["StatefulSet"]["spec"]
    assert spec["serviceName"] == resources["Service"]["metadata"]["name"]
    assert resources["Service"]["spec"]["clusterIP"] == "None"
    for selector in (spec["selector"]["matchLabels"], resources["Service"]["spec"]["selector"],
                     resources["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels_of(resources).items()


def test_the_network_policy_opens_the_ports_of_the_containers_and_rdma(resources):
    opened = {(port["protocol"], port["port"]) for rule in resources["NetworkPolicy"]["spec"]["ingress"]
              for port in rule["ports"]}
    has = {("TCP", port["containerPort"]) for container in containers(resources)
           for port in container.get("ports", [])}
    assert opened == has | {ROCE}
    assert {("TCP", port["port"]) for port in resources["Service"]["spec"]["ports"]} == has


def test_the_policy_is_accepted_and_its_ports_are_open_to_rdma(resources, tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(resources["ConfigMap"]["data"]["policy.toml"])
    command = support.BUILD / "bin" / "ringroad"
    done = subprocess.run([command, "policy", "check", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "0 warnings" in done.stdout, done
    # Where the network policy lets RDMA through, a connection to the same ports may use it.
    for rule in resources["NetworkPolicy"]["spec"]["ingress"]:
        ports = {(port["protocol"], port["port"]) for port in rule["ports"]}
        for protocol, port in ports if ROCE in ports else ():
            if protocol != "TCP":
                continue
            shown = subprocess.run([command, "policy", "explain", path, "--role", "accept", "--program", "mysqld",
                                    f"10.9.1.1:{port}", "10.9.1.2:40000"], capture_output=True, text=True, check=True)
            assert "decision: auto" in shown.stdout, shown.stdout


def test_the_images_have_the_version_of_the_release(resources):
    [init] = manifests.pod_of(resources["StatefulSet"])["initContainers"]
    name, _, version = init["image"].partition(":")
    assert version == VERSION
    for application in manifests.APPLICATIONS:
        [image] = manifests.read(manifests.FOLDER / application / "kustomization.yaml")["images"]
        assert (image["name"], image["newTag"]) == (name, VERSION)


def found(document, path):
    """What a JSON pointer leads to; KeyError or IndexError where that is nothing."""
    for word in path.strip("/").split("/"):
        word = word.replace("~1", "/")
        document = document[int(word)] if isinstance(document, list) else document[word]
    return document


@pytest.mark.parametrize("component", manifests.COMPONENTS)
def test_a_component_changes_what_the_stateful_sets_have(component, resources):
    [patch] = manifests.read(manifests.FOLDER / component / "kustomization.yaml")["patches"]
    assert patch["target"] == {"kind": "StatefulSet"}
    for operation in manifests.yaml.safe_load(patch["patch"]):
        path = operation["path"]
        parent, _, last = path.rpartition("/")
        last = last.replace("~1", "/")
        has = found(resources["StatefulSet"], parent)
        assert last == "-" or (last in has if isinstance(has, dict) else int(last) < len(has)) == (
            operation["op"] != "add"), operation
        if "volumes/0" in path or "volumeMounts/0" in path:
            assert found(resources["StatefulSet"], re.match(r".*/(volumes|volumeMounts)/0", path)[0])[
                "name"] == "runtime"


@pytest.mark.parametrize("page", ["packaging/kubernetes/README.md", "docs/kubernetes.md"])
def test_the_pages_name_files_that_there_are(page):
    path = support.ROOT / page
    linked = {link.partition("#")[0] for link in re.findall(r"\]\(([^)#:]+(?:#[^)]*)?)\)", path.read_text())}
    assert linked and not [link for link in linked if not (path.parent / link).exists()]
