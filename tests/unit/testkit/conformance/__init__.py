"""The conformance kit without a kubelet: reports, artefacts, the list of checks."""
