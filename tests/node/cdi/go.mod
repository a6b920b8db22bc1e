// A module of its own: the packages of Kubernetes must not decide which version of CDI's library judges our files.
module kdp.example.com/cdi

go 1.24.0

require tags.cncf.io/container-device-interface v1.1.1

require (
	github.com/fsnotify/fsnotify v1.7.0 // indirect
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.19.0 // indirect
	tags.cncf.io/container-device-interface/specs-go v1.1.1 // indirect
)
