"""What an administrator applies: DaemonSet, kustomize base, or systemd unit, made of a backend's needs.

It does no I/O, and never asks a backend.

`deployment_of` decides what the plugin's process must be given, once, and says why. The renderers put that into the
words of Kubernetes and of systemd. The command reads the files and asks the backend.
"""
