"""Device ids as names of the API; the names of drivers and slices.

The API takes DNS labels: at most 63 of ``a-z``, ``0-9`` and ``-``, with a letter or digit at both ends. What is one
stays as it is. Otherwise the name is the id in lower case with ``-`` for whatever does not fit, so that people
recognise it, and behind ``--`` a digest of the id, so that no two ids share a name:

============================ ======================================
device id                    name
============================ ======================================
``widget-0``                 ``widget-0``
``GPU-8f5c1a2e``             ``gpu-8f5c1a2e--za6f2axku5``
``0000:3b:00.0``             ``0000-3b-00-0--wthyddtomj``
``mlx5_0/3``                 ``mlx5-0-3--x2o5ckpv2d``
============================ ======================================
"""

from __future__ import annotations

import base64
import hashlib
import re

from ..errors import InvalidNameError
from ..model.names import check_resource_name

MAX_LABEL = 63
MAX_OBJECT_NAME = 253

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z")
_DRIVER = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_POOL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?([./][a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_DIGEST_LENGTH = 10
"""Letters and digits of a digest; of 10,000 ids in a pool, two share one with a probability of 1 in 20 million."""


def device_name(device_id: str) -> str:
    """Return the name of a device in the API; it depends on the id alone."""
    if len(device_id) <= MAX_LABEL and _LABEL.match(device_id) and "--" not in device_id:
        return device_id
    body = re.sub("[^a-z0-9]", "-", device_id.lower())
    if body.startswith("-"):
        body = f"x{body}"
    tail = f"--{_digest(device_id)}"
    return body[: MAX_LABEL - len(tail)] + tail


def _digest(text: str) -> str:
    return base64.b32encode(hashlib.sha256(text.encode()).digest()).decode().lower()[:_DIGEST_LENGTH]


def driver_name(resource: str) -> str:
    """Return the name of the driver of an extended resource: that of ``example.com/widget`` is ``widget.example.com``.

    Raises:
        InvalidNameError: It would be longer than 63 characters, or begin with a digit.
    """
    domain, _, name = check_resource_name(resource).partition("/")
    return check_driver_name(f"{name.lower().replace('_', '-')}.{domain}")


def check_driver_name(value: str) -> str:
    """Check the name of a DRA driver: a DNS name that is a CDI vendor as well, so it begins with a letter.

    Raises:
        InvalidNameError: The API server, the kubelet or CDI would refuse it.
    """
    if len(value) > MAX_LABEL or not _DRIVER.match(value):
        raise InvalidNameError(
            f"driver name {value!r}: must be a DNS name of at most {MAX_LABEL} lower-case letters, digits, '-' and '.' "
            "that begins with a letter; for example 'widget.example.com'"
        )
    return value


def check_pool_name(value: str) -> str:
    """Check the name of a pool that is no node's.

    Raises:
        InvalidNameError: It is not made of DNS names with ``/`` between them, or has more than 253 characters.
    """
    if len(value) > MAX_OBJECT_NAME or not _POOL.match(value):
        raise InvalidNameError(
            f"pool {value!r}: must be DNS names with '/' between them, at most 253 characters; for example 'fabric-a'"
        )
    return value


def slice_name(position: int, driver: str, pool: str) -> str:
    """Return the name of a pool's slice. The scheduler goes through the slices in the order of their names.

    Args:
        position: Its place among the pool's slices, below 16^5.
        driver: The driver's name.
        pool: The pool's name.
    """
    tail = f"-{_digest(f'{driver}/{pool}')}"  # driver a-b, pool c is not driver a, pool b-c
    name = f"{position:05x}-{driver}-{pool.replace('/', '.')}"
    return name[: MAX_OBJECT_NAME - len(tail)].rstrip("-.") + tail
