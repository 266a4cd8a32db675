"""What mkdocs.yml cannot say: pages from outside docs/, links to files of the repository, and the explorer.

In the repository a page links to other files by their relative paths. On the site such a link leads to the page that is
made of the file, or to the file at the repository's address.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from site_api import api_pages
from site_commands import commands_page

ROOT = Path(__file__).resolve().parents[2]
REPOSITORY = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Homepage"]
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "cpu-kernels.md": "src/emcaps/routing/numba_kernels/README.md",
    "examples.md": "examples/README.md",
    "gpu-kernels.md": "src/emcaps/routing/triton_kernels/README.md",
    "model-card.md": "src/emcaps/weights/README.md",
    "results.md": "results/README.md",
    "routing.md": "src/emcaps/routing/README.md",
}
"""Pages of the site that are files outside docs/."""
QUICK = ("--quick",) if os.environ.get("EMCAPS_SITE") == "quick" else ()
"""With EMCAPS_SITE=quick the explorer has fewer pictures, which take seconds less to render: for tests."""
EXPLORER_PAGE = """---
hide: [navigation, toc]
---

# See it route

<p><a href="explorer.html">Open the explorer on a page of its own.</a></p>
<iframe class="explorer" src="explorer.html" title="The explorer: a trained network and its routing"></iframe>
"""
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"\]\(([^()\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add the pages that are not in docs/: other pages of the repository, the command line and the API."""
    pages = {page: (ROOT / path).read_text(encoding="utf-8") for page, path in ELSEWHERE.items()}
    pages |= {"commands.md": commands_page(), "see-it-route.md": EXPLORER_PAGE, **api_pages()}
    for page, text in pages.items():
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    return site_links(markdown, page.file.src_uri)


def on_post_build(config: MkDocsConfig) -> None:
    file = str(Path(config.site_dir) / "explorer.html")
    subprocess.run([sys.executable, "-m", "emcaps", "explore", "--out", file, "--no-open", *QUICK], check=True)


def site_links(markdown: str, page: str) -> str:
    """The text of a page with links of the site in place of those of the file that it is made of."""
    parts = FENCED.split(markdown)
    parts[::2] = [LINK.sub(lambda link: f"]({site_link(link[1], page)})", part) for part in parts[::2]]
    return "".join(parts)


def site_link(target: str, page: str) -> str:
    """Where a link of the page leads on the site; a link to nothing stays as it is, for mkdocs to complain about."""
    path, hash_sign, anchor = target.partition("#")
    if not path or ":" in path:
        return target
    folder = posixpath.dirname(ELSEWHERE.get(page, f"docs/{page}"))
    path = posixpath.normpath(posixpath.join(folder, path))
    other = {file: name for name, file in ELSEWHERE.items()}.get(path)
    if other is None and path.startswith("docs/") and path != "docs/README.md":
        other = path.removeprefix("docs/")
    if other is not None:
        return posixpath.relpath(other, posixpath.dirname(page) or ".") + hash_sign + anchor
    if not (ROOT / path).exists():
        return target
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}{hash_sign}{anchor}"
