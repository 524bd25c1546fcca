"""Prints the manifests of a deployment, for ``kubectl apply -f -``.

    python deploy/render.py | kubectl apply -f -
    python deploy/render.py mine.yaml | kubectl apply -f -

Values are those of values.yaml, and in their place those of the given file. Jinja2 and PyYAML come
with evenstep[service].
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import yaml

HERE = Path(__file__).parent


def render(given: Mapping[str, Any], folder: Path = HERE) -> str:
    """The manifests, as one stream of YAML.

    Args:
        given: values to use in the place of those of values.yaml.
        folder: where paths in `given` begin.

    Raises:
        SystemExit: no template knows a value, or a file is not there.
    """
    values: dict[str, Any] = yaml.safe_load((HERE / "values.yaml").read_text())
    if unknown := given.keys() - values.keys():
        sys.exit(f"there is no value {', '.join(sorted(unknown))}; values are {', '.join(values)}")
    for key, value in given.items():
        values[key] = {**values[key], **value} if isinstance(values[key], dict) else value
    for key in ("job", "train"):
        file = (folder if key in given else HERE) / values[key]
        if not file.is_file():
            sys.exit(f"{key}: there is no file {file}")
        values[key] = file.read_text()
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = [name for name in templates.list_templates() if name.endswith(".yaml.j2")]
    texts = [templates.get_template(name).render(values).strip() for name in names]
    return "\n---\n".join(text for text in texts if text)


if __name__ == "__main__":
    own = Path(sys.argv[1]) if sys.argv[1:] else None
    print(render(yaml.safe_load(own.read_text()) or {}, own.parent) if own else render({}))
