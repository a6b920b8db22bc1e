"""What the kernel tells of devices and directories that change: netlink and inotify."""

from __future__ import annotations
