// Asks go-gpuallocator's best-effort policy, on topologies and questions that come as JSON on stdin.
//
// Its types of links are internal, so this is compiled inside a copy of its repository:
//
//	git clone https://github.com/NVIDIA/go-gpuallocator && cd go-gpuallocator
//	mkdir ask && cp .../benchmarks/gpuallocator/main.go ask/ && go build -o gpuallocator-ask ./ask
//
// in:  {"count": 8, "links": [[0, 1, [5, 7]], ...], "cases": [[available, required, size], ...]}    sets are bit masks
// out: one line for each case: the chosen set as a mask (0: none), and the nanoseconds it took
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/NVIDIA/go-gpuallocator/gpuallocator"
	"github.com/NVIDIA/go-gpuallocator/internal/links"
)

type question struct {
	Count int                 `json:"count"`
	Links [][]json.RawMessage `json:"links"`
	Cases [][3]int            `json:"cases"`
}

func main() {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	gpus := make([]*gpuallocator.Device, asked.Count)
	for i := range gpus {
		gpus[i] = &gpuallocator.Device{Index: i, Links: map[int][]gpuallocator.P2PLink{}}
	}
	for _, link := range asked.Links {
		var a, b int
		var kinds []uint
		for i, into := range []any{&a, &b, &kinds} {
			if err := json.Unmarshal(link[i], into); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
		for _, kind := range kinds {
			gpus[a].Links[b] = append(gpus[a].Links[b], gpuallocator.P2PLink{GPU: gpus[b], Type: links.P2PLinkType(kind)})
			gpus[b].Links[a] = append(gpus[b].Links[a], gpuallocator.P2PLink{GPU: gpus[a], Type: links.P2PLinkType(kind)})
		}
	}
	policy := gpuallocator.NewBestEffortPolicy()
	for _, held := range asked.Cases {
		available, required := of(gpus, held[0]), of(gpus, held[1])
		begun := time.Now()
		chosen := policy.Allocate(available, required, held[2])
		took := time.Since(begun)
		mask := 0
		for _, gpu := range chosen {
			if gpu != nil {
				mask |= 1 << gpu.Index
			}
		}
		fmt.Println(mask, took.Nanoseconds())
	}
}

func of(gpus []*gpuallocator.Device, mask int) []*gpuallocator.Device {
	var chosen []*gpuallocator.Device
	for i, gpu := range gpus {
		if mask>>i&1 == 1 {
			chosen = append(chosen, gpu)
		}
	}
	return chosen
}
