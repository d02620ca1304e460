"""A stand-in for Hydra: it composes conf/ and takes overrides, and no more."""

import functools
import sys
from pathlib import Path
from types import SimpleNamespace

import yaml


def main(config_path, config_name, version_base=None):
    def decorated(function):
        @functools.wraps(function)
        def started():
            folder = Path(sys.argv[0]).parent / config_path
            if not folder.is_dir():
                raise SystemExit(f"Primary config directory not found: {folder}")
            values = yaml.safe_load((folder / f"{config_name}.yaml").read_text())
            for entry in values.pop("defaults"):
                for group, choice in entry.items():
                    path = folder / group / f"{choice}.yaml"
                    values[group] = yaml.safe_load(path.read_text())
            for word in sys.argv[1:]:
                key, _, text = word.partition("=")
                *groups, name = key.split(".")
                inside = values
                for group in groups:
                    inside = inside.setdefault(group, {})
                inside[name] = yaml.safe_load(text)
            return function(_spaces(values))

        return started

    return decorated


def _spaces(values):
    if not isinstance(values, dict):
        return values
    return SimpleNamespace(**{name: _spaces(value) for name, value in values.items()})
