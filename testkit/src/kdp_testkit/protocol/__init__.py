"""What passes between the simulated kubelet and a plugin: connections, messages, and the kubelet's checks of them."""
