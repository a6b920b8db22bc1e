package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// event is one line of output, before its time is stamped on it.
type event map[string]any

var output sync.Mutex

// tell writes one line.
func tell(e event) {
	e["t"] = float64(time.Now().UnixNano()) / 1e9
	line, err := json.Marshal(e)
	if err != nil {
		line = fmt.Appendf(nil, `{"event":"broken","error":%q}`, err)
	}
	output.Lock()
	defer output.Unlock()
	os.Stdout.Write(append(line, '\n'))
}

// request is one line of input; which fields matter depends on what is to be done.
type request struct {
	ID        any                 `json:"id"`
	Do        string              `json:"do"`
	Pod       podSpec             `json:"pod"`
	UID       string              `json:"uid"`
	Container string              `json:"container"`
	Start     bool                `json:"start"`
	Ready     bool                `json:"ready"`
	Running   map[string][]string `json:"running"`
	Shown     map[string]int64    `json:"shown"`
	Seconds   float64             `json:"seconds"`
	Object    *v1.Pod             `json:"object"` // for the DRA manager, as the API has it
	Active    []string            `json:"active"` // pods that the DRA manager still has

	// What the observer is asked for.
	Call    int64  `json:"call"`
	Stream  int64  `json:"stream"`
	Path    string `json:"path"`
	Method  string `json:"method"`
	Payload []byte `json:"payload"`
	Code    int    `json:"code"`
	Text    string `json:"text"`
	Hang    bool   `json:"hang"`
	Mute    bool   `json:"mute"`
	Paused  bool   `json:"paused"`
}

// listen reads requests to the end of the input. Each is answered on its own, so that one that waits for a plugin does
// not keep the others waiting: a caller that wants an order waits for the answers.
func listen(from io.Reader, obey func(request) (event, error)) {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), 64<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			tell(event{"event": "answer", "id": nil, "error": "not a request: " + err.Error()})
			continue
		}
		go func() {
			answer, err := obey(r)
			if answer == nil {
				answer = event{}
			}
			answer["event"], answer["id"] = "answer", r.ID
			if err != nil {
				answer["error"] = err.Error()
			}
			tell(answer)
		}()
	}
}
