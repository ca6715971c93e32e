"""Imported by every Python that a member starts: begins counting, then hands on.

This directory is first in PYTHONPATH. Python imports one `sitecustomize` only, so the one that
it would have found without this directory is imported from here, and its faults are shown as
Python shows them. Every Python reads this file, so it is written for 2.7 and 3, prints nothing
and never fails by itself.
"""

import os
import sys


def _begin():  # type: () -> None
    """Load the instrument from its folder, under a name that no program uses."""
    directory = os.environ.get("SLURM_COLLOC_PROGRESS")
    if not directory or sys.version_info < (3, 8) or not os.path.isdir(directory):
        return
    import _frozen_importlib
    import _frozen_importlib_external

    name = "_slurm_colloc_instrument"
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = _frozen_importlib_external.spec_from_file_location(
        name, os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    if spec is None or spec.loader is None:
        return
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    __import__(name + ".imports", fromlist=["install"]).install()


def _hand_on():  # type: () -> None
    """Import the next sitecustomize as if this one were not there."""
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if sys.version_info < (3, 4):
        import imp

        del sys.modules["sitecustomize"]
        imp.load_module("sitecustomize", *imp.find_module("sitecustomize", path))
        return
    import _frozen_importlib
    import _frozen_importlib_external

    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        # site.py takes this for "there is none".
        raise ImportError("No module named 'sitecustomize'", name="sitecustomize")
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _begin()
except Exception:
    # Whatever it is, the program is not to notice.
    pass
_hand_on()
