// The reference DRA driver: a driver as those written in Go are, on the upstream helper, for the benchmarks to compare
// with.
//
// Its devices are all one device node. It publishes them when it starts, and again with another revision of the first one
// at SIGHUP; SIGTERM ends it. Nothing here is meant to be better or worse than what is found in the field: see driver.go
// for the two ways of preparing a claim.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	resource "k8s.io/api/resource/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// options are what the command line says.
type options struct {
	driver, node, kubeconfig, plugins, cdi, device string

	count, each int
	qps         float64
	careful     bool
}

func main() {
	var o options
	flag.StringVar(&o.driver, "driver", "reference.example.com", "the driver's name")
	flag.StringVar(&o.node, "node", "node0", "the node's name")
	flag.StringVar(&o.kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the API server")
	flag.StringVar(&o.plugins, "plugins", kubeletplugin.KubeletPluginsDir, "the kubelet's directory of plugins")
	flag.StringVar(&o.cdi, "cdi", "/var/run/cdi", "where container runtimes find specs")
	flag.StringVar(&o.device, "device", "/dev/null", "the device node that each device is")
	flag.IntVar(&o.count, "count", 8, "the number of devices")
	flag.IntVar(&o.each, "each", resource.ResourceSliceMaxDevicesWithAdvancedFeatures, "the devices of a slice")
	flag.Float64Var(&o.qps, "qps", 0, "requests a second; 0: what client-go allows, negative: no limit")
	flag.BoolVar(&o.careful, "careful", false, "keep a checkpoint, and write a spec for each claim")
	flag.Parse()
	if err := run(o); err != nil {
		log.Fatal(err)
	}
}

func run(o options) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)

	client, err := connect(o.kubeconfig, float32(o.qps))
	if err != nil {
		return err
	}
	directory := filepath.Join(o.plugins, o.driver)
	for _, each := range []string{directory, o.cdi} {
		if err := os.MkdirAll(each, 0o755); err != nil {
			return err
		}
	}
	served := &driver{name: o.driver, cdi: o.cdi, device: o.device}
	if o.careful {
		served.checkpoint = &checkpoint{file: filepath.Join(directory, "checkpoint.json"), Claims: map[string]claim{}}
	} else if err := served.describe(o.count); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, served,
		kubeletplugin.DriverName(o.driver),
		kubeletplugin.NodeName(o.node),
		kubeletplugin.KubeClient(client),
		kubeletplugin.PluginDataDirectoryPath(directory),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	for revision := int64(0); ; revision++ {
		pools := map[string]resourceslice.Pool{o.node: {Slices: slices(o.count, o.each, revision)}}
		if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
			return err
		}
		select {
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

func connect(config string, qps float32) (kubernetes.Interface, error) {
	found, err := clientcmd.BuildConfigFromFlags("", config)
	if err != nil {
		return nil, err
	}
	found.QPS = qps
	return kubernetes.NewForConfig(found)
}

// slices returns the devices, so many in each slice.
func slices(count, each int, revision int64) []resourceslice.Slice {
	var made []resourceslice.Slice
	for number := range count {
		if number%each == 0 {
			made = append(made, resourceslice.Slice{})
		}
		last := &made[len(made)-1]
		last.Devices = append(last.Devices, described(int64(number), revision))
	}
	return made
}

// described returns what a device says of itself: as much as the driver of a GPU has it say.
func described(number, revision int64) resource.Device {
	if number > 0 {
		revision = 0
	}
	integer := func(value int64) resource.DeviceAttribute { return resource.DeviceAttribute{IntValue: &value} }
	text := func(value string) resource.DeviceAttribute { return resource.DeviceAttribute{StringValue: &value} }
	version := func(value string) resource.DeviceAttribute { return resource.DeviceAttribute{VersionValue: &value} }
	return resource.Device{
		Name: deviceName(number),
		Attributes: map[resource.QualifiedName]resource.DeviceAttribute{
			"architecture":          text("Ampere"),
			"brand":                 text("Reference"),
			"cudaComputeCapability": version("8.0.0"),
			"driverVersion":         version("580.65.6"),
			"index":                 integer(number),
			"productName":           text("REFERENCE A100-SXM4-40GB"),
			"revision":              integer(revision),
			"type":                  text("gpu"),
			"uuid":                  text(fmt.Sprintf("GPU-8f5c2a10-1111-2222-3333-%012d", number)),
		},
		Capacity: map[resource.QualifiedName]resource.DeviceCapacity{"memory": {Value: memory}},
	}
}

var memory = quantity.MustParse("40Gi")

func deviceName(number int64) string { return fmt.Sprintf("w%d", number) }
