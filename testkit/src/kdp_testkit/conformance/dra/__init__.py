"""The conformance kit for DRA drivers: does a driver, in any language, do what kubelet and scheduler need of it?

The scenarios of the DRA contract, section 8, each a check with that section's number as its id. ``runner`` plays them
on a simulated kubelet and a simulated API server; what a check is and what comes of it are those of the kit for device
plugins.
"""
