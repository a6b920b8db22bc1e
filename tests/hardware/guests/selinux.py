"""A guest whose kernel has SELinux instead of AppArmor, still without a policy."""

from __future__ import annotations

from typing import Final

from ..vm import Kind

__all__ = ["SELINUX"]

SELINUX: Final = Kind(name="selinux", memory=768, kernel_arguments=("security=selinux", "selinux=1"))
