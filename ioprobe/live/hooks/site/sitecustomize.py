# mypy: ignore-errors
# Python imports this at start-up in every child of `ioprobe run`, because its folder comes first on PYTHONPATH.
# It must be readable by old interpreters, must never fail, and hands over to the sitecustomize that the user has.
import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not loaded yet at start-up


def _hook():
    if sys.version_info < (3, 10) or "IOPROBE_RUN" not in os.environ:
        return
    import importlib.util

    root = os.path.dirname(os.path.dirname(os.path.dirname(_here)))  # noqa: PTH120
    if importlib.util.find_spec("ioprobe") is None:
        # Another environment than ioprobe's own: lend this package, and nothing else from its environment.
        spec = importlib.util.spec_from_file_location(
            "ioprobe",
            os.path.join(root, "__init__.py"),  # noqa: PTH118
            submodule_search_locations=[root],
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules["ioprobe"] = module
        spec.loader.exec_module(module)
    from ioprobe.live.hooks.bootstrap import begin

    begin(os.environ["IOPROBE_RUN"])


def _without_us():
    return [p for p in sys.path if os.path.abspath(p or ".") != _here]  # noqa: PTH100


if __name__ == "sitecustomize":
    sys.path[:] = _without_us()
    try:
        _hook()
    except Exception:  # the job goes on without the probe; `ioprobe run` then says that nothing was seen
        pass

    # The user's own, if there is one; its errors are shown by the interpreter as always.
    _ours = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # noqa: F401
    except ImportError as _error:
        if _error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", _ours)
