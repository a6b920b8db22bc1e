"""What OpenShift asks for besides: security context constraints that allow just this pod, for its account alone.

OpenShift admits a pod by constraints that its account may use. Those that it comes with allow either no host paths, or
everything. The account is named in the constraints, so no role is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .deployment import Deployment
    from .placement import Placement

Document = dict[str, Any]


def openshift_objects(deployment: Deployment, placement: Placement) -> list[Document]:
    """Return the constraints, and an account where the deployment has none."""
    name, namespace = deployment.name, placement.namespace
    labels = {"app.kubernetes.io/name": name}
    account: Document = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "automountServiceAccountToken": False,
    }
    needs = deployment.needs
    is_privileged = bool(needs.opened_nodes)
    selinux: Document = {"type": "RunAsAny"}
    if placement.selinux_type is not None and not is_privileged:
        selinux = {"type": "MustRunAs", "seLinuxOptions": {"type": placement.selinux_type}}
    constraints: Document = {
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": name, "labels": labels},
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
