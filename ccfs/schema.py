"""The JSON Schema of every document that we write, made from the model that reads it, and as tables for people."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue

from ccfs.files.documents import OPTIONAL
from ccfs.protocol.registry import PARTS

__all__ = ["DOCUMENTS", "SHIPPED", "key_table", "markdown", "model_of", "part_table", "schema", "schema_text"]

DOCUMENTS: Mapping[str, str] = {
    "protocol": "ccfs.protocol.model:Protocol",
    "certificate": "ccfs.results.certificate:RunCertificate",
    "trajectory": "ccfs.results.certificate:TrajectoryDocument",
    "strata": "ccfs.results.certificate:StrataDocument",
    "family-certificate": "ccfs.results.families:FamilyDocument",
    "families": "ccfs.results.families:FamiliesDocument",
    "provenance": "ccfs.runs.provenance:Provenance",
    "manifest": "ccfs.runs.manifest:Manifest",
    "batch": "ccfs.runs.journal:Journal",
    "verdicts": "ccfs.runs.batches:Verdicts",
    "scores": "ccfs.results.scores:ScoresDocument",
    "signed-run": "ccfs.runs.signature:SignedRun",
    "registration": "ccfs.runs.registration:Registration",
    "begun": "ccfs.runs.registration:Begun",
    "totals": "ccfs.results.totals:TotalsDocument",
    "run-totals": "ccfs.results.totals:RunTotals",
    "table": "ccfs.results.table:TableDocument",
    "audit": "ccfs.audit.run:AuditReport",
    "verification": "ccfs.results.verify:Verification",
    "plan": "ccfs.study.plan:PlanDocument",
    "tuning": "ccfs.study.tune:Tuning",
    "comparison": "ccfs.study.compare:Comparison",
    "run-summary": "ccfs.study.opened:RunSummary",
    "run-list": "ccfs.study.opened:RunList",
    "doctor": "ccfs.study.doctor:Diagnosis",
    "image-run": "ccfs.images.folder:ImageRun",
    "image-counts": "ccfs.images.counts:RunKey",
    "image-certificate": "ccfs.images.certificate:ImageCertificate",
    "image-endpoints": "ccfs.images.endpoints:AttackHead",
    "image-assessment": "ccfs.images.others:AssessmentDocument",
    "study-list": "ccfs.experiments:StudyList",
    "training-status": "ccfs.controllers.training.plan:TrainingStatus",
}
"""The model of each kind of document, imported when it is asked for."""
SHIPPED = Path(__file__).parent / "schemas"


class _Plain(GenerateJsonSchema):
    """Leaves out the titles that pydantic makes from names, because they only repeat the name."""

    def field_title_should_be_set(self, schema: object) -> bool:
        """Return False: a key's name is its title."""
        return False

    def ser_schema(self, schema: object) -> JsonSchemaValue | None:
        """Return None: our serializers only leave keys out, so a table has the schema of its keys."""
        return None


def model_of(kind: str) -> type[BaseModel]:
    """Return the model of a kind of document."""
    if kind not in DOCUMENTS:
        raise ValueError(f"`kind` must be one of {', '.join(DOCUMENTS)}, got {kind!r}.")
    module, _, name = DOCUMENTS[kind].partition(":")
    return cast(type[BaseModel], getattr(importlib.import_module(module), name))


def schema(kind: str) -> dict[str, object]:
    """Return the JSON Schema of a kind of document."""
    # A person may leave defaults out of a protocol. A document that a program wrote has every key.
    mode: JsonSchemaMode = "validation" if kind == "protocol" else "serialization"
    model = model_of(kind)
    made = model.model_json_schema(schema_generator=_Plain, mode=mode)
    for table in (made, *made.get("$defs", {}).values()):
        optional = [key for key, entry in table.get("properties", {}).items() if entry.pop(*OPTIONAL, False)]
        if "required" in table:
            table["required"] = [key for key in table["required"] if key not in optional]
    left_out: frozenset[str] = getattr(model, "omitted", frozenset())
    made["required"] = [key for key in made.get("required", ()) if key not in left_out]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def schema_text(kind: str) -> str:
    """Return the JSON Schema as the text of the file that ships with the package."""
    return json.dumps(schema(kind), indent=2, ensure_ascii=False, sort_keys=True) + "\n"


