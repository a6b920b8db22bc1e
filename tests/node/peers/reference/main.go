// The reference plugin: a device plugin as the plugins written in Go usually are, for the kit and the benchmarks to
// compare with.
//
// One socket with a fixed name in the kubelet's directory; fsnotify on that directory tells of a new kubelet.sock, and
// then the gRPC server is made anew and registers. A registration that fails is tried again after a pause. SIGHUP makes
// everything anew; SIGTERM ends it. Nothing here is meant to be better or worse than what is found in the field.
package main

import (
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// pause is how long a failed start rests before it is tried again.
const pause = 5 * time.Second

func main() {
	directory := flag.String("dir", api.DevicePluginPath, "the kubelet's directory of device plugins")
	resource := flag.String("resource", "example.com/reference", "the resource's name")
	count := flag.Int("count", 4, "the number of devices")
	node := flag.String("node", "/dev/null", "the device node that each device is")
	flag.Parse()

	events, err := watch(*directory)
	if err != nil {
		log.Fatalf("watch %s: %v", *directory, err)
	}
	defer events.Close()
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT)

	kubelet := filepath.Join(*directory, filepath.Base(api.KubeletSocket))
	socket := filepath.Join(*directory, strings.ReplaceAll(*resource, "/", "-")+".sock")
	plugin := newPlugin(*resource, *count, *node, socket, kubelet)
	for {
		var again <-chan time.Time
		if err := plugin.start(); err != nil {
			log.Printf("start: %v; once more in %s", err, pause)
			plugin.stop()
			again = time.After(pause)
		}
		if wait(events, signals, again, kubelet) {
			plugin.stop()
			return
		}
		plugin.stop()
	}
}

// watch returns the events of a directory.
func watch(directory string) (*fsnotify.Watcher, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	if err := watcher.Add(directory); err != nil {
		watcher.Close()
		return nil, err
	}
	return watcher, nil
}

// wait returns when the plugin must be started anew; true: when it must end.
func wait(watcher *fsnotify.Watcher, signals <-chan os.Signal, again <-chan time.Time, kubelet string) bool {
	for {
		select {
		case event := <-watcher.Events:
			if event.Name == kubelet && event.Has(fsnotify.Create) {
				log.Printf("%s was made: the kubelet has started", kubelet)
				return false
			}
		case err := <-watcher.Errors:
			log.Printf("fsnotify: %v", err)
		case <-again:
			return false
		case number := <-signals:
			log.Printf("signal %v", number)
			return number != syscall.SIGHUP
		}
	}
}
