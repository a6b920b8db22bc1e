"""Nodes and their plugins as the API server has them: read for commands, and cleaned of leftovers."""
