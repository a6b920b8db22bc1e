"""Container Device Interface (CDI): the specs that runtimes read from ``/etc/cdi`` and ``/var/run/cdi``.

It knows neither the kubelet nor claims.

`CdiSpec` and its parts are the model, checked on construction and written in the lowest version that carries it;
`render_device` makes a device's part of it from `kdp.ContainerEdits`; `CdiDirectory` writes files that a runtime never
sees half; `cdi_kind` and `cdi_device_name` name resources and devices as CDI can. `check_spec` judges anybody's spec as
runtimes do, and `CdiRegistry` says of a device on the node whether a runtime can give it to a container.

Source of all rules: the Container Device Interface specification 1.1.0 (tags.cncf.io/container-device-interface,
SPEC.md), and what containerd 1.7 and 2.x do with it (docs/how-to/use-cdi.md).
"""

from __future__ import annotations

from ..startup import lazy_imports

with lazy_imports(globals()):
    from .directory import CdiDirectory as CdiDirectory
    from .model import CdiDevice as CdiDevice
    from .model import CdiEdits as CdiEdits
    from .model import CdiMount as CdiMount
    from .model import CdiNetDevice as CdiNetDevice
    from .model import CdiNode as CdiNode
    from .model import CdiSpec as CdiSpec
    from .parse import check_spec as check_spec
    from .parse import parse_spec as parse_spec
    from .registry import CDI_DIRECTORIES as CDI_DIRECTORIES
    from .registry import CdiRegistry as CdiRegistry
    from .render import cdi_device_name as cdi_device_name
    from .render import cdi_kind as cdi_kind
    from .render import render_device as render_device
