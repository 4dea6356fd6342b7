"""What object-store clients raise, in kinds and in words of our own: theirs may hold keys or signatures."""

from __future__ import annotations

import re
from typing import Any


class ShortBody(Exception):
    """Fewer bytes came than the store had promised."""


_CODES = re.compile(
    r"\b(SlowDown|ServiceUnavailable|TooManyRequests|RequestLimitExceeded|Throttling\w*|ExpiredToken|InvalidAccessKeyId|"
    r"SignatureDoesNotMatch|AccessDenied|InvalidToken|TokenRefreshRequired|RequestTimeTooSkewed|NoSuchBucket|NoSuchKey|"
    r"PermanentRedirect|AuthorizationHeaderMalformed|InternalError|RequestTimeout|Forbidden|Unauthorized)\b"
)
_THROTTLES = ("SlowDown", "ServiceUnavailable", "TooManyRequests", "RequestLimitExceeded", "Throttling")
_DENIALS = (
    *("ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "InvalidToken"),
    *("TokenRefreshRequired", "RequestTimeTooSkewed", "Forbidden", "Unauthorized"),
)


def classify(error: BaseException) -> dict[str, Any]:
    """Return kind and text of what a client raised; the text is ours, so that no secret is in it.

    Kinds: ``throttled cut short server timeout`` (worth another try), ``denied
    missing refused tls region client other`` (not).
    """
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and len(chain) < 6:
        chain.append(at)
        at = at.__cause__ or at.__context__
    names = " ".join(type(e).__name__ for e in chain)
    text = " ".join(str(e) for e in chain)
    status = next((s for e in chain if (s := _status(e))), None)
    code = (_CODES.search(text) or [""])[0]
    return {"kind": _kind(error, names, text, status, code), "text": _words(error, names, text, status, code)}


def _status(error: BaseException) -> int | None:
    status = getattr(error, "status", None)
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", status)
    return status if isinstance(status, int) else None


def _kind(error: BaseException, names: str, text: str, status: int | None, code: str) -> str:
    if isinstance(error, ShortBody):
        return "short"
    if isinstance(error, ImportError):
        return "client"
    if code.startswith(_THROTTLES) or status in (429, 503) or "reduce your request rate" in text:
        return "throttled"
    if code in _DENIALS or status in (401, 403) or "NoCredentials" in names or "PermissionError" in names:
        return "denied"
    if "Certificate" in names or "SSL" in names or "certificate verify" in text.lower():
        return "tls"
    # botocore follows redirects between regions until Python's stack ends.
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed") or status in (301, 307) or "Recursion" in names:
        return "region"
    if "FileNotFound" in names or "NotFound" in names or status == 404 or code.startswith("NoSuch"):
        return "missing"
    if "Timeout" in names:
        return "timeout"
    if re.search("EndpointConnection|ConnectorError|ConnectionRefused|gaierror|NameResolution|ConnectorDNS", names):
        return "refused"
    if re.search("Payload|Disconnected|Incomplete|ConnectionReset|ConnectionClosed|BrokenPipe|ClientOSError", names):
        return "cut"
    if (status or 0) >= 500 or code == "InternalError":
        return "server"
    if "connection refused" in text.lower() or "connect error" in text.lower() or "Connect call failed" in text:
        return "refused"
    if "EndOfStream" in text or "end of file before message" in text or "incomplete" in text.lower():
        return "cut"
    return "other"


def _words(error: BaseException, names: str, text: str, status: int | None, code: str) -> str:
    kind = _kind(error, names, text, status, code)
    told = code or (f"status {status}" if status else "")
    extra = f" ({told})" if told else ""
    if kind == "short":
        return f"{error.args[0]} of {error.args[1]} bytes came"
    if kind == "client":
        return f"the package '{getattr(error, 'name', '') or error}' is not installed"
    return {
        "throttled": f"the store throttles{extra}",
        "denied": "no credentials were found" if "NoCredentials" in names else f"access was denied{extra}",
        "tls": "the server's certificate is not trusted",
        "region": f"the bucket is in another region{extra}",
        "missing": f"there is no such object or bucket{extra}",
        "timeout": "the store does not answer in time",
        "refused": "nothing answers at the endpoint",
        "cut": "the connection was cut",
        "server": f"the store failed{extra}",
    }.get(kind, f"the client failed with {type(error).__name__}{extra}")
