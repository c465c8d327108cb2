"""HTML pages that need nothing else: a template named page.html in a package, and the style that all of them share."""

from importlib.resources import files
from string import Template


def filled(package: str, **parts: str) -> str:
    style = files("trtllm_kvfix").joinpath("pages.css").read_text(encoding="utf-8")
    template = files(package).joinpath("page.html").read_text(encoding="utf-8")
    return Template(template).substitute(style=style, **parts)
