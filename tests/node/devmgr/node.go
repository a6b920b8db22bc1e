package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/features"
)

// node is the machine: its pods, and the kubelet's life that is going on now, if any.
type node struct {
	settings settings
	pods     *podList

	mu    sync.Mutex
	life  *life
	shown map[string]int64 // the capacity of devices that the node object shows, which forgets no resource

	admission sync.Mutex // the kubelet admits one pod after another

	podsAPI podsAPI // nil where the kubelet does not serve it

	counting sync.Mutex // what is counted is told before anybody counts again
	observer *observer  // nil where nobody wants to know of the calls
}

// podsAPI is what the status manager tells the server of the pods API.
type podsAPI interface {
	updated(pod *v1.Pod, status v1.PodStatus, isAdded bool)
	removed(pod *v1.Pod)
}

// tellOf stands for the status manager, which gives a pod its phase.
func (n *node) tellOf(pod *v1.Pod, phase v1.PodPhase, isAdded bool) {
	status := v1.PodStatus{Phase: phase}
	n.pods.setStatus(string(pod.UID), status)
	if n.podsAPI != nil {
		n.podsAPI.updated(pod, status, isAdded)
	}
}

func (n *node) tellOfEnd(pod *v1.Pod) {
	if n.podsAPI != nil {
		n.podsAPI.removed(pod)
	}
}

func newNode(s settings) *node {
	return &node{settings: s, pods: &podList{pods: map[string]*v1.Pod{}, statuses: map[string]v1.PodStatus{}}, shown: map[string]int64{}}
}

func (n *node) living() (*life, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == nil {
		return nil, errors.New("the kubelet is not running")
	}
	return n.life, nil
}

// obey does what one line asks for.
func (n *node) obey(r request) (event, error) {
	if n.observer != nil {
		if answer, err, isDone := n.observer.obey(r); isDone {
			return answer, err
		}
	}
	if r.Do == "start" {
		return nil, n.start(r)
	}
	l, err := n.living()
	if err != nil {
		return nil, err
	}
	if l.dra != nil {
		if answer, err, isDone := l.dra.obey(r); isDone {
			return answer, err
		}
	}
	switch r.Do {
	case "stop":
		n.mu.Lock()
		n.life = nil
		n.mu.Unlock()
		return nil, l.stop()
	case "ready":
		n.pods.setReady(r.Ready)
		return nil, nil
	case "count":
		return n.count(l), nil
	case "devices":
		return event{"devices": listed(allocatableDevices(l.devices))}, nil
	case "admit":
		return n.admit(l, r.Pod.object(), r.Start)
	case "start_container":
		return n.startContainer(l, r.UID, r.Container)
	case "remove":
		if pod := n.pods.get(r.UID); pod != nil {
			n.pods.remove(r.UID)
			n.tellOfEnd(pod)
		}
		return nil, nil
	case "hints":
		return n.hints(l, r.Pod.object()), nil
	case "health":
		return n.health(l, r.UID)
	case "age":
		return nil, l.age(time.Duration(r.Seconds * float64(time.Second)))
	case "checkpoint":
		text, err := os.ReadFile(filepath.Join(n.settings.pluginDir(), "kubelet_internal_checkpoint"))
		if err != nil {
			return nil, err
		}
		return event{"checkpoint": json.RawMessage(text)}, nil
	}
	return nil, fmt.Errorf("there is nothing called %q to do", r.Do)
}

// start begins a kubelet's life, as a kubelet's process does.
func (n *node) start(r request) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return errors.New("the kubelet is running already")
	}
	maps.Copy(n.shown, r.Shown)
	n.pods.setReady(r.Ready)
	if n.observer != nil {
		n.observer.listenDelay = time.Duration(r.Seconds * float64(time.Second))
	}
	l, err := newLife(n.settings, n.pods, r.Running)
	if err != nil {
		return err
	}
	n.life = l
	if l.isNewNode {
		for name := range n.shown {
			n.shown[name] = 0
		}
	}
	tell(event{"event": "started", "socket": filepath.Join(n.settings.pluginDir(), "kubelet.sock")})
	if n.settings.look > 0 {
		go n.watch(l)
	}
	return nil
}

// watch tells each change of what the node would report.
func (n *node) watch(l *life) {
	var last event
	look := func() {
		n.counting.Lock()
		defer n.counting.Unlock()
		now := n.count(l)
		if !reflect.DeepEqual(now, last) {
			last = maps.Clone(now)
			now["event"] = "count"
			tell(now)
		}
	}
	for range time.Tick(n.settings.look) {
		if l.isOver() {
			return
		}
		look()
	}
}

// tellCounted tells an event with what is counted at that moment.
func (n *node) tellCounted(e event) {
	n.counting.Lock()
	defer n.counting.Unlock()
	if l, err := n.living(); err == nil {
		maps.Copy(e, n.count(l))
	}
	tell(e)
}

// count asks as the node's status update does. It has that one's side effect: a resource whose plugin has been gone for
// more than five minutes is forgotten.
func (n *node) count(l *life) event {
	capacity, allocatable, forgotten := capacityOf(l.devices)
	n.mu.Lock()
	defer n.mu.Unlock()
	maps.Copy(n.shown, numbers(capacity))
	for _, name := range forgotten {
		n.shown[name] = 0
	}
	return event{"capacity": numbers(capacity), "allocatable": numbers(allocatable), "shown": maps.Clone(n.shown)}
}

