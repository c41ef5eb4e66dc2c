"""Pods by runc: containers of a manifest that are started as a kubelet has them started, on this machine's kernel.

A pod's containers share a network, IPC and, as the manifests ask for it, processes. Each has files of its own:
an image's root, or this machine's programs (`machine_root`). A volume is a folder. There is no kubelet, no
registry and no engine: what these do to a manifest is done here by hand, as far as the manifests need it.
"""

import json
import os
import re
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from . import processes

START_S = 60
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What containerd and CRI-O give to a container that says nothing.
CAPABILITIES = ("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE",
                "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT")
CAP_SYS_RESOURCE = 24
MEMLOCK = 8 << 20  # systemd's default for an engine since 2020
# The container's processes, network and IPC are the pod's.
SHARED = ("network", "ipc", "uts")


class Unavailable(Exception):
    """The machine cannot start containers: a reason to skip, not a fault."""


def machine_root(directory, programs, users):
    """A root of this machine's programs, with `programs` (name to text) in /usr/local/bin and at the top.

    `users`: names to numbers. Returns the root and the mounts that it needs.
    """
    root = Path(directory)
    for name in ("usr", "etc", "proc", "dev", "tmp", "run", "var/lib/mysql"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    lines = [("root", 0), *users.items()]
    (root / "etc/passwd").write_text("".join(f"{name}:x:{number}:{number}::/:/bin/sh\n" for name, number in lines))
    (root / "etc/group").write_text("".join(f"{name}:x:{number}:\n" for name, number in lines))
    local = root.parent / f"{root.name}-programs"
    local.mkdir()
    for name, text in programs.items():
        for path in (local / name, root / name):
            path.write_text(text)
            path.chmod(0o755)
    same = [bind(path, path) for path in ("/usr", "/etc/alternatives", "/etc/ld.so.cache")]
    return root, [*same, bind(local, "/usr/local/bin")]


def bind(source, destination, readonly=True):
    return {"destination": str(destination), "type": "bind", "source": str(source),
            "options": ["rbind", "ro" if readonly else "rw"]}


def can_raise_limits():
    """Whether root has CAP_SYS_RESOURCE here: a sandbox may have taken it, and no container gets it then."""
    held = re.search(r"^CapPrm:\s+(\w+)", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)[1]
    return bool(int(held, 16) >> CAP_SYS_RESOURCE & 1)


def expanded(words, environment):
    """As the kubelet does: $(NAME) of a variable of the manifest, all else as it stands."""
    return [re.sub(r"\$\(([^)]+)\)", lambda match: environment.get(match[1], match[0]), word) for word in words]


def volumes_of(manifest, directory, configurations):
    """A folder for each volume of a StatefulSet; `configurations`: what each ConfigMap holds, by its name.

    A ConfigMap's files are links to links, which the kubelet replaces at once.
    """
    spec = manifest["spec"]
    names = [claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", [])]
    result = {}
    for volume in [*spec["template"]["spec"]["volumes"], *({"name": name} for name in names)]:
        folder = result[volume["name"]] = Path(directory) / volume["name"]
        folder.mkdir(parents=True)
        folder.chmod(0o777)
        if "configMap" in volume:
            configure(folder, configurations[volume["configMap"]["name"]])
    return result


def configure(folder, files):
    """Gives the folder of a ConfigMap other contents, as the kubelet does."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    for name, text in files.items():
        (version / name).write_text(text)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").rename(folder / "..data")


@dataclass
class Image:
    """The root of a container, what else is mounted there, and what the image says of its start."""
    root: Path
    mounts: list = field(default_factory=list)
    entry_point: tuple = ()
    user: int = 0
    environment: dict = field(default_factory=dict)


class Pod:
    """The namespaces that containers share, and those containers. Ends all of them at the end of `with`."""

    def __init__(self, directory, volumes, fields=()):
        """`volumes`: the name of each volume of the manifest, and the folder that stands for it; see volumes_of().
        `fields`: of the downward API, by their paths."""
        if shutil.which("runc") is None:
            raise Unavailable("not installed: runc")
        if os.geteuid() != 0:
            raise Unavailable("needs root, for containers")
        self._directory = Path(directory)
        self._volumes = volumes
        self._fields = dict(fields)
        self._containers = {}
        self._unshare = None
        self._pause = None

    def __enter__(self):
        self._unshare = subprocess.Popen(
            ["unshare", "--net", "--ipc", "--uts", "--pid", "--fork", "--kill-child", "sh", "-c",
             "ip link set lo up && echo up && exec sleep infinity"], stdout=subprocess.PIPE, text=True)
        try:
            if self._unshare.stdout.readline() != "up\n":
                raise Unavailable("no network namespaces of one's own here")
            pid = self._unshare.pid
            self._pause = int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()[0])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for identity in self._containers.values():
            subprocess.run([*self._runc(), "delete", "--force", identity], capture_output=True, check=False)
        self._unshare.send_signal(signal.SIGKILL)
        self._unshare.wait()
        self._unshare.stdout.close()

    def run(self, container, image):
        """Starts a container of the manifest and waits for its end: its status and what it said."""
        bundle, identity = self._bundle(container, image)
        done = subprocess.run([*self._runc(), "run", "--bundle", bundle, identity], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                              timeout=processes.patient(START_S))
        return done.returncode, done.stdout

    def start(self, container, image):
        """Starts one that stays: the number of its first process, and the file with what it says."""
        bundle, identity = self._bundle(container, image)
        log = bundle / "log"
        with open(log, "wb") as output:
            done = subprocess.run([*self._runc(), "run", "--detach", "--bundle", bundle, identity], check=False,
                                  stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        if done.returncode != 0:
            raise processes.ProcessError(f"{identity} does not start: {log.read_text()}")
        state = subprocess.run([*self._runc(), "state", identity], check=True, capture_output=True, text=True)
        return json.loads(state.stdout)["pid"], log

    def execute(self, name, *words):
        """As `kubectl exec`: what a program says in the container."""
        return subprocess.run(self.command(name, *words), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False, timeout=processes.patient(START_S))

    def command(self, name, *words):
        """What executes a program in the container."""
        return [*self._runc(), "exec", self._containers[name], *words]

    def _runc(self):
        return ["runc", "--root", str(self._directory / "runc")]

    def _bundle(self, container, image):
        name = container["name"]
        bundle = self._directory / f"{name}-{len(self._containers)}"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(self._config(container, image)))
        self._containers[name] = f"{self._directory.name}-{bundle.name}-{os.getpid()}"
        return bundle, self._containers[name]

    def _config(self, container, image):
        said = {item["name"]: item["value"] if "value" in item else self._fields.get(
            item["valueFrom"].get("fieldRef", {}).get("fieldPath"), "a secret") for item in container.get("env", [])}
        environment = {**image.environment, **said}
        security = container.get("securityContext", {})
        asked = security.get("capabilities", {})
        held = () if "ALL" in asked.get("drop", []) else CAPABILITIES
        held = [f"CAP_{name}" for name in (*held, *asked.get("add", []))
                if name != "SYS_RESOURCE" or can_raise_limits()]
        user = security.get("runAsUser", image.user)
        words = [*container.get("command", image.entry_point), *container.get("args", [])]
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
                  {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["mode=1777"]},
                  {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
                  *image.mounts]
        mounts += [bind(self._volumes[mount["name"]], mount["mountPath"], mount.get("readOnly", False))
                   for mount in container.get("volumeMounts", [])]
        return {
            "ociVersion": "1.0.2",
            "process": {
                "terminal": False, "cwd": "/", "user": {"uid": user, "gid": user},
                "args": expanded(words, said), "env": [PATH, *(f"{key}={value}" for key, value in environment.items())],
                "noNewPrivileges": not security.get("allowPrivilegeEscalation", True),
                # None that a program of another user than root inherits: Kubernetes has no ambient ones.
                "capabilities": {kind: held for kind in ("bounding", "effective", "permitted")},
                "rlimits": [{"type": "RLIMIT_MEMLOCK", "soft": MEMLOCK, "hard": MEMLOCK}]},
            "root": {"path": str(image.root), "readonly": security.get("readOnlyRootFilesystem", False)},
            "mounts": mounts,
            "linux": {"namespaces": [{"type": "mount"}, {"type": "pid", "path": f"/proc/{self._pause}/ns/pid"},
                                     *({"type": kind, "path": f"/proc/{self._pause}/ns/{kind[:3]}"}
                                       for kind in SHARED)]}}
