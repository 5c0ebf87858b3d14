"""Secrets kept out of parameters, messages and logs."""

from typing import TYPE_CHECKING

from everytoken.lazy_imports import exports

if TYPE_CHECKING:
    from everytoken.redaction.output import redact_output
    from everytoken.redaction.urls import (
        GIVE_IT_BY,
        Redaction,
        SecretError,
        address_of,
        hide,
        hide_secrets_of,
        is_named_by,
        is_public_address,
        is_url,
        is_web_link,
        names_public_place,
        redacted,
        require_bare_folder,
        require_no_secret,
        require_no_secrets,
        secrets_in,
        shown_url,
    )
    from everytoken.redaction.validation import without_secrets

__getattr__, __dir__ = exports(__name__, __file__)
