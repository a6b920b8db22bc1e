//go:build !k134 && !k136

package main

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	podsv1alpha1 "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
	ratelimit "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	podsserver "k8s.io/kubernetes/pkg/kubelet/apis/pods"
	"k8s.io/kubernetes/pkg/kubelet/pod"
)

// servePodsAPI serves the pods API at the kubelet's place, as the kubelet does from 1.37 on.
func (n *node) servePodsAPI(ctx context.Context) error {
	path := filepath.Join(n.settings.root, "pods-api", "pods-api.sock")
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	pods := podsserver.NewPodsServer(podsserver.NewBroadcaster(ctx), podManager{pods: n.pods}, podStatuses{n.pods}, n.pods)
	limiter := rate.NewLimiter(podsserver.DefaultQPS, podsserver.DefaultBurstTokens)
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(ratelimit.LimiterUnaryServerInterceptor(limiter), podsserver.MetricsUnaryServerInterceptor),
		grpc.StreamInterceptor(podsserver.MetricsStreamServerInterceptor),
	)
	podsv1alpha1.RegisterPodsServer(server, pods)
	n.podsAPI = podTeller{pods}
	go server.Serve(listener)
	return nil
}

type podTeller struct{ server *podsserver.PodsServer }

func (t podTeller) updated(pod *v1.Pod, status v1.PodStatus, isAdded bool) {
	t.server.OnPodUpdated(klog.Background(), pod, status, isAdded)
}

func (t podTeller) removed(pod *v1.Pod) { t.server.OnPodRemoved(klog.Background(), pod) }

// podManager and podStatuses are as much of the kubelet's pod manager and status manager as the server asks for.
type podManager struct {
	pod.Manager
	pods *podList
}

func (m podManager) GetPods() []*v1.Pod { return m.pods.GetPods() }

func (m podManager) GetPodByUID(uid types.UID) (*v1.Pod, bool) { return m.pods.GetPodByUID(uid) }

type podStatuses struct{ *podList }
