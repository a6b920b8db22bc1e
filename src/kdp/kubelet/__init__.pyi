from .paths import KubeletPaths as KubeletPaths
from .watch import KubeletState as KubeletState
from .watch import KubeletView as KubeletView
from .watch import KubeletWatch as KubeletWatch
from .watch import look as look
