package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"
	_ "unsafe" // for go:linkname

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// observer tells every call between this kubelet and its plugins, and does to one what a test asks for.
//
// It sits in gRPC's own interceptors inside the process, so that between kubelet and plugin there is nothing that is not
// there on a node: the sockets, the directory and the connections are the kubelet's. Each call of a plugin waits until it
// is said what becomes of it; everything else goes its way and is told.
type observer struct {
	told        func(event)   // tells an event together with what the device manager counts now
	socket      string        // kubelet.sock
	listenDelay time.Duration // between bind(2) and listen(2) of kubelet.sock

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan request       // calls of plugins that wait for their treatment
	streams map[int64]*watched           // open ListAndWatch streams
	muted   map[string]bool              // sockets at which ListAndWatch must not be called
	plugins map[string]*grpc.ClientConn  // the device manager's newest connection to each socket
	ours    map[int64]context.CancelFunc // calls that the test makes over these connections
}

const (
	pluginService  = "/v1beta1.DevicePlugin/"
	watcherService = "/pluginregistration.Registration/"

	podResourcesService = "/v1.PodResourcesLister/"
)

// These add to what every client and every server of the process does.
//
//go:linkname addGlobalDialOptions google.golang.org/grpc/internal.AddGlobalDialOptions
var addGlobalDialOptions any

//go:linkname addGlobalServerOptions google.golang.org/grpc/internal.AddGlobalServerOptions
var addGlobalServerOptions any

// listenFunc is what package net calls for listen(2).
//
//go:linkname listenFunc net.listenFunc
var listenFunc func(int, int) error

// nanotime is the clock that Python's time.monotonic reads.
//
//go:linkname nanotime runtime.nanotime
func nanotime() int64

func now() float64 { return float64(nanotime()) / 1e9 }

// observe begins to tell; it must be called before the kubelet makes a client or a server.
func observe(socket string, told func(event)) *observer {
	o := &observer{
		told:    told,
		socket:  socket,
		waiting: map[int64]chan request{},
		streams: map[int64]*watched{},
		muted:   map[string]bool{},
		plugins: map[string]*grpc.ClientConn{},
		ours:    map[int64]context.CancelFunc{},
	}
	addGlobalDialOptions.(func(...grpc.DialOption))(
		grpc.WithChainUnaryInterceptor(o.call), grpc.WithChainStreamInterceptor(o.watch),
	)
	addGlobalServerOptions.(func(...grpc.ServerOption))(grpc.ChainUnaryInterceptor(o.registered))
	listenFunc = o.listen
	return o
}

// listen tells when kubelet.sock is listened at, and lets it wait for that as long as a test wants.
func (o *observer) listen(fd, backlog int) error {
	address, err := syscall.Getsockname(fd)
	if unix, is := address.(*syscall.SockaddrUnix); err != nil || !is || unix.Name != o.socket {
		return syscall.Listen(fd, backlog)
	}
	time.Sleep(o.listenDelay)
	tell(event{"event": "listening", "m": now()})
	return syscall.Listen(fd, backlog)
}

func (o *observer) next() int64 {
	o.last++
	return o.last
}

// obey does what one line asks for; false: it is nothing for the observer.
func (o *observer) obey(r request) (event, error, bool) {
	switch r.Do {
	case "treat":
		o.mu.Lock()
		defer o.mu.Unlock()
		waiting, is := o.waiting[r.Call]
		if !is {
			return nil, fmt.Errorf("no call has the number %d", r.Call), true
		}
		delete(o.waiting, r.Call)
		waiting <- r
	case "drop", "pause":
		o.mu.Lock()
		stream, is := o.streams[r.Stream]
		o.mu.Unlock()
		if !is {
			return nil, fmt.Errorf("no stream has the number %d", r.Stream), true
		}
		if r.Do == "drop" {
			stream.cancel()
		}
		stream.pause(r.Do == "pause" && r.Paused)
	case "call":
		answer, err := o.callFor(r)
		return answer, err, true
	case "cancel":
		o.mu.Lock()
		defer o.mu.Unlock()
		if cancel, is := o.ours[r.Call]; is {
			cancel()
		}
	default:
		return nil, nil, false
	}
	return nil, nil, true
}

