"""The tools of people, for a plugin, a node, or a cluster: the second house of kdp, which no plugin loads.

It reads a living plugin through the status document of that plugin.

`commands` has the commands of ``kdp`` that no container needs to serve devices (those are in `kdp.command`), `doctor`
the questions of ``kdp doctor``. `manifests` writes the objects that deploy a plugin, and `cluster` reads nodes and
plugins from the API server.
"""
