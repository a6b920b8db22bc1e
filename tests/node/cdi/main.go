// Command cdi-validate judges CDI spec files as a container runtime does, with the reference library that containerd, CRI-O
// and podman use. For each directory it prints one JSON line: the devices that resolve, the errors by file, and for each
// file the version it declares beside the lowest that would do.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

type verdict struct {
	Devices  []string            `json:"devices"`
	Errors   map[string][]string `json:"errors"`
	Versions map[string][]string `json:"versions"`
}

func judge(directories string) (said *verdict, err error) {
	said = &verdict{Devices: []string{}, Errors: map[string][]string{}, Versions: map[string][]string{}}
	defer func() {
		if crash := recover(); crash != nil { // a null among device nodes, mounts, hooks or network interfaces
			said.Errors["crash"] = []string{fmt.Sprint(crash)}
		}
	}()
	cache, err := cdi.NewCache(cdi.WithSpecDirs(strings.Split(directories, ":")...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	_ = cache.Refresh() // what it complains of is in the errors by file
	said.Devices = append(said.Devices, cache.ListDevices()...)
	for file, errors := range cache.GetErrors() {
		for _, err := range errors {
			said.Errors[filepath.Base(file)] = append(said.Errors[filepath.Base(file)], err.Error())
		}
	}
	for _, vendor := range cache.ListVendors() {
		for _, spec := range cache.GetVendorSpecs(vendor) {
			needed, err := cdi.MinimumRequiredVersion(spec.Spec)
			if err != nil {
				return nil, err
			}
			said.Versions[filepath.Base(spec.GetPath())] = []string{spec.Version, needed}
		}
	}
	return said, nil
}

func main() {
	for _, directory := range os.Args[1:] {
		said, err := judge(directory)
		if err == nil {
			err = json.NewEncoder(os.Stdout).Encode(said)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
