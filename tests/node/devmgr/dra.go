package main

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"
	"unsafe"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager"
)

const nodeName = "node0"

// draLife is the DRA manager in one life of a kubelet. It is its sources of configuration as well (config.SourcesReady),
// which are ready only while a test has it reconcile: the manager's own look, once a minute, would come when it likes.
type draLife struct {
	ctx     context.Context
	manager *dra.Manager

	mu      sync.Mutex
	active  []*v1.Pod
	isReady bool
}

// newDRALife builds and starts the DRA manager as the kubelet's container manager does.
func newDRALife(ctx context.Context, s settings) (*draLife, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.apiServer, QPS: -1})
	if err != nil {
		return nil, err
	}
	manager, err := dra.NewManager(klog.Background(), client, s.root)
	if err != nil {
		return nil, err
	}
	// The kubelet asks its lister: what is not there is not found by either.
	getNode := func(ctx context.Context) (*v1.Node, error) {
		return client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	}
	d := &draLife{ctx: ctx, manager: manager}
	if err := manager.Start(ctx, d.activePods, nodeGetter(getNode), d); err != nil {
		return nil, err
	}
	// No driver is there yet that could be gone.
	setDuration(d.drivers(), "wipingDelay", s.wipingDelay)
	return d, nil
}

// setPeriod sets how often the plugin manager looks for what the plugin watcher has seen; it must not run yet.
func setPeriod(plugins pluginmanager.PluginManager, period time.Duration) {
	reconciler := reflect.ValueOf(plugins).Elem().FieldByName("reconciler").Elem()
	setDuration(reconciler.Elem(), "loopSleepDuration", period)
}

// setDuration sets a field past the compiler.
func setDuration(of reflect.Value, field string, to time.Duration) {
	*(*time.Duration)(unsafe.Pointer(of.FieldByName(field).UnsafeAddr())) = to
}

// obey does what one line asks of the DRA manager; isDone: it was for it. What the kubelet would write into a pod's event
// is no error of ours: it comes back as "refused".
func (d *draLife) obey(r request) (answer event, err error, isDone bool) {
	switch r.Do {
	case "prepare":
		answer, err = d.prepare(r.Object)
	case "unprepare":
		if refused := d.manager.UnprepareResources(d.ctx, r.Object); refused != nil {
			answer = event{"refused": refused.Error()}
		}
	case "reconcile":
		d.reconcile(r.Active)
	case "drivers":
		answer = event{"drivers": d.registered()}
	case "dra_health":
		answer = event{"health": d.health(r.Object)}
	default:
		return nil, nil, false
	}
	return answer, err, true
}

// prepare is what the kubelet does when it makes a pod's sandbox, and then for each of its containers.
func (d *draLife) prepare(pod *v1.Pod) (event, error) {
	if err := d.manager.PrepareResources(d.ctx, pod); err != nil {
		return event{"refused": err.Error()}, nil
	}
	given := map[string][]string{}
	for _, container := range inOrder(pod) {
		info, err := d.manager.GetResources(pod, container)
		if err != nil {
			return nil, fmt.Errorf("container %s: %w", container.Name, err)
		}
		given[container.Name] = []string{}
		for _, device := range info.CDIDevices {
			given[container.Name] = append(given[container.Name], device.Name)
		}
	}
	return event{"cdi_ids": given}, nil
}

// health is what the kubelet writes into a pod's status: container -> claim -> resource -> health and message.
func (d *draLife) health(pod *v1.Pod) map[string]map[string]map[string][2]string {
	status := v1.PodStatus{}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, v1.ContainerStatus{Name: container.Name})
	}
	writeDRAHealth(d.manager, pod, &status)
	all := map[string]map[string]map[string][2]string{}
	for _, container := range status.ContainerStatuses {
		claims := map[string]map[string][2]string{}
		for _, each := range container.AllocatedResourcesStatus {
			resources := map[string][2]string{}
			for _, resource := range each.Resources {
				resources[string(resource.ResourceID)] = [2]string{string(resource.Health), messageOf(resource)}
			}
			claims[string(each.Name)] = resources
		}
		all[container.Name] = claims
	}
	return all
}

// reconcile is what the kubelet does once a minute: these pods are those that it still has.
func (d *draLife) reconcile(active []string) {
	d.mu.Lock()
	d.active, d.isReady = nil, true
	for _, uid := range active {
		d.active = append(d.active, &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid)}})
	}
	d.mu.Unlock()
	reconcileLoop(d.manager, d.ctx)
	d.mu.Lock()
	d.isReady = false
	d.mu.Unlock()
}

func (d *draLife) activePods() []*v1.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.active
}

func (d *draLife) AddSource(string) {}

func (d *draLife) AllReady() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isReady
}

// registered is which instances of each driver there are, oldest first.
func (d *draLife) registered() map[string][]event {
	drivers := d.drivers()
	lock := (*sync.RWMutex)(unsafe.Pointer(drivers.FieldByName("mutex").UnsafeAddr()))
	lock.RLock()
	defer lock.RUnlock()
	all := map[string][]event{}
	for each := drivers.FieldByName("store").MapRange(); each.Next(); {
		for i := range each.Value().Len() {
			instance := each.Value().Index(i).Elem()
			all[each.Key().String()] = append(all[each.Key().String()], event{
				"endpoint":  instance.FieldByName("DRAPlugin").Elem().FieldByName("endpoint").String(),
				"connected": instance.FieldByName("connected").Bool(),
			})
		}
	}
	return all
}

// drivers is the table of drivers.
func (d *draLife) drivers() reflect.Value {
	return reflect.ValueOf(d.manager.GetWatcherHandler()).Elem()
}

//go:linkname reconcileLoop k8s.io/kubernetes/pkg/kubelet/cm/dra.(*Manager).reconcileLoop
func reconcileLoop(manager *dra.Manager, ctx context.Context)
