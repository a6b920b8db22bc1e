"""A `Deployment` in the words of Kubernetes: a DaemonSet, a ConfigMap where files are read, a kustomize base.

Why it is as it is:

* A device plugin has ``maxSurge: 0``. With two pods at a time a kubelet before 1.37 drops the new plugin's registration
  when the old one's stream ends (kubernetes#121994, contract section 11). kdp survives that, but a surge has no
  advantage.
* No liveness for a kubelet that is down or a driver that is missing: ``/livez`` says whether the process answers,
  ``/readyz`` whether every resource has a stream. A restart cures neither.
* The pod mounts the directory of ``kubelet.sock``, not the file: a kubelet that starts makes another file.
* A DRA driver has ``maxSurge``: the new pod serves before the old one ends, so no pod waits and no slice vanishes. In
  the node's network both would answer probes at one port, so there the old one ends first.
* A device plugin has no account, and so no token, unless its settings have it talk to the API server. The rights of
  such a plugin, and of a DRA driver, are in `kdp.admin.manifests.cluster`.
* A pool's controller is a Deployment of one replica that ends before it is replaced: two would write the same slices in
  turn.
* The socket for commands and exec probes is in a directory of the pod: it ends with the pod, and two pods of an update
  each have one. It is in memory, because a full disk must not end the plugin by its probe.
* Nobody may connect to the plugin's port. A NetworkPolicy does not apply to the pod's own node, from which the kubelet
  probes. It has no effect on pods in the node's network: there, the port is on loopback.
* What is read only is so below mounts, too (Kubernetes 1.31 and newer, with a runtime that can do it). That excludes
  mount propagation, so a mount has either the one or the other.
* An example has 48 MiB resident in a cluster, most of it shared files. The limit has room for commands that run in the
  container: they count, and the kernel might end the plugin instead of them.
* The startup probe gives a process on a busy node two minutes before the liveness probe counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...command.found_sockets import POD_SOCKET, POD_VOLUME
from ...daemon.settings import SETTINGS
from .cluster import cluster_objects, plugin_objects
from .deployment import CONFIG_DIR, Deployment
from .placement import ALL_TAINTS, Toleration, check_label

if TYPE_CHECKING:
    from .deployment import Probing
    from .placement import Placement

Document = dict[str, Any]

_PORT_NAME: Final = "http"
_RUN_DIR: Final = "/run/kdp"
_SOCKET: Final = f"{_RUN_DIR}/{POD_SOCKET}"

_ACCOUNT_FILE: Final = "account.yaml"
_DRIVER_FILE: Final = "driver.yaml"
_OPENSHIFT_FILE: Final = "openshift.yaml"
_POLICY_FILE: Final = "network-policy.yaml"

_READ_ONLY: Final = {"readOnly": True, "recursiveReadOnly": "IfPossible"}
_PROPAGATED: Final = {"readOnly": True, "mountPropagation": "HostToContainer"}


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
    main: Document = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(deployment, placement),
        "spec": {
            "selector": {"matchLabels": _labels(deployment)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(deployment)},
            "template": {"metadata": template, "spec": _pod(deployment, placement)},
        },
    }
    if deployment.is_controller:
        del main["spec"]["updateStrategy"]
        main = {**main, "kind": "Deployment", "spec": {"replicas": 1, "strategy": {"type": "Recreate"}, **main["spec"]}}
    first: list[Document] = []
    if deployment.cluster is not None:
        first += cluster_objects(deployment.name, deployment.cluster, placement.namespace)
    if deployment.account is not None:
        first += plugin_objects(deployment.name, deployment.account, placement.namespace)
    if placement.openshift:
        first += _openshift(deployment, placement)
    if placement.network_policy and not deployment.needs.host_network:  # where it would do nothing
        first.append(_closed(deployment, placement))
    return [*first, *([config] if deployment.files else []), main]


def rolling_update(deployment: Deployment) -> Document:
    """Return how many pods of a DaemonSet an update replaces at a time, and in which order."""
    if deployment.cluster is None or deployment.needs.host_network:
        return {"maxUnavailable": "10%", "maxSurge": 0}
    return {"maxUnavailable": 0, "maxSurge": "10%"}


def _closed(deployment: Deployment, placement: Placement) -> Document:
    """Return the policy by which nobody may connect to the pods, but those of the namespace that Prometheus is in."""
    spec: Document = {"podSelector": {"matchLabels": _labels(deployment)}, "policyTypes": ["Ingress"]}
    if placement.metrics_from is not None:
        selector = {"matchLabels": {"kubernetes.io/metadata.name": placement.metrics_from}}
        port = {"port": _PORT_NAME, "protocol": "TCP"}
        spec["ingress"] = [{"from": [{"namespaceSelector": selector}], "ports": [port]}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(deployment, placement),
        "spec": spec,
    }


def _openshift(deployment: Deployment, placement: Placement) -> list[Document]:
    """Return security context constraints for this pod alone, and an account where the deployment has none.

    OpenShift admits a pod by constraints that its account may use. Those that it comes with allow either no host paths,
    or everything. The account is named in the constraints, so no role is needed.
    """
    name, namespace = deployment.name, placement.namespace
    account: Document = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(deployment, placement),
        "automountServiceAccountToken": False,
    }
    needs = deployment.needs
    is_privileged = bool(needs.opened_nodes)
    selinux: Document = {"type": "RunAsAny"}
    if placement.selinux_type is not None and not is_privileged:
        selinux = {"type": "MustRunAs", "seLinuxOptions": _selinux(placement.selinux_type)}
    constraints: Document = {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": name, "labels": _labels(deployment)},
        "allowHostDirVolumePlugin": bool(deployment.folders),
        "allowHostIPC": False,
        "allowHostNetwork": needs.host_network,
        "allowHostPID": needs.host_pid,
        "allowHostPorts": needs.host_network,
        "allowPrivilegeEscalation": is_privileged,
        "allowPrivilegedContainer": is_privileged,
        "allowedCapabilities": list(needs.capabilities),
        "defaultAddCapabilities": [],
        "requiredDropCapabilities": [] if is_privileged else ["ALL"],
        "readOnlyRootFilesystem": True,
        "runAsUser": {"type": "MustRunAsNonRoot" if deployment.is_controller else "RunAsAny"},
        "seLinuxContext": selinux,
        "fsGroup": {"type": "RunAsAny"},
        "supplementalGroups": {"type": "RunAsAny"},
        "seccompProfiles": ["*"] if is_privileged else ["runtime/default"],
        "volumes": sorted({"configMap", "emptyDir", "projected", *(["hostPath"] if deployment.folders else [])}),
        "users": [f"system:serviceaccount:{namespace}:{name}"],
        "groups": [],
    }
    return [*([] if deployment.has_account else [account]), constraints]


def base(deployment: Deployment, placement: Placement) -> dict[str, list[Document]]:
    """Return the files of a kustomize base, but those that its ConfigMap is made of.

    Raises:
        InvalidValueError: The deployment's name is no DNS label.
    """
    files: dict[str, list[Document]] = {_ACCOUNT_FILE: [], _DRIVER_FILE: [], _OPENSHIFT_FILE: [], _POLICY_FILE: []}
    *first, main = daemon_set(deployment, placement)
    own = _OPENSHIFT_FILE
    if deployment.has_account:
        own = _ACCOUNT_FILE if deployment.cluster is None else _DRIVER_FILE
    places = {"NetworkPolicy": _POLICY_FILE, "SecurityContextConstraints": _OPENSHIFT_FILE}
    for document in first:
        if document["kind"] != "ConfigMap":  # which kustomize makes of the files
            files[places.get(document["kind"], own)].append(document)
    kept = {name: documents for name, documents in files.items() if documents}
    kept["deployment.yaml" if deployment.is_controller else "daemonset.yaml"] = [main]
    kustomization: Document = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": placement.namespace,
        "resources": list(kept),
    }
    if deployment.files:
        # The generated name has a hash of the content, so a changed file rolls the DaemonSet.
        kustomization["configMapGenerator"] = [{"name": deployment.name, "files": list(deployment.files)}]
    return {"kustomization.yaml": [kustomization], **kept}


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
    volumes.append({"name": POD_VOLUME, "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}})
    if deployment.files:
        volumes.append({"name": "config", "configMap": {"name": deployment.name}})
    # Before the pods that want its devices.
    priority = "system-cluster-critical" if deployment.is_controller else "system-node-critical"
    has_account = deployment.has_account or placement.openshift
    return _without_nothing(
        priorityClassName=priority if placement.priority_class is None else placement.priority_class or None,
        tolerations=[each.document() for each in tolerations_of(deployment, placement)],
        imagePullSecrets=[{"name": each} for each in placement.pull_secrets],
        automountServiceAccountToken=deployment.has_account,
        enableServiceLinks=False,
        terminationGracePeriodSeconds=10,
        serviceAccountName=deployment.name if has_account else None,
        nodeSelector=placement.node_selector,
        affinity=placement.affinity,
        runtimeClassName=placement.runtime_class,
        hostNetwork=deployment.needs.host_network or None,
        hostPID=deployment.needs.host_pid or None,
        containers=[_container(deployment, placement)],
    ) | {"volumes": volumes}


def _container(deployment: Deployment, placement: Placement) -> Document:
    read_only = _READ_ONLY if placement.propagation == "none" else _PROPAGATED
    mounts = [
        {"name": folder.name, "mountPath": folder.seen_at} | ({} if folder.writable else read_only)
        for folder in deployment.folders
    ]
    mounts.append({"name": POD_VOLUME, "mountPath": _RUN_DIR})
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
        "resources": {"requests": {"cpu": "10m", "memory": "48Mi"}, "limits": {"memory": placement.memory_limit}},
        # Not below /dev, which may be the node's own.
        "terminationMessagePath": "/run/kdp-termination-log",
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def tolerations_of(deployment: Deployment, placement: Placement) -> tuple[Toleration, ...]:
    """Return the taints that keep the pods off no node; the startup taint is one, which only they remove."""
    if placement.tolerations is None:
        return () if deployment.is_controller else ALL_TAINTS
    taint = None if deployment.account is None else deployment.account.startup_taint
    if taint is None or {Toleration(), Toleration(taint)} & {*placement.tolerations}:
        return placement.tolerations
    return (*placement.tolerations, Toleration(taint))


def security_level(deployment: Deployment) -> tuple[str, str]:
    """Return the level of the Pod Security Standards that a namespace must allow, and why it is no stricter one."""
    needs = deployment.needs
    why = [
        *(["hostPath volumes"] if deployment.folders else []),
        *(["a privileged container"] if needs.opened_nodes else []),
        *(["capabilities"] if needs.capabilities else []),
        *(["the node's network"] if needs.host_network else []),
        *(["the node's processes"] if needs.host_pid else []),
    ]
    if why:
        return "privileged", ", ".join(why)
    if deployment.is_controller:
        return "restricted", "nothing of the node, no root, no capability"
    return "baseline", "root"


def _probes(deployment: Deployment) -> Document:
    """Return the ports, and what the kubelet asks."""
    http = deployment.http
    if http is None:
        return probes_of("exec") if deployment.probing == "exec" else {}
    # Where it listens at all addresses, the kubelet asks at the pod's, as it does without a host.
    host = None if http.host in ("", "0.0.0.0", "::") else http.host  # noqa: S104
    return {"ports": [{"name": _PORT_NAME, "containerPort": http.port}], **probes_of(deployment.probing, host)}


def probes_of(probing: Probing, host: str | None = None) -> dict[str, Document]:
    """Return what the kubelet asks, and when. Alive and six times not so is dead: after a minute.

    Args:
        probing: How it asks.
        host: At which address; None: at the pod's.
    """
    if probing == "exec":
        # A process costs more than a connection, so it is asked less often.
        live: Document = {"exec": {"command": ["kdp", "probe", "live"]}, "timeoutSeconds": 5}
        return {
            "startupProbe": {**live, "periodSeconds": 5, "failureThreshold": 24},
            "livenessProbe": {**live, "periodSeconds": 20, "failureThreshold": 3},
            "readinessProbe": {
                "exec": {"command": ["kdp", "probe", "ready"]},
                "periodSeconds": 10,
                "timeoutSeconds": 5,
            },
        }
    port = _without_nothing(port=_PORT_NAME, host=host)
    timing = {"periodSeconds": 10, "timeoutSeconds": 5}
    alive: Document = {"httpGet": {"path": "/livez", **port}, **timing}
    return {
        "startupProbe": {**alive, "periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": {**alive, "failureThreshold": 6},
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
        security["seLinuxOptions"] = _selinux(placement.selinux_type)
    return security


def _selinux(name: str) -> Document:
    """Return a label; with categories of its own, as a runtime gives them, no later container could read the files."""
    return {"type": name, "level": "s0"}
