"""The process around the plugins: settings, signals, logs, probes, and exit codes.

It knows no device, and never reads ``sys.argv``.

`run` is a process's entry and decides about the process; `serve` runs the same inside somebody's asyncio program, which
decides about the process itself. Only `run` and the command ``kdp run`` touch signals, the logging configuration and
``os.environ``.

Exit codes of `run` and ``kdp run``:

==== ===========================================================================
code meaning
==== ===========================================================================
0    asked to stop (SIGTERM or SIGINT), also when a hook of the vendor still hangs
1    internal failure: a bug of kdp; the log has the traceback
2    the configuration, a target, a parameter or a limit of the process is wrong
3    the plugin directory is unlinked under us: only a new process can help
==== ===========================================================================
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .process import run as run
    from .serving import serve as serve
