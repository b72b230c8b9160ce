"""What every table of settings is, and the values that several of them take."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, SecretStr


def _not_blank(secret: SecretStr | None) -> SecretStr | None:
    if secret is not None and not secret.get_secret_value().strip():
        raise ValueError("must not be blank; give it a value, or remove the line")
    return secret


Secret = Annotated[SecretStr | None, AfterValidator(_not_blank)]


class Section(BaseModel):
    """A table of settings: read-only, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
