"""The conformance kit for device plugins: 75 scenarios of the kubelet contract, section 13, on a simulated kubelet."""
