"""The kubelet's names and numbers, written down a second time, so that nobody changes one of them by accident."""

from __future__ import annotations

import importlib
from typing import Any

MESSAGES = {
    "deviceplugin_v1beta1": {
        "AllocateRequest": "1 container_requests",
        "AllocateResponse": "1 container_responses",
        "CDIDevice": "1 name",
        "ContainerAllocateRequest": "1 devices_ids",
        "ContainerAllocateResponse": "1 envs, 2 mounts, 3 devices, 4 annotations, 5 cdi_devices",
        "ContainerPreferredAllocationRequest": "1 available_deviceIDs, 2 must_include_deviceIDs, 3 allocation_size",
        "ContainerPreferredAllocationResponse": "1 deviceIDs",
        "Device": "1 ID, 2 health, 3 topology",
        "DevicePluginOptions": "1 pre_start_required, 2 get_preferred_allocation_available",
        "DeviceSpec": "1 container_path, 2 host_path, 3 permissions",
        "Empty": "",
        "ListAndWatchResponse": "1 devices",
        "Mount": "1 container_path, 2 host_path, 3 read_only",
        "NUMANode": "1 ID",
        "PreStartContainerRequest": "1 devices_ids",
        "PreStartContainerResponse": "",
        "PreferredAllocationRequest": "1 container_requests",
        "PreferredAllocationResponse": "1 container_responses",
        "RegisterRequest": "1 version, 2 endpoint, 3 resource_name, 4 options",
        "TopologyInfo": "1 nodes",
    },
    "dra_v1": {
        "Claim": "1 namespace, 2 uid, 3 name",
        "Device": "1 request_names, 2 pool_name, 3 device_name, 4 cdi_device_ids, 5 share_id",
        "NodePrepareResourceResponse": "1 devices, 2 error",
        "NodePrepareResourcesRequest": "1 claims",
        "NodePrepareResourcesResponse": "1 claims",
        "NodeUnprepareResourceResponse": "1 error",
        "NodeUnprepareResourcesRequest": "1 claims",
        "NodeUnprepareResourcesResponse": "1 claims",
    },
    "dra_v1beta1": {
        "Claim": "1 namespace, 2 uid, 3 name",
        "Device": "1 request_names, 2 pool_name, 3 device_name, 4 cdi_device_ids",
        "NodePrepareResourceResponse": "1 devices, 2 error",
        "NodePrepareResourcesRequest": "1 claims",
        "NodePrepareResourcesResponse": "1 claims",
        "NodeUnprepareResourceResponse": "1 error",
        "NodeUnprepareResourcesRequest": "1 claims",
        "NodeUnprepareResourcesResponse": "1 claims",
    },
    "drahealth_v1": {
        "DeviceHealth": "1 device, 2 health, 3 last_updated_time, 4 health_check_timeout_seconds, 5 message",
        "DeviceIdentifier": "1 pool_name, 2 device_name",
        "NodeWatchResourcesRequest": "",
        "NodeWatchResourcesResponse": "1 devices",
    },
    "pluginregistration_v1": {
        "InfoRequest": "",
        "PluginInfo": "1 type, 2 name, 3 endpoint, 4 supported_versions",
        "RegistrationStatus": "1 plugin_registered, 2 error",
        "RegistrationStatusResponse": "",
    },
    "podresources_v1": {
        "AllocatableResourcesRequest": "",
        "AllocatableResourcesResponse": "1 devices, 2 cpu_ids, 3 memory",
        "CDIDevice": "1 name",
        "ClaimResource": "1 cdi_devices, 2 driver_name, 3 pool_name, 4 device_name, 5 share_id",
        "ContainerDevices": "1 resource_name, 2 device_ids, 3 topology",
        "ContainerMemory": "1 memory_type, 2 size, 3 topology",
        "ContainerResources": "1 name, 2 devices, 3 cpu_ids, 4 memory, 5 dynamic_resources",
        "DynamicResource": "2 claim_name, 3 claim_namespace, 4 claim_resources",
        "GetPodResourcesRequest": "1 pod_name, 2 pod_namespace",
        "GetPodResourcesResponse": "1 pod_resources",
        "ListPodResourcesRequest": "",
        "ListPodResourcesResponse": "1 pod_resources",
        "NUMANode": "1 ID",
        "PodResources": "1 name, 2 namespace, 3 containers, 4 cpu_ids, 5 memory",
        "TopologyInfo": "1 nodes",
    },
    "pods_v1alpha1": {
        "GetPodRequest": "1 podUID",
        "GetPodResponse": "1 pod",
        "ListPodsRequest": "",
        "ListPodsResponse": "1 pods",
        "WatchPodsEvent": "1 type, 2 pod",
        "WatchPodsRequest": "",
    },
}