def key_table(kind: str, model: str, sections: Mapping[str, str]) -> str:
    """Return the keys of one table of a document as Markdown.

    Args:
        kind: the kind of document.
        model: name of the model of the table.
        sections: heading of the section about each model, to which its name is linked.
    """
    whole = schema(kind)
    tables = cast(dict[str, JsonSchemaValue], whole.get("$defs", {}))
    table = tables.get(model, whole)
    required = cast(list[str], table.get("required", []))
    rows = []
    for key, entry in cast(dict[str, JsonSchemaValue], table["properties"]).items():
        default = "required" if key in required else _default(entry)
        rows.append((f"`{key}`", _type(entry, sections), default, str(entry["description"]).replace("|", "\\|")))
    return _table(("key", "type", "default", "what it is"), rows)


def markdown(kind: str) -> str:
    """Return the keys of all tables of a document as Markdown."""
    whole = schema(kind)
    names = [
        name
        for name, table in cast(dict[str, JsonSchemaValue], whole.get("$defs", {})).items()
        if "properties" in table
    ]
    titles = {name: name for name in (str(whole["title"]), *names)}
    return "\n".join(f"## {name}\n\n{key_table(kind, name, titles)}" for name in titles)


def part_table(kind: str) -> str:
    """Return the shipped parts of one kind as Markdown."""
    rows = [
        (f"`{name}`", ", ".join(f"`{argument}`" for argument in part.arguments), part.does.replace("|", "\\|"))
        for name, part in PARTS[kind].items()
    ]
    return _table((f"shipped {kind}", "arguments", "what it does"), rows)


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [heads, ("---",) * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _default(entry: JsonSchemaValue) -> str:
    if "default" not in entry:
        return "empty"
    value = entry["default"]
    if value in (None, [], ()):
        return "none"
    return "its defaults" if isinstance(value, dict) else f"`{json.dumps(value)}`"


def _type(entry: JsonSchemaValue, sections: Mapping[str, str]) -> str:
    """Return the kind of a value in words, with a link to the section of a table."""
    variants = [part for part in _variants(entry) if part.get("type") != "null"]
    return " or ".join(dict.fromkeys(_plain_type(part, sections) for part in variants))


def _variants(entry: JsonSchemaValue) -> Iterator[JsonSchemaValue]:
    inner = entry.get("anyOf") or entry.get("oneOf")
    if inner is None:
        yield entry
    for part in inner or ():
        yield from _variants(part)


def _plain_type(entry: JsonSchemaValue, sections: Mapping[str, str]) -> str:
    if "$ref" in entry:
        name = str(entry["$ref"]).rpartition("/")[2]
        return _link(sections[name]) if name in sections else "table"
    if "const" in entry or "enum" in entry:
        values = entry.get("enum", [entry.get("const")])
        return " or ".join(f"`{json.dumps(value)}`" for value in values)
    if entry.get("type") == "array":
        inner = _type(cast(JsonSchemaValue, entry.get("items", {})), sections)
        return f"list of {inner}" if inner else "list"
    named = {"string": "text", "integer": "integer", "number": "number", "boolean": "boolean", "object": "table"}
    return named.get(str(entry.get("type")), "any value") + _range(entry)


def _range(entry: JsonSchemaValue) -> str:
    low, high = entry.get("minimum", entry.get("exclusiveMinimum")), entry.get("maximum", entry.get("exclusiveMaximum"))
    if low is None and high is None:
        return ""
    if high is None:
        return f" {'≥' if 'minimum' in entry else '>'} {low:g}"
    left, right = "[" if "minimum" in entry else "(", "]" if "maximum" in entry else ")"
    return (
        f" in {left}{low:,g}, {high:,.10g}{right}"
        if low is not None
        else f" {'≤' if 'maximum' in entry else '<'} {high:g}"
    )


def _link(heading: str) -> str:
    anchor = "".join(letter for letter in heading.lower() if letter.isalnum() or letter in " -_").replace(" ", "-")
    return f"[{heading}](#{anchor})"
