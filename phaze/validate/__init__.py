"""Compare predicted training runs and kernels with measured ones."""

import sys

from phaze.base.callable_module import CallableModule

sys.modules[__name__].__class__ = CallableModule
