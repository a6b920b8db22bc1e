"""The simulated kubelet's device manager: registrations, devices of containers, APIs, and one life of its process."""
