"""The base class of our JSON documents: read strictly, written in one canonical form."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from ccfs.certificates.documents import DocumentError, refuse_other_format
from ccfs.files.digests import canonical_json
from ccfs.files.reading import RefusedFileError, read_json

__all__ = ["OPTIONAL", "ChangedDocumentError", "Digest", "Document", "DocumentError", "Infinite", "Table"]

Made = TypeVar("Made", bound="Document")
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
"""A SHA-256 in hexadecimal digits."""
Infinite = float | Literal["infinity"]
"""A number that may be infinite. JSON has no number for infinity, so a word stands for it."""
OPTIONAL: dict[str, JsonValue] = {"x-optional": True}
"""Marks a key that a document may leave out, in the schema of its model."""


class ChangedDocumentError(DocumentError):
    """A document that somebody changed after it was written."""


class Table(BaseModel):
    """A table of a document: frozen, without unknown keys, without conversions, without NaN and infinity."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_serialization_defaults_required=True,
    )


class Document(Table):
    """A whole document. Every kind has a key `format`, whose default names kind and version."""

    omitted: ClassVar[frozenset[str]] = frozenset()
    """Keys that are left out where they are None, so that they change no document that was written without them."""

    @classmethod
    def format_name(cls) -> str:
        """Return kind and version, such as "ccfs/certificate/1"."""
        return str(cls.model_fields["format"].default)

    def to_bytes(self) -> bytes:
        """Return the file's content in its one canonical form."""
        content = self.model_dump(mode="json")
        kept = {key: value for key, value in content.items() if not (value is None and key in self.omitted)}
        return canonical_json(kept).encode() + b"\n"

    @classmethod
    def from_bytes(cls: type[Made], content: bytes, *, where: str) -> Made:
        """Read a document. Refuse another kind or version, and whatever `to_bytes` would not write exactly so."""
        expected = cls.format_name()
        try:
            entries = read_json(content, f"{where}: must be a JSON document of the format {expected!r}")
        except RefusedFileError as error:
            raise DocumentError(str(error)) from None
        if not isinstance(entries, dict):
            raise DocumentError(f"{where}: must be a JSON object of the format {expected!r}, got something else.")
        try:
            refuse_other_format(entries.get("format"), expected)
        except DocumentError as error:
            raise DocumentError(f"{where}: {error}") from None
        try:
            made = cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            key, what = ".".join(str(part) for part in first["loc"]), first["msg"].lower()
            if first["type"] == "string_pattern_mismatch":
                what = f"must be written as a name or digest is, got {first['input']!r}"
            raise DocumentError(f"{where}: is no {expected}: `{key}` {what}.") from None
        if made.to_bytes() != content:
            raise ChangedDocumentError(f"{where}: was changed after it was written.")
        return made
