"""The site builds strictly and without the network, and a name without documentation is found."""

import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from importlib import import_module

import pytest
from docs.pages import DOCS, ROOT
from report import browser

pytest.importorskip("mkdocs", reason="the site needs its tools: pip install 'asyncsgd[docs]', or make docs")
pytest.importorskip("mkdocstrings", reason="the site needs its tools: pip install 'asyncsgd[docs]', or make docs")

pytestmark = pytest.mark.docs


def build(config, site):
    """Run MkDocs where nothing outside can be reached; its exit code and words."""
    nowhere = "http://127.0.0.1:9"
    quiet = {"NO_MKDOCS_2_WARNING": "1", "http_proxy": nowhere, "https_proxy": nowhere, "no_proxy": ""}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)],
        cwd=ROOT,
        env={**os.environ, **quiet},
        capture_output=True,
        encoding="utf-8",
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


def test_the_site_builds_strictly_and_stands_alone(tmp_path, tmp_path_factory):
    """One test for all of it, because building takes a while."""
    code, words = build(ROOT / "mkdocs.yml", tmp_path)
    assert code == 0, words
    assert_nothing_from_elsewhere(tmp_path)
    assert_everything_has_its_place(tmp_path)
    if browser.installed():  # elsewhere the report's tests say how to get one
        assert_it_works_by_double_click(tmp_path, tmp_path_factory.mktemp("profile"))


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
    listed = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    for record in (DOCS / "decisions").glob("0*.md"):
        assert f"decisions/{record.stem}.html" in about
        title = record.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
        assert f"- [{title}]({record.name})" in listed
    users = (site / "users" / "engineer.html").read_text(encoding="utf-8")
    for guide in (DOCS / "guides").glob("*.md"):
        assert f"guides/{guide.stem}.html" in users


SEARCH = """
new Promise((done, fail) => {
  const query = document.querySelector("[data-md-component=search-query]");
  const results = document.querySelector("[data-md-component=search-result]");
  new MutationObserver(() => {
    const links = [...results.querySelectorAll("a.md-search-result__link")];
    if (links.length) done(links.map((link) => link.getAttribute("href")));
  }).observe(results, { childList: true, subtree: true });
  query.focus();
  query.value = "straggler";
  query.dispatchEvent(new KeyboardEvent("keyup", { bubbles: true }));
  setTimeout(() => fail(new Error("nothing was found")), 30000);
})
"""


def assert_it_works_by_double_click(site, profile):
    with browser.Browser(profile) as chromium:
        chromium.open(site / "howto" / "engine.html")
        assert any("tutorial.html" in link for link in chromium.evaluate(SEARCH))
        assert not chromium.errors()
        assert [url for url in chromium.requests() if not url.startswith("file:")] == []
        chromium.open(site / "compare.html", width=400)
        assert chromium.evaluate("document.documentElement.scrollWidth") <= 400


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


def test_a_name_without_a_docstring_is_found(tmp_path, monkeypatch):
    """Also one that has the name of its module, and one that only an ``if TYPE_CHECKING`` brings."""
    package = tmp_path / "asyncsgd"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from typing import TYPE_CHECKING\nfrom asyncsgd.good import good\n"
        "if TYPE_CHECKING:\n    from asyncsgd.bad import bad\n__all__ = ['bad', 'good']\n"
    )
    (package / "good.py").write_text('def good():\n    """Good."""\n')
    (package / "bad.py").write_text("def bad():\n    return 1\n")
    inventory = tmp_path / "objects.inv"
    inventory.write_bytes(b"zlib.\n" + zlib.compress(b"asyncsgd.bad py:function 1 a.html#$ -\n"))
    monkeypatch.syspath_prepend(str(DOCS / "site"))
    found = import_module("public_names").complaints(inventory, tmp_path)
    assert found == [
        "asyncsgd.bad has no docstring: write one in asyncsgd.bad.bad",
        "asyncsgd.good is not in the API reference: add '::: asyncsgd.good' to a page in docs/api",
    ]
