from .process import run as run
from .serving import serve as serve
