"""Without the extra there is nothing to collect; the apps are Flower's to load."""

from importlib.util import find_spec

collect_ignore_glob = ["app/*"] if find_spec("flwr") else ["*"]
