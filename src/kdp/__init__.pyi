from .daemon import run as run
from .daemon import serve as serve
from .errors import AllocationError as AllocationError
from .errors import ConfigurationError as ConfigurationError
from .errors import InvalidValueError as InvalidValueError
from .errors import KdpError as KdpError
from .errors import NotReady as NotReady
from .model.backend import Allocation as Allocation
from .model.backend import DeviceBackend as DeviceBackend
from .model.backend import Needs as Needs
from .model.backend import PreferRequest as PreferRequest
from .model.backend import Reporter as Reporter
from .model.claims import BindingConditions as BindingConditions
from .model.claims import Claim as Claim
from .model.claims import NetworkData as NetworkData
from .model.claims import RequestPolicy as RequestPolicy
from .model.claims import Taint as Taint
from .model.devices import Device as Device
from .model.devices import Health as Health
from .model.devices import Version as Version
from .model.edits import ContainerEdits as ContainerEdits
from .model.edits import DeviceNode as DeviceNode
from .model.edits import Hook as Hook
from .model.edits import Mount as Mount
from .model.health_policy import HealthPolicy as HealthPolicy
from .model.quantities import Quantity as Quantity

__version__: str
