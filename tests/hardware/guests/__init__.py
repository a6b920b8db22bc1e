"""The kinds of guests: one small file each, with a `Kind` of its name."""
