// Empty: that it is here lets Go accept functions without a body, which go:linkname fills in.
