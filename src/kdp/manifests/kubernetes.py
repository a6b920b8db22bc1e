"""A `Deployment` in the words of Kubernetes: a DaemonSet, a ConfigMap where files are read, a kustomize base.

Why it is as it is:

* A device plugin has ``maxSurge: 0``. With two pods at a time a kubelet before 1.37 drops the new plugin's registration
  when the old one's stream ends (kubernetes#121994, contract section 11). kdp survives that, but there is nothing to
  gain.
* No liveness for a kubelet that is down or a driver that is missing: ``/livez`` says whether the process answers,
  ``/readyz`` whether every resource has a stream. A restart cures neither.
* The plugin's directory is mounted, never ``kubelet.sock``: the kubelet makes that file anew at each start.
* A DRA driver has ``maxSurge``: the new pod serves before the old one ends, so no pod waits and no slice vanishes. In
  the node's network both would answer probes at one port, so there the old one ends first.
* A device plugin has no account: it does not talk to the API server, so there is no token either. What a DRA driver has
  is told in `kdp.manifests.cluster`.
* A pool's controller is a Deployment of one replica that ends before it is replaced: two would write the same slices in
  turn.
* The socket for commands and exec probes is in a directory of the pod: it ends with the pod, and two pods of an update
  each have one. It is in memory, because a full disk must not end the plugin by its probe.
* Nobody may connect to the plugin's port. A NetworkPolicy never applies to the pod's own node, from which the kubelet
  probes. It has no effect on pods in the node's network: there, the port is on loopback.
* What is read only is so below mounts, too (Kubernetes 1.31 and newer, with a runtime that can do it). That excludes
  mount propagation.
* 48 MiB is what an example has resident in a cluster, most of it shared files; 96 MiB is twice that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, final

import attrs

from ..daemon.settings import SETTINGS
from ..errors import InvalidValueError
from .cluster import cluster_objects
from .deployment import CONFIG_DIR, Deployment

Document = dict[str, Any]

_PORT_NAME: Final = "http"
_RUN_DIR: Final = "/run/kdp"
_SOCKET: Final = f"{_RUN_DIR}/plugin.sock"

POLICY_FILE: Final = "network-policy.yaml"
"""The file of a kustomize base that has the NetworkPolicy."""

_READ_ONLY: Final = {"readOnly": True, "recursiveReadOnly": "IfPossible"}
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


@final
@attrs.frozen(kw_only=True)
class Placement:
    """Where and from what the DaemonSet's pods are made.

    Attributes:
        image: The container's image.
        namespace: Where; the priority class may be refused by a quota elsewhere than in ``kube-system``.
        node_selector: The nodes' labels; empty: every node.
        runtime_class: The container's RuntimeClass; None: the default.
        selinux_type: The process's SELinux type, which container-selinux has for device plugins; None: the default. It
            means nothing on a node without SELinux.

    Raises:
        InvalidValueError: The namespace is no name of one.
    """

    image: str
    namespace: str = "kube-system"
    node_selector: Mapping[str, str] = attrs.field(factory=dict[str, str])
    runtime_class: str | None = None
    selinux_type: str | None = "container_device_plugin_t"

    def __attrs_post_init__(self) -> None:
        check_label("namespace", self.namespace)
        if not self.image or self.image != "".join(self.image.split()):
            raise InvalidValueError(
                f"image {self.image!r}: must be a reference without spaces; valid is 'registry.example.com/widgets:1'"
            )


def check_label(what: str, value: str) -> str:
    """Return a DNS label.

    Raises:
        InvalidValueError: It is none.
    """
    if not _LABEL.fullmatch(value):
        raise InvalidValueError(
            f"{what} {value!r}: must be at most 63 small letters, digits and dashes, a letter or digit at both ends; "
            f"valid is 'kdp-widgets'"
        )
    return value


def daemon_set(deployment: Deployment, placement: Placement) -> list[Document]:
    """Return the objects to apply, the DaemonSet last; of a pool's controller a Deployment.

    Raises:
        InvalidValueError: The deployment's name is no DNS label.
    """
    check_label("name", deployment.name)
    config: Document = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": _metadata(deployment, placement),
        "data": dict(deployment.files),
    }
    template: Document = {"labels": _labels(deployment)}
    if deployment.restarts_with is not None:
        template["annotations"] = {"kdp/config": deployment.restarts_with}
    rolling = {"maxUnavailable": 0, "maxSurge": "10%"}
    if deployment.cluster is None or deployment.needs.host_network:
        rolling = {"maxUnavailable": "10%", "maxSurge": 0}
    main: Document = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(deployment, placement),
        "spec": {
            "selector": {"matchLabels": _labels(deployment)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling},
            "template": {"metadata": template, "spec": _pod(deployment, placement)},
        },
    }
    if deployment.is_controller:
        del main["spec"]["updateStrategy"]
        main = {**main, "kind": "Deployment", "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, **main["spec"]}}
    first = (
        [] if deployment.cluster is None else cluster_objects(deployment.name, deployment.cluster, placement.namespace)
    )
    if not deployment.needs.host_network:
        first.append(_closed(deployment, placement))
    return [*first, *([config] if deployment.files else []), main]


def _closed(deployment: Deployment, placement: Placement) -> Document:
    """Return the policy by which nobody may connect to the pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(deployment, placement),
        "spec": {"podSelector": {"matchLabels": _labels(deployment)}, "policyTypes": ["Ingress"]},
    }


def workload_file(deployment: Deployment) -> str:
    """Return the name of the file of a kustomize base that has the pods."""
    return "deployment.yaml" if deployment.is_controller else "daemonset.yaml"


