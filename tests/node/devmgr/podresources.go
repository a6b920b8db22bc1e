package main

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
	ratelimit "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

// servePodResources serves the pod-resources API at the kubelet's place, with the kubelet's limit of calls a second.
func (n *node) servePodResources(ctx context.Context) error {
	path := filepath.Join(n.settings.podResourcesDir(), "kubelet.sock")
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	limit := ratelimit.WithRateLimiter(ctx, "podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens)
	server := grpc.NewServer(limit)
	providers := podResourcesProviders(n.pods, deviceList{n})
	podresourcesv1.RegisterPodResourcesListerServer(server, podresources.NewV1PodResourcesServer(ctx, providers))
	go server.Serve(listener)
	return nil
}

// deviceList tells the pod-resources server of the devices; the rest of its interface differs between the minors.
type deviceList struct{ node *node }

// GetDevices tells which devices a container holds.
func (d deviceList) GetDevices(uid, container string) []*podresourcesv1.ContainerDevices {
	l, err := d.node.living()
	if err != nil {
		return nil
	}
	return entries(l.devices.GetDevices(uid, container))
}

func (d deviceList) update() {
	if l, err := d.node.living(); err == nil {
		updateAllocatedDevices(l.devices)
	}
}

func (d deviceList) allocatable() []*podresourcesv1.ContainerDevices {
	l, err := d.node.living()
	if err != nil {
		return nil
	}
	return entries(allocatableDevices(l.devices))
}

// entries are the kubelet's: one for each device, or one for each NUMA node of a device that has several.
func entries(instances devicemanager.ResourceDeviceInstances) []*podresourcesv1.ContainerDevices {
	var all []*podresourcesv1.ContainerDevices
	for name, devices := range instances {
		for id, device := range devices {
			if device.GetTopology() == nil {
				all = append(all, &podresourcesv1.ContainerDevices{ResourceName: name, DeviceIds: []string{id}})
				continue
			}
			for _, numa := range device.GetTopology().GetNodes() {
				topology := &podresourcesv1.TopologyInfo{Nodes: []*podresourcesv1.NUMANode{{ID: numa.GetID()}}}
				all = append(all, &podresourcesv1.ContainerDevices{ResourceName: name, DeviceIds: []string{id}, Topology: topology})
			}
		}
	}
	return all
}
