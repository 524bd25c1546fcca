"""Prints the manifests of a deployment, for ``kubectl apply -f -``.

    python deploy/render.py | kubectl apply -f -
    python deploy/render.py mine.yaml | kubectl apply -f -

Values are those of values.yaml, and in their place those of the given file. Jinja2 and PyYAML come
with evenstep[service].
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jinja2
import yaml

HERE = Path(__file__).parent


def render(own: Path | None = None) -> str:
    """The manifests, as one stream of YAML.

    Args:
        own: a file of values to use in the place of those of values.yaml.

    Raises:
        SystemExit: a value has a name that no template knows, or a file is not there.
    """
    values: dict[str, Any] = yaml.safe_load((HERE / "values.yaml").read_text())
    given = (yaml.safe_load(own.read_text()) or {}) if own else {}
    if unknown := sorted(given.keys() - values.keys()):
        sys.exit(f"{own} has {', '.join(unknown)}; values are: {', '.join(values)}")
    for key, value in given.items():
        values[key] = {**values[key], **value} if isinstance(values[key], dict) else value
    for key in ("job", "train"):
        file = (own.parent if own and key in given else HERE) / values[key]
        if not file.is_file():
            sys.exit(f"{key}: there is no file {file}")
        values[key] = file.read_text()
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    names = sorted(templates.list_templates(filter_func=lambda name: name[0] != "_"))
    return "---\n".join(templates.get_template(name).render(values) + "\n" for name in names)


if __name__ == "__main__":
    print(render(Path(sys.argv[1]) if sys.argv[1:] else None), end="")
