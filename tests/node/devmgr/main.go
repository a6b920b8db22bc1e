// Command devmgr is the device side of a kubelet, without the rest of it: the kubelet's own device manager, topology
// manager, plugin watcher, admission predicate and pod-resources server, on any directory and without root. With an API
// server it is the DRA side as well.
//
// It is driven by JSON lines on its standard input and tells what happens in JSON lines on its standard output; the
// kubelet's log goes to the standard error. The lines are described in README.md, one folder up. It ends when its
// standard input does, and then without a farewell, as a kubelet's process does.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
)

// settings are what stays the same for the whole process.
type settings struct {
	root         string
	policy       string
	scope        string
	numaNodes    int
	featureGates string
	watcher      bool
	podResources bool
	look         time.Duration
	observe      bool
	apiServer    string
	wipingDelay  time.Duration
	period       time.Duration
}

func (s settings) pluginDir() string       { return filepath.Join(s.root, "device-plugins") }
func (s settings) registryDir() string     { return filepath.Join(s.root, "plugins_registry") }
func (s settings) podResourcesDir() string { return filepath.Join(s.root, "pod-resources") }

func parse() (settings, error) {
	var s settings
	flag.StringVar(&s.root, "root", "", "the kubelet's root directory (needed)")
	flag.StringVar(&s.policy, "topology-policy", "none", "none, best-effort, restricted or single-numa-node")
	flag.StringVar(&s.scope, "topology-scope", "container", "container or pod")
	flag.IntVar(&s.numaNodes, "numa-nodes", 2, "NUMA nodes of the machine")
	flag.StringVar(&s.featureGates, "feature-gates", "", "the kubelet's feature gates: A=true,B=false")
	flag.BoolVar(&s.watcher, "watcher", true, "run the plugin watcher")
	flag.BoolVar(&s.podResources, "pod-resources", true, "serve the pod-resources API")
	flag.DurationVar(&s.look, "look", time.Millisecond, "how often capacity and allocatable are looked at; 0: never")
	flag.BoolVar(&s.observe, "observe", false, "tell every call, and let each Register wait for its treatment")
	flag.DurationVar(&s.period, "watcher-period", time.Second, "how often the plugin manager looks for sockets to register")
	flag.StringVar(&s.apiServer, "api-server", "", "run the DRA manager as well, with this API server: a URL")
	flag.DurationVar(&s.wipingDelay, "wiping-delay", 30*time.Second, "how long a DRA driver may be gone before its slices are wiped")
	klog.InitFlags(nil)
	flag.Parse()
	if s.root == "" {
		return s, errors.New("-root is needed")
	}
	root, err := filepath.Abs(s.root)
	if err != nil {
		return s, err
	}
	s.root = root
	if s.featureGates != "" {
		if err := utilfeature.DefaultMutableFeatureGate.Set(s.featureGates); err != nil {
			return s, err
		}
	}
	for _, dir := range []string{s.pluginDir(), s.registryDir(), s.podResourcesDir()} {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return s, err
		}
	}
	return s, nil
}

func main() {
	s, err := parse()
	if err != nil {
		fmt.Fprintln(os.Stderr, "devmgr:", err)
		os.Exit(2)
	}
	n := newNode(s)
	if s.observe {
		n.observer = observe(filepath.Join(s.pluginDir(), "kubelet.sock"), n.tellCounted)
	}
	if s.podResources {
		if err := n.servePodResources(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "devmgr:", err)
			os.Exit(1)
		}
		if err := n.servePodsAPI(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, "devmgr:", err)
			os.Exit(1)
		}
	}
	tell(event{"event": "ready", "kubelet": minor, "pid": os.Getpid()})
	listen(os.Stdin, n.obey)
}
