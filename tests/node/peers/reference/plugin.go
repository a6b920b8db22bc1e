// The server of the reference plugin, and its registration.

package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// plugin serves one resource with a fixed number of devices.
type plugin struct {
	api.UnimplementedDevicePluginServer

	resource string
	node     string
	socket   string
	kubelet  string
	devices  []*api.Device

	server *grpc.Server
	ending chan struct{}
}

func newPlugin(resource string, count int, node, socket, kubelet string) *plugin {
	made := &plugin{resource: resource, node: node, socket: socket, kubelet: kubelet}
	for number := range count {
		made.devices = append(made.devices, &api.Device{ID: fmt.Sprintf("dev-%d", number), Health: api.Healthy})
	}
	return made
}

// start listens, serves and registers; who gets an error calls stop.
func (p *plugin) start() error {
	p.ending = make(chan struct{})
	p.server = grpc.NewServer()
	api.RegisterDevicePluginServer(p.server, p)
	if err := os.Remove(p.socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	listener, err := net.Listen("unix", p.socket)
	if err != nil {
		return err
	}
	go func(server *grpc.Server) { _ = server.Serve(listener) }(p.server)
	return p.register()
}

// stop ends the streams, then the server, and removes the socket.
func (p *plugin) stop() {
	if p.server == nil {
		return
	}
	close(p.ending)
	p.server.Stop()
	p.server = nil
	_ = os.Remove(p.socket)
}

// register tells the kubelet where the plugin listens.
func (p *plugin) register() error {
	connection, err := grpc.NewClient("unix://"+p.kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = api.NewRegistrationClient(connection).Register(context.Background(), &api.RegisterRequest{
		Version:      api.Version,
		Endpoint:     filepath.Base(p.socket),
		ResourceName: p.resource,
		Options:      &api.DevicePluginOptions{},
	})
	return err
}

// GetDevicePluginOptions says that the optional calls are not wanted.
func (p *plugin) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

// ListAndWatch sends the devices once: their health never changes.
func (p *plugin) ListAndWatch(_ *api.Empty, stream api.DevicePlugin_ListAndWatchServer) error {
	if err := stream.Send(&api.ListAndWatchResponse{Devices: p.devices}); err != nil {
		return err
	}
	select {
	case <-p.ending:
	case <-stream.Context().Done():
	}
	return nil
}

// Allocate gives each container the device node and the ids in a variable.
func (p *plugin) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	known := map[string]bool{}
	for _, device := range p.devices {
		known[device.ID] = true
	}
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		for _, id := range container.DevicesIds {
			if !known[id] {
				return nil, fmt.Errorf("there is no device %q of %s", id, p.resource)
			}
		}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{
			Envs:    map[string]string{"REFERENCE_DEVICES": strings.Join(container.DevicesIds, ",")},
			Devices: []*api.DeviceSpec{{ContainerPath: p.node, HostPath: p.node, Permissions: "rw"}},
		})
	}
	return answer, nil
}
