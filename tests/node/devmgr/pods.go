package main

import (
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// containerSpec is a container as far as devices are concerned.
type containerSpec struct {
	Name    string           `json:"name"`
	Limits  map[string]int64 `json:"limits"`
	Sidecar bool             `json:"sidecar"` // an init container that is restarted for ever
}

// podSpec is a pod as far as devices are concerned.
type podSpec struct {
	UID            string          `json:"uid"`
	Name           string          `json:"name"`
	Namespace      string          `json:"namespace"`
	InitContainers []containerSpec `json:"init_containers"`
	Containers     []containerSpec `json:"containers"`
}

func (p podSpec) object() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: types.UID(p.UID)},
		Spec:       v1.PodSpec{InitContainers: objects(p.InitContainers), Containers: objects(p.Containers)},
		Status:     v1.PodStatus{Phase: v1.PodPending},
	}
}

func objects(specs []containerSpec) []v1.Container {
	containers := make([]v1.Container, 0, len(specs))
	for _, spec := range specs {
		limits := v1.ResourceList{}
		for name, count := range spec.Limits {
			limits[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
		}
		c := v1.Container{Name: spec.Name, Resources: v1.ResourceRequirements{Limits: limits, Requests: limits}}
		if spec.Sidecar {
			always := v1.ContainerRestartPolicyAlways
			c.RestartPolicy = &always
		}
		containers = append(containers, c)
	}
	return containers
}

// inOrder returns all containers of a pod in the order of their allocation and of their start.
func inOrder(pod *v1.Pod) []*v1.Container {
	var all []*v1.Container
	for i := range pod.Spec.InitContainers {
		all = append(all, &pod.Spec.InitContainers[i])
	}
	for i := range pod.Spec.Containers {
		all = append(all, &pod.Spec.Containers[i])
	}
	return all
}

// podList stands for the kubelet's pod manager and its configuration sources.
type podList struct {
	mu       sync.Mutex
	pods     map[string]*v1.Pod
	statuses map[string]v1.PodStatus
	ready    bool // the API server has been heard
}

func (l *podList) put(pod *v1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pods[string(pod.UID)] = pod
}

func (l *podList) remove(uid string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.pods, uid)
	delete(l.statuses, uid)
}

func (l *podList) get(uid string) *v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.pods[uid]
}

func (l *podList) setStatus(uid string, status v1.PodStatus) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.statuses[uid] = status
}

// GetPodStatus is the status manager's.
func (l *podList) GetPodStatus(uid types.UID) (v1.PodStatus, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	status, isKnown := l.statuses[string(uid)]
	return status, isKnown
}

// GetPodByUID is the pod manager's.
func (l *podList) GetPodByUID(uid types.UID) (*v1.Pod, bool) {
	pod := l.get(string(uid))
	return pod, pod != nil
}

func (l *podList) setReady(ready bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready = ready
}

// except returns all pods but this one.
func (l *podList) except(uid string) []*v1.Pod {
	return slices.DeleteFunc(l.GetPods(), func(pod *v1.Pod) bool { return string(pod.UID) == uid })
}

// GetPods, GetActivePods and GetPodByName are what the pod-resources server asks for.
func (l *podList) GetPods() []*v1.Pod {
	l.mu.Lock()
	defer l.mu.Unlock()
	pods := make([]*v1.Pod, 0, len(l.pods))
	for _, pod := range l.pods {
		pods = append(pods, pod)
	}
	return pods
}

func (l *podList) GetActivePods() []*v1.Pod { return l.GetPods() }

func (l *podList) GetPodByName(namespace, name string) (*v1.Pod, bool) {
	for _, pod := range l.GetPods() {
		if pod.Namespace == namespace && pod.Name == name {
			return pod, true
		}
	}
	return nil, false
}

// AddSource and AllReady are config.SourcesReady.
func (l *podList) AddSource(string) {}

func (l *podList) AllReady() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ready
}
