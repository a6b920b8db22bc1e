"""What an administrator applies: DaemonSet, kustomize base, Helm chart, or systemd unit, made of a backend's needs.

It does no I/O, and asks no backend.

`deployment_of` decides what the plugin's process must be given, and says why. The renderers put that into the words of
Kubernetes and of systemd. The command reads the files and asks the backend.
"""
