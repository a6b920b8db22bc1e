// Mellanox' k8s-rdma-shared-dev-plugin on a machine without RDMA: the module's own packages, unchanged, called in the
// order of its own command.
//
// One call is left out: the kernel is not asked for the namespace mode of its RDMA subsystem, because a machine without
// one cannot answer, and the command would end there.
package main

import (
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/Mellanox/k8s-rdma-shared-dev-plugin/pkg/resources"
)

func main() {
	manager := resources.NewResourceManager(os.Getenv("KDP_RDMA_CONFIG"), false)
	for _, step := range []func() error{
		manager.ReadConfig,
		manager.ValidateConfigs,
		manager.DiscoverHostDevices,
		manager.InitServers,
		manager.StartAllServers,
	} {
		if err := step(); err != nil {
			log.Fatal(err)
		}
	}
	stopUpdates := manager.PeriodicUpdate()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)
	<-signals
	stopUpdates()
	_ = manager.StopAllServers()
}