def kustomization(deployment: Deployment, placement: Placement) -> Document:
    """Return the ``kustomization.yaml`` of a base: workload, `POLICY_FILE`, a driver's ``driver.yaml``, files."""
    document: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": placement.namespace,
        "resources": [
            *([] if deployment.cluster is None else ["driver.yaml"]),
            *([] if deployment.needs.host_network else [POLICY_FILE]),
            workload_file(deployment),
        ],
    }
    if deployment.files:
        # The generated name has a hash of the content, so a changed file rolls the DaemonSet.
        document["configMapGenerator"] = [{"name": deployment.name, "files": list(deployment.files)}]
    return document


def _labels(deployment: Deployment) -> Document:
    return {"app.kubernetes.io/name": deployment.name}


def _metadata(deployment: Deployment, placement: Placement) -> Document:
    return {"name": deployment.name, "namespace": placement.namespace, "labels": _labels(deployment)}


def _without_nothing(**fields: Any) -> Document:
    """Return the fields that have a value: not None, and not an empty list or mapping."""
    return {name: value for name, value in fields.items() if value not in (None, [], {})}


def _pod(deployment: Deployment, placement: Placement) -> Document:
    volumes: list[Document] = [
        {
            "name": folder.name,
            "hostPath": {"path": folder.path, "type": "DirectoryOrCreate" if folder.made else "Directory"},
        }
        for folder in deployment.folders
    ]
    volumes.append({"name": "run", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    if deployment.files:
        volumes.append({"name": "config", "configMap": {"name": deployment.name}})
    return _without_nothing(
        # Before the pods that want its devices.
        priorityClassName="system-cluster-critical" if deployment.is_controller else "system-node-critical",
        tolerations=[] if deployment.is_controller else [{"operator": "Exists"}],
        automountServiceAccountToken=deployment.cluster is not None,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=10,
        serviceAccountName=None if deployment.cluster is None else deployment.name,
        nodeSelector=dict(placement.node_selector),
        runtimeClassName=placement.runtime_class,
        hostNetwork=deployment.needs.host_network or None,
        hostPID=deployment.needs.host_pid or None,
        containers=[_container(deployment, placement)],
    ) | {"volumes": volumes}


def _container(deployment: Deployment, placement: Placement) -> Document:
    mounts = [
        {"name": folder.name, "mountPath": folder.seen_at} | ({} if folder.writable else _READ_ONLY)
        for folder in deployment.folders
    ]
    mounts.append({"name": "run", "mountPath": _RUN_DIR})
    if deployment.files:
        # The directory: a file mounted with subPath never changes.
        mounts.append({"name": "config", "mountPath": CONFIG_DIR, "readOnly": True})
    fields = [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": f}}} for name, f in deployment.fields.items()]
    return {
        "name": "plugin",
        "image": placement.image,
        "command": ["kdp"],
        # To Kubernetes $(NAME) is a variable and $$ a $.
        "args": [text.replace("$", "$$") for text in ("run", deployment.target, *deployment.options)],
        "securityContext": _security(deployment, placement),
        # Commands that run in the container have it as well, the exec probes among them.
        "env": [{"name": SETTINGS["socket"].variable, "value": _SOCKET}, *fields],
        **_probes(deployment),
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": "96Mi"}},
        # Not below /dev, which may be the node's own.
        "terminationMessagePath": "/run/kdp-termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _probes(deployment: Deployment) -> Document:
    """Return the ports, and what the kubelet asks. Alive and six times not so is dead: after a minute."""
    http = deployment.http
    ports: Document = {} if http is None else {"ports": [{"name": _PORT_NAME, "containerPort": http.port}]}
    if deployment.probing == "exec":
        # A process costs more than a connection, so it is asked less often.
        live: Document = {"periodSeconds": 20, "timeoutSeconds": 5, "failureThreshold": 3}
        return ports | {
            "livenessProbe": {"exec": {"command": ["kdp", "probe", "live"]}, **live},
            "readinessProbe": {
                "exec": {"command": ["kdp", "probe", "ready"]},
                "periodSeconds": 10,
                "timeoutSeconds": 5,
            },
        }
    if http is None:
        return {}
    port = _without_nothing(port=_PORT_NAME, host=http.host or None)
    timing = {"periodSeconds": 10, "timeoutSeconds": 5}
    return ports | {
        "livenessProbe": {"httpGet": {"path": "/livez", **port}, **timing, "failureThreshold": 6},
        "readinessProbe": {"httpGet": {"path": "/readyz", **port}, **timing, "periodSeconds": 5},
    }


def _security(deployment: Deployment, placement: Placement) -> Document:
    security: Document = {"runAsUser": 0, "readOnlyRootFilesystem": True}
    if deployment.is_controller:  # which has nothing of the kubelet's
        security = {"runAsUser": 65532, "runAsGroup": 65532, "runAsNonRoot": True, "readOnlyRootFilesystem": True}
    if deployment.needs.opened_nodes:
        # The device cgroup has no smaller right, and the API refuses one that is privileged and not allowed to gain.
        return security | {"privileged": True}
    capabilities: Document = {"drop": ["ALL"]}
    if deployment.needs.capabilities:
        capabilities["add"] = list(deployment.needs.capabilities)
    security |= {
        "allowPrivilegeEscalation": False,
        "capabilities": capabilities,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if placement.selinux_type is not None and not deployment.is_controller:
        security["seLinuxOptions"] = {"type": placement.selinux_type}
    return security