// object is the node as the API server would know it after a status update now.
func (n *node) object(l *life) *v1.Node {
	plenty := func() v1.ResourceList {
		return v1.ResourceList{
			v1.ResourceCPU:    *resource.NewQuantity(1000, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(1<<40, resource.BinarySI),
			v1.ResourcePods:   *resource.NewQuantity(10000, resource.DecimalSI),
		}
	}
	allocatable := n.count(l)["allocatable"].(map[string]int64)
	status := v1.NodeStatus{Capacity: plenty(), Allocatable: plenty()}
	n.mu.Lock()
	defer n.mu.Unlock()
	for name, shown := range n.shown {
		// A resource that the device manager does not know keeps what the node object showed last.
		free, isKnown := allocatable[name]
		if !isKnown {
			free = shown
		}
		status.Capacity[v1.ResourceName(name)] = *resource.NewQuantity(shown, resource.DecimalSI)
		status.Allocatable[v1.ResourceName(name)] = *resource.NewQuantity(free, resource.DecimalSI)
	}
	return &v1.Node{Status: status}
}

// admit goes the kubelet's way: topology hints and Allocate, then the predicate, then the start of each container. A
// pod that is refused is gone.
func (n *node) admit(l *life, pod *v1.Pod, start bool) (event, error) {
	n.admission.Lock()
	defer n.admission.Unlock()
	n.tellOf(pod, v1.PodPending, true)
	n.pods.put(pod)
	began := time.Now()
	verdict := admitTo(l.topology, attributes(pod, n.pods.except(string(pod.UID))))
	if verdict.Admit {
		fits := newPredicate(func() *v1.Node { return n.object(l) }, l.devices.UpdatePluginResources)
		verdict = admitTo(fits, attributes(pod, n.pods.except(string(pod.UID))))
	}
	answer := event{"admitted": verdict.Admit, "ms": milliseconds(time.Since(began))}
	if !verdict.Admit {
		n.pods.remove(string(pod.UID))
		n.tellOf(pod, v1.PodFailed, false)
		n.tellOfEnd(pod)
		answer["reason"], answer["message"] = verdict.Reason, verdict.Message
		return answer, nil
	}
	containers := map[string]event{}
	failed := false
	for _, container := range inOrder(pod) {
		given := event{}
		if start && !failed {
			var err error
			if given, err = l.startContainer(pod, container); err != nil {
				given, failed = event{"error": err.Error()}, true
			}
		}
		given["devices"] = ids(l.devices.GetDevices(string(pod.UID), container.Name))
		containers[container.Name] = given
	}
	answer["containers"] = containers
	if !failed { // what is not started runs since before
		n.tellOf(pod, v1.PodRunning, false)
	}
	return answer, nil
}

func (n *node) startContainer(l *life, uid, name string) (event, error) {
	pod := n.pods.get(uid)
	if pod == nil {
		return nil, fmt.Errorf("there is no pod %q", uid)
	}
	for _, container := range inOrder(pod) {
		if container.Name == name {
			given, err := l.startContainer(pod, container)
			if err != nil {
				return event{"failure": err.Error()}, nil
			}
			given["devices"] = ids(l.devices.GetDevices(uid, name))
			return given, nil
		}
	}
	return nil, fmt.Errorf("pod %q has no container %q", uid, name)
}

// hints are what the device manager tells the topology manager of each container.
func (n *node) hints(l *life, pod *v1.Pod) event {
	all := map[string]map[string][]event{}
	for _, container := range inOrder(pod) {
		all[container.Name] = map[string][]event{}
		for name, hints := range hintsOf(l.devices, pod, container) {
			for _, hint := range hints {
				var nodes []int
				if hint.NUMANodeAffinity != nil {
					nodes = hint.NUMANodeAffinity.GetBits()
				}
				all[container.Name][name] = append(all[container.Name][name], event{"nodes": nodes, "preferred": hint.Preferred})
			}
		}
	}
	return event{"hints": all}
}

// health is what the kubelet writes into the pod's status of the devices that its containers hold.
func (n *node) health(l *life, uid string) (event, error) {
	pod := n.pods.get(uid)
	if pod == nil {
		return nil, fmt.Errorf("there is no pod %q", uid)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ResourceHealthStatus) {
		return event{"health": event{}}, nil // where the kubelet asks for it, it looks at the gate
	}
	status := &v1.PodStatus{}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{Name: container.Name})
	}
	writeHealth(l.devices, pod, status)
	all := map[string]map[string]map[string]string{}
	for _, container := range status.ContainerStatuses {
		all[container.Name] = map[string]map[string]string{}
		for _, res := range container.AllocatedResourcesStatus {
			all[container.Name][string(res.Name)] = map[string]string{}
			for _, device := range res.Resources {
				all[container.Name][string(res.Name)][string(device.ResourceID)] = string(device.Health)
			}
		}
	}
	return event{"health": all}, nil
}

func numbers(list v1.ResourceList) map[string]int64 {
	counts := map[string]int64{}
	for name, quantity := range list {
		counts[string(name)] = quantity.Value()
	}
	return counts
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
