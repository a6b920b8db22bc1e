from kdp_testkit import *
from kdp_testkit import __all__ as __all__
