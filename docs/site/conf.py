"""Sphinx's settings for the site. make_site.py calls Sphinx with them; mirror.py and reference.py write the pages.

The site works from a local disk without a network: every script, style and font ships with it. Summaries in search
results are off, because Sphinx fetches pages for them and browsers refuse that for local files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import sawlog

sys.path.insert(0, str(Path(__file__).parent))  # for links.py

project = "sawlog"
author = "The sawlog authors"
version = release = sawlog.__version__
root_doc = "index"

extensions = ["myst_parser", "links"]
myst_enable_extensions = ["colon_fence"]
highlight_language = "text"  # a block without a language is a shell command or its output
myst_heading_anchors = 4  # a link to #a-heading works as it does where the Markdown itself is shown

html_theme = "furo"
html_title = f"sawlog {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_search_scorer = str(Path(__file__).parent / "static" / "scorer.js")
html_show_sourcelink = False
html_copy_source = False
html_show_sphinx = False
html_show_copyright = False
html_show_search_summary = False
html_last_updated_fmt = None  # the same source makes the same site
html_theme_options = {"navigation_with_keys": True}

toc_object_entries_show_parents = "hide"
add_module_names = False
python_maximum_signature_line_length = 100
