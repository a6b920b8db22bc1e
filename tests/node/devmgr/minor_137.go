//go:build !k136 && !k134

package main

import (
	"context"
	_ "unsafe" // for go:linkname

	machine "github.com/google/cadvisor/lib/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
	schedulerframework "k8s.io/kubernetes/pkg/scheduler/framework"
)

// This file is Kubernetes 1.37: what differs between the minors is here and in its siblings, and nowhere else.

const minor = "1.37"

type numaNode = machine.Node

// admitHandler is one that a pod must pass.
type admitHandler interface {
	Admit(ctx context.Context, attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult
}

func admitTo(handler admitHandler, attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	return handler.Admit(context.Background(), attributes)
}

// The exported constructor has the socket's path built in; this is the one that it calls.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(klog.Logger, string, []numaNode, topologymanager.Store) (*devicemanager.ManagerImpl, error)

func newDeviceManager(socket string, nodes []numaNode, store topologymanager.Store) (*devicemanager.ManagerImpl, error) {
	return newManagerImpl(klog.Background(), socket, nodes, store)
}

func newTopologyManager(nodes []numaNode, policy, scope string) (topologymanager.Manager, error) {
	return topologymanager.NewManager(klog.Background(), nodes, policy, scope, nil)
}

func addHintProvider(topology topologymanager.Manager, devices *devicemanager.ManagerImpl) {
	topology.AddHintProvider(klog.Background(), devices)
}

func startDeviceManager(devices *devicemanager.ManagerImpl, pods *podList, containers containermap.ContainerMap, alive sets.Set[string]) error {
	return devices.Start(klog.Background(), pods.GetActivePods, pods, containers, alive)
}

func stopDeviceManager(devices *devicemanager.ManagerImpl) error {
	return devices.Stop(klog.Background())
}

func runPluginManager(ctx context.Context, plugins pluginmanager.PluginManager, pods *podList) {
	plugins.Run(ctx, pods, ctx.Done())
}

func newPredicate(node func() *v1.Node, update func(*schedulerframework.NodeInfo, *lifecycle.PodAdmitAttributes) error) admitHandler {
	get := func(context.Context, bool) (*v1.Node, error) { return node(), nil }
	return lifecycle.NewPredicateAdmitHandler(get, lifecycle.NewAdmissionFailureHandlerStub(), update)
}

func attributes(pod *v1.Pod, others []*v1.Pod) *lifecycle.PodAdmitAttributes {
	return &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others, Operation: lifecycle.AddOperation}
}

func capacityOf(devices *devicemanager.ManagerImpl) (capacity, allocatable v1.ResourceList, forgotten []string) {
	return devices.GetCapacity(klog.Background())
}

func allocatableDevices(devices *devicemanager.ManagerImpl) devicemanager.ResourceDeviceInstances {
	return devices.GetAllocatableDevices(klog.Background())
}

func updateAllocatedDevices(devices *devicemanager.ManagerImpl) {
	devices.UpdateAllocatedDevices(klog.Background())
}

func runOptions(devices *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return devices.GetDeviceRunContainerOptions(context.Background(), pod, container)
}

func writeHealth(devices *devicemanager.ManagerImpl, pod *v1.Pod, status *v1.PodStatus) {
	devices.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
}

func writeDRAHealth(manager *dra.Manager, pod *v1.Pod, status *v1.PodStatus) {
	manager.UpdateAllocatedResourcesStatus(klog.Background(), pod, status)
}

func messageOf(health v1.ResourceHealth) string {
	if health.Message == nil {
		return ""
	}
	return *health.Message
}

func nodeGetter(get func(context.Context) (*v1.Node, error)) dra.GetNodeFunc {
	return get
}

func hintsOf(devices *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) map[string][]topologymanager.TopologyHint {
	return devices.GetTopologyHints(klog.Background(), pod, container, lifecycle.AddOperation)
}

func podResourcesProviders(pods *podList, devices deviceList) podresources.PodResourcesProviders {
	return podresources.PodResourcesProviders{
		Pods: pods, Devices: devices, Cpus: nothing{}, Memory: nothing{}, DynamicResources: nothing{},
	}
}

func (d deviceList) UpdateAllocatedDevices(klog.Logger) { d.update() }

func (d deviceList) GetAllocatableDevices(klog.Logger) []*podresourcesv1.ContainerDevices {
	return d.allocatable()
}

// nothing stands for the managers of what is no device.
type nothing struct{}

func (nothing) GetCPUs(*v1.Pod, *v1.Container) []int64 { return nil }

func (nothing) GetPodCPUs(string) []int64 { return nil }

func (nothing) GetAllocatableCPUs() []int64 { return nil }

func (nothing) GetMemory(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesv1.ContainerMemory {
	return nil
}

func (nothing) GetPodMemory(klog.Logger, string) []*podresourcesv1.ContainerMemory { return nil }

func (nothing) GetAllocatableMemory(klog.Logger) []*podresourcesv1.ContainerMemory { return nil }

func (nothing) GetDynamicResources(klog.Logger, *v1.Pod, *v1.Container) []*podresourcesv1.DynamicResource {
	return nil
}