METHODS = {
    "deviceplugin_v1beta1": [
        "v1beta1.DevicePlugin/Allocate",
        "v1beta1.DevicePlugin/GetDevicePluginOptions",
        "v1beta1.DevicePlugin/GetPreferredAllocation",
        "v1beta1.DevicePlugin/ListAndWatch stream",
        "v1beta1.DevicePlugin/PreStartContainer",
        "v1beta1.Registration/Register",
    ],
    "dra_v1": [
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
    ],
    "dra_v1beta1": [
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
    ],
    "drahealth_v1": ["v1.DRAResourceHealth/NodeWatchResources stream"],
    "pluginregistration_v1": [
        "pluginregistration.Registration/GetInfo",
        "pluginregistration.Registration/NotifyRegistrationStatus",
    ],
    "podresources_v1": [
        "v1.PodResourcesLister/Get",
        "v1.PodResourcesLister/GetAllocatableResources",
        "v1.PodResourcesLister/List",
    ],
    "pods_v1alpha1": [
        "v1alpha1.Pods/GetPod",
        "v1alpha1.Pods/ListPods",
        "v1alpha1.Pods/WatchPods stream",
    ],
}


def descriptor(module: str) -> Any:
    return importlib.import_module(f"kdp.proto.{module}_pb2").DESCRIPTOR


def test_messages_have_the_kubelets_names_and_numbers() -> None:
    found = {
        module: {
            name: ", ".join(f"{field.number} {field.name}" for field in message.fields)
            for name, message in descriptor(module).message_types_by_name.items()
        }
        for module in MESSAGES
    }
    assert found == MESSAGES


def test_methods_have_the_kubelets_paths() -> None:
    found = {
        module: sorted(
            f"{service.full_name}/{method.name}" + (" stream" if method.server_streaming else "")
            for service in descriptor(module).services_by_name.values()
            for method in service.methods
        )
        for module in METHODS
    }
    assert found == METHODS


def test_an_allocation_is_the_bytes_that_the_kubelet_expects() -> None:
    api = importlib.import_module("kdp.proto.deviceplugin_v1beta1_pb2")
    answer = api.AllocateResponse(
        container_responses=[
            api.ContainerAllocateResponse(
                envs={"A": "b"},
                mounts=[api.Mount(container_path="/c", host_path="/h", read_only=True)],
                devices=[api.DeviceSpec(container_path="/c", host_path="/h", permissions="rw")],
                cdi_devices=[api.CDIDevice(name="v.example/c=n")],
            )
        ]
    )
    # Written by hand from the wire format: field number << 3 | 2 (length-delimited), length, content.
    envs = b"\x0a\x06\x0a\x01A\x12\x01b"
    mounts = b"\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01"
    devices = b"\x1a\x0c\x0a\x02/c\x12\x02/h\x1a\x02rw"
    cdi = b"\x2a\x0f\x0a\x0dv.example/c=n"
    body = envs + mounts + devices + cdi
    assert answer.SerializeToString() == b"\x0a" + bytes([len(body)]) + body
