package main

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"sync/atomic"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/resourceupdates"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	kubecontainer "k8s.io/kubernetes/pkg/kubelet/container"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

// life is one life of a kubelet: the managers from their start to their end.
type life struct {
	devices   *devicemanager.ManagerImpl
	topology  topologymanager.Manager
	dra       *draLife // nil where there is no API server
	isNewNode bool     // there was no checkpoint: the kubelet sets the node's extended resources to 0
	over      atomic.Bool
	end       context.CancelFunc
	ended     <-chan struct{}
}

// newLife builds and starts the managers in the kubelet's order. The containers that ran when it began are what the
// container runtime would tell: pod uid -> names.
func newLife(s settings, pods *podList, running map[string][]string) (*life, error) {
	machine := numaNodes(s.numaNodes)
	topology, err := newTopologyManager(machine, s.policy, s.scope)
	if err != nil {
		return nil, err
	}
	devices, err := newDeviceManager(filepath.Join(s.pluginDir(), "kubelet.sock"), machine, topology)
	if err != nil {
		return nil, err
	}
	addHintProvider(topology, devices)
	containers, alive := containermap.NewContainerMap(), sets.New[string]()
	for uid, names := range running {
		for _, name := range names {
			id := uid + "/" + name
			containers.Add(uid, name, id)
			alive.Insert(id)
		}
	}
	isNewNode := devices.ShouldResetExtendedResourceCapacity()
	if err := startDeviceManager(devices, pods, containers, alive); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &life{devices: devices, topology: topology, isNewNode: isNewNode, end: cancel, ended: ctx.Done()}
	go l.tellOfHealth(devices.Updates())
	if s.apiServer != "" {
		if l.dra, err = newDRALife(ctx, s); err != nil {
			return nil, err
		}
		go l.tellOfHealth(l.dra.manager.Updates())
	}
	if s.watcher {
		plugins := pluginmanager.NewPluginManager(s.registryDir(), record.NewFakeRecorder(1<<16))
		plugins.AddHandler(registration.DevicePlugin, devices.GetWatcherHandler())
		setPeriod(plugins, s.period)
		if l.dra != nil {
			plugins.AddHandler(registration.DRAPlugin, l.dra.manager.GetWatcherHandler())
		}
		go runPluginManager(ctx, plugins, pods)
	}
	return l, nil
}

// stop is the device manager's own orderly end. A kubelet's process does not come to it when it is told to end.
func (l *life) stop() error {
	l.over.Store(true)
	l.end()
	return stopDeviceManager(l.devices)
}

func (l *life) isOver() bool { return l.over.Load() }

// tellOfHealth tells which pods the kubelet would write a new status of, because a device of theirs changed.
func (l *life) tellOfHealth(updates <-chan resourceupdates.Update) {
	for {
		select {
		case update := <-updates:
			tell(event{"event": "pods_affected", "uids": update.PodUIDs})
		case <-l.ended:
			return
		}
	}
}

// startContainer does what the kubelet does before each start of a container, and returns what the container runtime
// would be told.
func (l *life) startContainer(pod *v1.Pod, container *v1.Container) (event, error) {
	began := time.Now()
	options, err := runOptions(l.devices, pod, container)
	if err != nil {
		return nil, err
	}
	return event{"reply": reply(options), "ms": milliseconds(time.Since(began))}, nil
}

// age makes every plugin that is gone appear to have gone that much earlier.
func (l *life) age(by time.Duration) error {
	endpoints := reflect.ValueOf(l.devices).Elem().FieldByName("endpoints")
	if !endpoints.IsValid() {
		return errors.New("this device manager has no field endpoints")
	}
	for each := endpoints.MapRange(); each.Next(); {
		record := each.Value().FieldByName("e").Elem()
		stopped := record.Elem().FieldByName("stopTime")
		if !stopped.FieldByName("wall").IsZero() || !stopped.FieldByName("ext").IsZero() {
			setStopTime(record.UnsafePointer(), time.Now().Add(-by))
		}
	}
	return nil
}

//go:linkname setStopTime k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.(*endpointImpl).setStopTime
func setStopTime(endpoint unsafe.Pointer, t time.Time)

func reply(options *devicemanager.DeviceRunContainerOptions) event {
	envs, annotations := map[string]string{}, map[string]string{}
	mounts, devices, names := []event{}, []event{}, []string{}
	if options != nil {
		for _, env := range options.Envs {
			envs[env.Name] = env.Value
		}
		for _, annotation := range options.Annotations {
			annotations[annotation.Name] = annotation.Value
		}
		for _, mount := range options.Mounts {
			mounts = append(mounts, mountOf(mount))
		}
		for _, device := range options.Devices {
			devices = append(devices, event{
				"container_path": device.PathInContainer, "host_path": device.PathOnHost, "permissions": device.Permissions,
			})
		}
		for _, device := range options.CDIDevices {
			names = append(names, device.Name)
		}
	}
	return event{"envs": envs, "mounts": mounts, "devices": devices, "annotations": annotations, "cdi_devices": names}
}

func mountOf(mount kubecontainer.Mount) event {
	return event{"container_path": mount.ContainerPath, "host_path": mount.HostPath, "read_only": mount.ReadOnly}
}

func ids(instances devicemanager.ResourceDeviceInstances) map[string][]string {
	all := map[string][]string{}
	for name, devices := range instances {
		all[name] = sorted(devices)
	}
	return all
}

// listed is what is known of each device: its NUMA nodes.
func listed(instances devicemanager.ResourceDeviceInstances) map[string]map[string][]int64 {
	all := map[string]map[string][]int64{}
	for name, devices := range instances {
		all[name] = map[string][]int64{}
		for id, device := range devices {
			nodes := []int64{}
			for _, numa := range device.GetTopology().GetNodes() {
				nodes = append(nodes, numa.GetID())
			}
			all[name][id] = nodes
		}
	}
	return all
}

func numaNodes(count int) []numaNode {
	nodes := make([]numaNode, count)
	for i := range nodes {
		distances := make([]uint64, count)
		for j := range distances {
			distances[j] = 20
		}
		distances[i] = 10
		nodes[i] = numaNode{Id: i, Distances: distances}
	}
	return nodes
}
