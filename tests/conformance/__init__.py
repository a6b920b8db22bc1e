"""The conformance kit, proved: good plugins pass, and every check fails a plugin that is broken for it."""
