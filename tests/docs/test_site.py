"""The site builds strictly and without the network, and a name without documentation is found."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest
from docs.pages import DOCS, ROOT

pytest.importorskip("mkdocs", reason="the site needs its tools: pip install 'asyncsgd[docs]', or make docs")
pytest.importorskip("mkdocstrings", reason="the site needs its tools: pip install 'asyncsgd[docs]', or make docs")


def build(config, site):
    """Run MkDocs where nothing outside can be reached; its exit code and words."""
    nowhere = "http://127.0.0.1:9"
    quiet = {"NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere, "no_proxy": ""}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


class Assets(HTMLParser):
    """What a page loads: scripts, styles, pictures, frames."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag in ("script", "img", "iframe", "source"):
            self.found.append(given.get("src"))
        elif tag == "link" and given.get("rel") in ("stylesheet", "preconnect", "icon", "preload", "dns-prefetch"):
            self.found.append(given.get("href"))


def test_the_site_builds_strictly_and_stands_alone(tmp_path):
    """One test for all of it, because building takes a while."""
    code, words = build(ROOT / "mkdocs.yml", tmp_path)
    assert code == 0, words
    assert_nothing_from_elsewhere(tmp_path)
    assert_everything_has_its_place(tmp_path)
    # So that the search works in a page that was opened by double-click:
    assert (tmp_path / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = {")


def assert_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assets = Assets()
        assets.feed(page.read_text(encoding="utf-8"))
        outside = [url for url in assets.found if url and re.match(r"(https?:)?//", url)]
        assert not outside, f"{page.relative_to(site)} loads {outside}"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def assert_everything_has_its_place(site):
    about = (site / "design.html").read_text(encoding="utf-8")
    for record in (DOCS / "decisions").glob("0*.md"):
        assert f"decisions/{record.stem}.html" in about
    users = (site / "users" / "engineer.html").read_text(encoding="utf-8")
    for guide in (DOCS / "guides").glob("*.md"):
        assert f"guides/{guide.stem}.html" in users


def test_undocumented_names_and_broken_links_fail(tmp_path):
    """A site with one page: nearly every public name is missing from it, and its link leads nowhere."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# One page\n\n[there](nowhere.md)\n\n::: asyncsgd.simulate\n")
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    config = config[: config.index("\nnav:")] + "\nnav:\n  - Home: index.md\n"
    config = config.replace("docs_dir: docs", f"docs_dir: {docs}").replace("paths: [src]", f"paths: ['{ROOT}/src']")
    config = config.replace("docs/site/", f"{DOCS}/site/")
    (tmp_path / "mkdocs.yml").write_text(config)
    code, words = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert code != 0
    assert "nowhere.md" in words
    assert "asyncsgd.train is not in the API reference" in words
    assert "asyncsgd.simulate is not" not in words