// -- Register -------------------------------------------------------------------------------------------------------

func (o *observer) registered(ctx context.Context, asked any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if strings.HasPrefix(info.FullMethod, podResourcesService) {
		return o.asked(ctx, asked, info, handle)
	}
	wanted, is := asked.(*api.RegisterRequest)
	if !is {
		return handle(ctx, asked)
	}
	number, treatment := o.wait()
	began := now()
	tell(event{"event": "register", "call": number, "m": began, "request": encoded(wanted)})
	answer, err := o.treat(ctx, treatment, wanted, handle)
	tell(event{"event": "registered", "call": number, "m": now(), "seconds": now() - began, "failure": failure(err)})
	return answer, err
}

func (o *observer) wait() (int64, chan request) {
	treatment := make(chan request, 1)
	o.mu.Lock()
	defer o.mu.Unlock()
	number := o.next()
	o.waiting[number] = treatment
	return number, treatment
}

// asked lets a call of the pod-resources API be refused, or its reply be longer, as it is said.
func (o *observer) asked(ctx context.Context, asked any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	name := strings.TrimPrefix(info.FullMethod, podResourcesService)
	number, treatment := o.wait()
	tell(event{"event": "asked", "call": number, "method": name})
	answer, err := func() (any, error) {
		select {
		case how := <-treatment:
			if how.Code != 0 {
				return nil, status.Error(codes.Code(how.Code), how.Text)
			}
			answer, err := handle(ctx, asked)
			if err == nil {
				err = proto.UnmarshalOptions{Merge: true}.Unmarshal(how.Payload, answer.(proto.Message))
			}
			return answer, err
		case <-ctx.Done():
			return nil, errOver
		}
	}()
	tell(event{"event": "told", "m": now(), "method": name, "failure": failure(err)})
	return answer, err
}

func (o *observer) treat(ctx context.Context, treatment chan request, asked *api.RegisterRequest, handle grpc.UnaryHandler) (any, error) {
	var how request
	select {
	case how = <-treatment:
	case <-ctx.Done():
		return nil, errOver
	}
	if how.Hang {
		<-ctx.Done()
		return nil, errOver
	}
	if how.Code != 0 {
		return nil, status.Error(codes.Code(how.Code), how.Text)
	}
	o.mu.Lock()
	o.muted[how.Path] = how.Mute
	o.mu.Unlock()
	answer, err := handle(ctx, asked)
	if err == nil && how.Seconds > 0 {
		select {
		case <-time.After(time.Duration(how.Seconds * float64(time.Second))):
		case <-ctx.Done():
		}
	}
	if err == nil && ctx.Err() != nil {
		err = errOver
	}
	return answer, err
}

var errOver = status.Error(codes.Canceled, "the call ended before its answer")

// -- the calls of the kubelet ----------------------------------------------------------------------------------------

func (o *observer) call(ctx context.Context, method string, asked, answer any, connection *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	if ctx.Value(oursKey{}) != nil || !strings.HasPrefix(method, pluginService) && !strings.HasPrefix(method, watcherService) {
		return invoke(ctx, method, asked, answer, connection, options...)
	}
	path, name := connection.Target(), method[strings.LastIndex(method, "/")+1:]
	o.mu.Lock()
	number := o.next()
	if strings.HasPrefix(method, pluginService) {
		o.plugins[path] = connection
	}
	o.mu.Unlock()
	began := now()
	tell(event{"event": "call", "call": number, "m": began, "path": path, "method": name, "request": encoded(asked)})
	err := invoke(ctx, method, asked, answer, connection, options...)
	ended := event{
		"event": "answered", "call": number, "m": now(), "path": path, "method": name, "request": encoded(asked),
		"seconds": now() - began, "failure": failure(err),
	}
	if err == nil {
		ended["answer"] = encoded(answer)
	}
	tell(ended)
	return err
}

