"""The simulated kubelet's device manager: registrations, devices of containers, its APIs, and one life of its process."""
