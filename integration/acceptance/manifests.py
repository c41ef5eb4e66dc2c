"""What packaging/kubernetes holds, read."""

import yaml

from . import support

FOLDER = support.ROOT / "packaging" / "kubernetes"
APPLICATIONS = ("mysql", "percona-xtradb-cluster")
COMPONENTS = ("host-directory", "host-network", "without-rdma")


class Strict(yaml.SafeLoader):
    """Refuses a key that a mapping has twice, as the API server does."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1}
        if twice:
            raise yaml.YAMLError(f"twice in one mapping: {twice}{node.start_mark}")
        return super().construct_mapping(node, deep)


def read(path):
    return yaml.load(path.read_text(), Loader=Strict)


def resources(application):
    """Its objects by their kind; each kind is there once."""
    names = read(FOLDER / application / "kustomization.yaml")["resources"]
    found = [read(FOLDER / application / name) for name in names]
    result = {resource["kind"]: resource for resource in found}
    assert len(result) == len(found)
    return result


def pod_of(manifest):
    return manifest["spec"]["template"]["spec"]
