"""A Sphinx extension: a public name in backticks links to its place in the reference.

Documents and docstrings write `Store.open` or `log.append_many(values)` without link syntax, because they are also read
as plain text. Names outside the reference stay unlinked. Sphinx makes links in signatures itself, wrong ones too, which
this extension removes.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from docutils import nodes
from sphinx.addnodes import desc_signature, pending_xref
from sphinx.application import Sphinx
from sphinx.domains.python import ObjectEntry
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

#: Variable names in the documents and the classes of their objects.
VARIABLES = {
    "consumer": "Consumer",
    "groups": "Groups",
    "log": "Log",
    "queue": "Queue",
    "record": "Record",
    "store": "Store",
    "topic": "Topic",
    "writer": "Writer",
}
_NAME = re.compile(r"(?P<name>[A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?", re.DOTALL)


class KeepPlainTypes(SphinxPostTransform):
    """`bytes` in a signature is the type: Sphinx would find the field `Interval.bytes`. All our classes are
    capitalised."""

    default_priority = 5  # before Sphinx resolves references

    def run(self, **_: Any) -> None:
        for found in list(self.document.findall(pending_xref)):
            if found.get("reftype") == "class" and str(found["reftarget"]).islower() and "." not in found["reftarget"]:
                found.replace_self(found.children)


class LinkNames(SphinxPostTransform):
    """Puts a reference around every literal that is a public name."""

    default_priority = 20
    formats: ClassVar[tuple[str, ...]] = ("html",)

    def run(self, **_: Any) -> None:
        for literal in list(self.document.findall(nodes.literal)):
            if _inside(literal, nodes.reference) or _inside(literal, nodes.title) or _inside(literal, desc_signature):
                continue
            found = self._find(literal.astext())
            if found is not None:
                here, builder = self.env.docname, self.app.builder
                reference = make_refnode(builder, here, found.docname, found.node_id, literal.deepcopy())
                literal.replace_self(reference)

    def _find(self, text: str) -> ObjectEntry | None:
        match = _NAME.fullmatch(text)
        if match is None:
            return None
        objects: dict[str, ObjectEntry] = self.env.domains.python_domain.objects
        return next((objects[name] for name in _meant(match["name"]) if name in objects), None)


def _meant(name: str) -> list[str]:
    """The full names that a name may stand for, the likeliest first."""
    first, _, rest = name.partition(".")
    if first == "sawlog":
        return [name]
    if rest and first in VARIABLES:
        return [f"sawlog.{VARIABLES[first]}.{rest}"]
    return [f"sawlog.{name}"] if first[0].isupper() else []


def _inside(node: nodes.Node, kind: type[nodes.Node]) -> bool:
    parent = node.parent
    while parent is not None:
        if isinstance(parent, kind):
            return True
        parent = parent.parent
    return False


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_post_transform(KeepPlainTypes)
    app.add_post_transform(LinkNames)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
