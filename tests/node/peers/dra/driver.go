// Prepare and Unprepare of the reference driver, in two ways.
//
// The plain one has a single spec for all devices, and remembers nothing. The careful one does what a driver in use does:
// a checkpoint says that a claim is begun, a spec of its own is written, the checkpoint says that it is prepared; a claim
// that is prepared gets the same answer, with its spec written again.

package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"os"
	"path/filepath"
	"sync"

	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const vendor = "reference.example.com/device"

// driver is what the helper calls.
type driver struct {
	name, cdi, device string
	checkpoint        *checkpoint
}

// spec and what it consists of are as CDI has them.
type spec struct {
	Version string   `json:"cdiVersion"`
	Kind    string   `json:"kind"`
	Devices []entity `json:"devices"`
}

type entity struct {
	Name  string `json:"name"`
	Edits edits  `json:"containerEdits"`
}

type edits struct {
	Env   []string     `json:"env"`
	Nodes []deviceNode `json:"deviceNodes"`
}

type deviceNode struct {
	Path string `json:"path"`
	Host string `json:"hostPath"`
}

func (d *driver) entity(name, device string) entity {
	return entity{Name: name, Edits: edits{
		Env:   []string{"REFERENCE=" + device},
		Nodes: []deviceNode{{Path: "/dev/" + device, Host: d.device}},
	}}
}

func (d *driver) write(file string, devices []entity) error {
	data, err := json.Marshal(spec{Version: "0.5.0", Kind: vendor, Devices: devices})
	if err != nil {
		return err
	}
	return replace(filepath.Join(d.cdi, file), data, false)
}

// describe writes the spec of all devices.
func (d *driver) describe(count int) error {
	var all []entity
	for number := range int64(count) {
		all = append(all, d.entity(deviceName(number), deviceName(number)))
	}
	return d.write(d.name+".json", all)
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	answers := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		answers[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return answers, nil
}

func (d *driver) prepare(item *resource.ResourceClaim) ([]kubeletplugin.Device, error) {
	var found []kubeletplugin.Device
	var own []entity
	prefix := ""
	if d.checkpoint != nil {
		prefix = string(item.UID) + "-"
	}
	for _, result := range item.Status.Allocation.Devices.Results {
		if result.Driver != d.name {
			continue
		}
		own = append(own, d.entity(prefix+result.Device, result.Device))
		found = append(found, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{vendor + "=" + prefix + result.Device},
		})
	}
	if d.checkpoint == nil {
		return found, nil
	}
	uid := string(item.UID)
	if err := d.checkpoint.begin(uid, item.Namespace, item.Name, found); err != nil {
		return nil, err
	}
	if err := d.write(uid+".json", own); err != nil {
		return nil, err
	}
	return found, d.checkpoint.complete(uid)
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	answers := map[types.UID]error{}
	for _, claim := range claims {
		answers[claim.UID] = d.undo(string(claim.UID))
	}
	return answers, nil
}

func (d *driver) undo(uid string) error {
	if d.checkpoint == nil {
		return nil
	}
	if err := os.Remove(filepath.Join(d.cdi, uid+".json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.checkpoint.forget(uid)
}

func (d *driver) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// checkpoint is what outlives the process: one file for all claims.
type checkpoint struct {
	file  string
	guard sync.Mutex

	Claims map[string]claim `json:"claims"`
}

type claim struct {
	Namespace string                 `json:"namespace"`
	Name      string                 `json:"name"`
	Complete  bool                   `json:"complete"`
	Devices   []kubeletplugin.Device `json:"devices"`
}

// begin says that a claim is begun, unless it is prepared.
func (c *checkpoint) begin(uid, namespace, name string, devices []kubeletplugin.Device) error {
	c.guard.Lock()
	defer c.guard.Unlock()
	if c.Claims[uid].Complete {
		return nil
	}
	c.Claims[uid] = claim{Namespace: namespace, Name: name, Devices: devices}
	return c.save()
}

// complete says that a claim is prepared.
func (c *checkpoint) complete(uid string) error {
	c.guard.Lock()
	defer c.guard.Unlock()
	now := c.Claims[uid]
	if now.Complete {
		return nil
	}
	now.Complete = true
	c.Claims[uid] = now
	return c.save()
}

func (c *checkpoint) forget(uid string) error {
	c.guard.Lock()
	defer c.guard.Unlock()
	if _, known := c.Claims[uid]; !known {
		return nil
	}
	delete(c.Claims, uid)
	return c.save()
}

func (c *checkpoint) save() error {
	data, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return replace(c.file, data, true)
}

// replace writes a file whole: whoever reads it finds the old one or the new one.
func replace(file string, data []byte, synced bool) error {
	draft, err := os.CreateTemp(filepath.Dir(file), ".draft-*")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	if _, err := draft.Write(data); err != nil {
		draft.Close()
		return err
	}
	if synced {
		if err := draft.Sync(); err != nil {
			draft.Close()
			return err
		}
	}
	if err := draft.Close(); err != nil {
		return err
	}
	if err := os.Chmod(draft.Name(), 0o644); err != nil {
		return err
	}
	return os.Rename(draft.Name(), file)
}
