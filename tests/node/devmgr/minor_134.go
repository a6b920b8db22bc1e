//go:build k134

package main

import (
	"context"
	_ "unsafe" // for go:linkname

	machine "github.com/google/cadvisor/info/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
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

// This file is Kubernetes 1.34: what differs between the minors is here and in its siblings, and nowhere else.

const minor = "1.34"

type numaNode = machine.Node

// admitHandler is one that a pod must pass.
type admitHandler interface {
	Admit(attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult
}

func admitTo(handler admitHandler, attributes *lifecycle.PodAdmitAttributes) lifecycle.PodAdmitResult {
	return handler.Admit(attributes)
}

// The exported constructor has the socket's path built in; this is the one that it calls.
//
//go:linkname newManagerImpl k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManagerImpl(string, []numaNode, topologymanager.Store) (*devicemanager.ManagerImpl, error)

func newDeviceManager(socket string, nodes []numaNode, store topologymanager.Store) (*devicemanager.ManagerImpl, error) {
	return newManagerImpl(socket, nodes, store)
}

func newTopologyManager(nodes []numaNode, policy, scope string) (topologymanager.Manager, error) {
	return topologymanager.NewManager(nodes, policy, scope, nil)
}

func addHintProvider(topology topologymanager.Manager, devices *devicemanager.ManagerImpl) {
	topology.AddHintProvider(devices)
}

func startDeviceManager(devices *devicemanager.ManagerImpl, pods *podList, containers containermap.ContainerMap, alive sets.Set[string]) error {
	return devices.Start(pods.GetActivePods, pods, containers, alive)
}

func stopDeviceManager(devices *devicemanager.ManagerImpl) error {
	return devices.Stop()
}

func runPluginManager(ctx context.Context, plugins pluginmanager.PluginManager, pods *podList) {
	plugins.Run(pods, ctx.Done())
}

func newPredicate(node func() *v1.Node, update func(*schedulerframework.NodeInfo, *lifecycle.PodAdmitAttributes) error) admitHandler {
	get := func() (*v1.Node, error) { return node(), nil }
	return lifecycle.NewPredicateAdmitHandler(get, lifecycle.NewAdmissionFailureHandlerStub(), update)
}

func attributes(pod *v1.Pod, others []*v1.Pod) *lifecycle.PodAdmitAttributes {
	return &lifecycle.PodAdmitAttributes{Pod: pod, OtherPods: others}
}

func capacityOf(devices *devicemanager.ManagerImpl) (capacity, allocatable v1.ResourceList, forgotten []string) {
	return devices.GetCapacity()
}

func allocatableDevices(devices *devicemanager.ManagerImpl) devicemanager.ResourceDeviceInstances {
	return devices.GetAllocatableDevices()
}

func updateAllocatedDevices(devices *devicemanager.ManagerImpl) {
	devices.UpdateAllocatedDevices()
}

func runOptions(devices *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) (*devicemanager.DeviceRunContainerOptions, error) {
	return devices.GetDeviceRunContainerOptions(pod, container)
}

func writeHealth(devices *devicemanager.ManagerImpl, pod *v1.Pod, status *v1.PodStatus) {
	devices.UpdateAllocatedResourcesStatus(pod, status)
}

func writeDRAHealth(manager *dra.Manager, pod *v1.Pod, status *v1.PodStatus) {
	manager.UpdateAllocatedResourcesStatus(pod, status)
}

func messageOf(v1.ResourceHealth) string { return "" }

func nodeGetter(get func(context.Context) (*v1.Node, error)) dra.GetNodeFunc {
	return func() (*v1.Node, error) { return get(context.Background()) }
}

func hintsOf(devices *devicemanager.ManagerImpl, pod *v1.Pod, container *v1.Container) map[string][]topologymanager.TopologyHint {
	return devices.GetTopologyHints(pod, container)
}

func podResourcesProviders(pods *podList, devices deviceList) podresources.PodResourcesProviders {
	return podresources.PodResourcesProviders{
		Pods: pods, Devices: devices, Cpus: nothing{}, Memory: nothing{}, DynamicResources: nothing{},
	}
}

func (d deviceList) UpdateAllocatedDevices() { d.update() }

func (d deviceList) GetAllocatableDevices() []*podresourcesv1.ContainerDevices {
	return d.allocatable()
}

// nothing stands for the managers of what is no device.
type nothing struct{}

func (nothing) GetCPUs(string, string) []int64 { return nil }

func (nothing) GetAllocatableCPUs() []int64 { return nil }

func (nothing) GetMemory(string, string) []*podresourcesv1.ContainerMemory { return nil }

func (nothing) GetAllocatableMemory() []*podresourcesv1.ContainerMemory { return nil }

func (nothing) GetDynamicResources(*v1.Pod, *v1.Container) []*podresourcesv1.DynamicResource {
	return nil
}

// The pods API is off, or not there.
func (n *node) servePodsAPI(context.Context) error { return nil }
