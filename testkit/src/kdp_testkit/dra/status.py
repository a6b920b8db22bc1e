"""How an API server refuses: HTTP status, reason, and message (``k8s.io/apimachinery`` ``pkg/api/errors``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterable

_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    410: "Expired",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
}


class ApiRefused(Exception):
    """A request is refused.

    Args:
        status: The HTTP status; 0: nobody answers.
        message: The server's sentence.
        reason: Its word for it; "": the usual one of the status.
        details: More of it: name, group, kind, causes.
        retry_after: Seconds that it asks to wait.
        content: What is sent instead of a Status, as a proxy does; None: a Status is.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
        content: bytes | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.reason = reason or _REASONS.get(status, "")
        self.details = dict(details or {})
        self.retry_after = retry_after
        self.content = content
        if retry_after is not None:
            self.details["retryAfterSeconds"] = retry_after

    def as_json(self) -> dict[str, Any]:
        """Return the object of kind Status that is sent."""
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.status,
        }
        if self.details:
            status["details"] = self.details
        return status


@attrs.frozen
class Kind:
    """One resource of the API, and the sentences about its objects.

    Attributes:
        group: Its group; "": the core's.
        plural: Its name in paths.
        kind: Its name in objects.
        namespaced: Whether its objects lie in namespaces.
        has_generation: Whether ``metadata.generation`` counts changes of the spec.
    """

    group: str
    plural: str
    kind: str
    namespaced: bool = attrs.field(kw_only=True)
    has_generation: bool = attrs.field(default=False, kw_only=True)
    version: str = attrs.field(default="v1", init=False)

    @property
    def resource(self) -> str:
        """The name in messages: ``resourceslices.resource.k8s.io``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        """As in objects: ``resource.k8s.io/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def _details(self, name: str) -> dict[str, Any]:
        return {"name": name, **({"group": self.group} if self.group else {}), "kind": self.plural}

    def not_found(self, name: str) -> ApiRefused:
        """There is none."""
        return ApiRefused(404, f'{self.resource} "{name}" not found', details=self._details(name))

    def exists(self, name: str) -> ApiRefused:
        """The name is taken."""
        return ApiRefused(
            409, f'{self.resource} "{name}" already exists', reason="AlreadyExists", details=self._details(name)
        )

    def modified(self, name: str) -> ApiRefused:
        """It has another resource version by now."""
        return self.conflict(
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )

    def conflict(self, name: str, why: str) -> ApiRefused:
        """It is not the one that was meant."""
        return ApiRefused(
            409, f'Operation cannot be fulfilled on {self.resource} "{name}": {why}', details=self._details(name)
        )

    def other(self, name: str, why: str) -> ApiRefused:
        """It is not the one that a deletion's preconditions mean; here the server speaks of the kind."""
        kind = f"{self.kind}.{self.group}" if self.group else self.kind
        return ApiRefused(
            409,
            f'Operation cannot be fulfilled on {kind} "{name}": {why}',
            details={**self._details(name), "kind": self.kind},
        )

    def invalid(self, name: str, causes: Iterable[tuple[str, str, str]]) -> ApiRefused:
        """It breaks rules: for each the reason, the field, and the sentence."""
        each = list(causes)
        texts = [f"{field}: {message}" for _, field, message in each]
        text = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
        kind = f"{self.kind}.{self.group}" if self.group else self.kind
        details = {
            "name": name,
            **({"group": self.group} if self.group else {}),
            "kind": self.kind,
            "causes": [{"reason": reason, "message": message, "field": field} for reason, field, message in each],
        }
        return ApiRefused(422, f'{kind} "{name}" is invalid: {text}', details=details)

    def forbidden(self, name: str, why: str) -> ApiRefused:
        """The user may not."""
        named = f'{self.resource} "{name}"' if name else self.resource
        details = {
            **({"name": name} if name else {}),
            **({"group": self.group} if self.group else {}),
            "kind": self.plural,
        }
        return ApiRefused(403, f"{named} is forbidden: {why}", details=details)