// watched is one ListAndWatch stream.
type watched struct {
	grpc.ClientStream
	observer *observer
	number   int64
	path     string
	cancel   context.CancelFunc
	unread   event // the list that the device manager has, but has not put into its table yet

	mu   sync.Mutex
	open chan struct{} // closed: lists may be read
}

func (o *observer) watch(ctx context.Context, desc *grpc.StreamDesc, connection *grpc.ClientConn, method string, begin grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if method != pluginService+"ListAndWatch" {
		return begin(ctx, desc, connection, method, options...)
	}
	path := connection.Target()
	ctx, cancel := context.WithCancel(ctx)
	s := &watched{observer: o, path: path, cancel: cancel, open: make(chan struct{})}
	close(s.open)
	o.mu.Lock()
	isMuted := o.muted[path]
	o.plugins[path] = connection
	s.number = o.next()
	o.streams[s.number] = s
	o.mu.Unlock()
	if isMuted { // this kubelet means to call, and never comes to it
		<-ctx.Done()
		return nil, ctx.Err()
	}
	tell(event{"event": "stream", "stream": s.number, "m": now(), "path": path})
	stream, err := begin(ctx, desc, connection, method, options...)
	if err != nil {
		s.ended(err)
		return nil, err
	}
	s.ClientStream = stream
	return s, nil
}

// RecvMsg is called by the device manager when it has done all that the list before was reason for.
func (s *watched) RecvMsg(list any) error {
	if s.unread != nil {
		s.observer.told(s.unread)
		s.unread = nil
	}
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	select {
	case <-open:
	case <-s.Context().Done():
	}
	err := s.ClientStream.RecvMsg(list)
	if err != nil {
		s.ended(err)
		return err
	}
	s.unread = event{"event": "list", "stream": s.number, "m": now(), "path": s.path, "list": encoded(list)}
	return nil
}

func (s *watched) pause(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.open:
		if paused {
			s.open = make(chan struct{})
		}
	default:
		if !paused {
			close(s.open)
		}
	}
}

func (s *watched) ended(err error) {
	s.observer.mu.Lock()
	delete(s.observer.streams, s.number)
	s.observer.mu.Unlock()
	tell(event{"event": "stream_ended", "stream": s.number, "m": now(), "path": s.path, "failure": failure(err)})
}

// -- calls of the test's own -----------------------------------------------------------------------------------------

type oursKey struct{}

// callFor calls a plugin over the device manager's own connection.
func (o *observer) callFor(r request) (event, error) {
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), oursKey{}, true))
	defer cancel()
	if r.Seconds > 0 {
		timed, stop := context.WithTimeout(ctx, time.Duration(r.Seconds*float64(time.Second)))
		defer stop()
		ctx = timed
	}
	o.mu.Lock()
	connection := o.plugins[r.Path]
	o.ours[r.Call] = cancel
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		delete(o.ours, r.Call)
		o.mu.Unlock()
	}()
	if connection == nil {
		return nil, errors.New("the device manager has no connection to " + r.Path)
	}
	var answer []byte
	err := connection.Invoke(ctx, r.Method, r.Payload, &answer, grpc.ForceCodec(bytesCodec{}))
	return event{"answer": answer, "failure": failure(err)}, nil
}

// bytesCodec lets messages pass as the bytes that they are.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "" }

func (bytesCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte{}, data...)
	return nil
}

func encoded(message any) []byte {
	data, err := proto.Marshal(message.(proto.Message))
	if err != nil {
		panic(err)
	}
	return data
}

// failure is a status as a JSON object; nil for success. A stream that ends cleanly ends with io.EOF, which is OK.
func failure(err error) any {
	if err == nil {
		return nil
	}
	if err.Error() == "EOF" {
		return event{"code": int(codes.OK), "text": "EOF"}
	}
	return event{"code": int(status.Code(err)), "text": status.Convert(err).Message()}
}
