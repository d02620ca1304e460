"""The field of an experiment or a site that names a row of a registry."""

from __future__ import annotations

from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from scalelab.kinds.registry import Registry


class RowName:
    """Annotation of a text field: its value is the name of a row of this registry.

    Distributions are looked through only for a name that is not built in, and for the
    JSON schema, which lists all names.

    Examples
    --------
    >>> from typing import Annotated
    >>> from pydantic import TypeAdapter
    >>> from scalelab.kinds.launchers import LAUNCHERS
    >>> TypeAdapter(Annotated[str, RowName(LAUNCHERS)]).validate_python("none")
    'none'
    """

    def __init__(self, registry: Registry[Any]) -> None:
        self._registry = registry

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._known)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"type": "string", "enum": list(self._registry.names)}

    def _known(self, value: Any) -> str:
        """Return the name of a row that can be loaded."""
        if not isinstance(value, str) or value not in self._registry:
            expected = {"expected": ", ".join(self._registry.names)}
            raise PydanticCustomError("enum", "one of {expected}", expected)
        name: str = self._registry[value].name
        return name
