"""Model providers over HTTP: requests, streamed events, retries, API-key rotation and rate limits.

In: an adapter that builds a vendor's requests and parses its events. Out: a ``Provider``. It knows protocols
but no vendor. Its public names are for plugins that add a provider, besides those that ``gateway`` exports.
The core's pipeline and server may import its modules; channels may not.
"""

from gateway.confinement import Confinement, RunScript, run_confined
from gateway.contract.deltas import (
    DeltaWriter,
    MetadataDelta,
    StopReason,
    ToolCallStart,
    ToolResultDelta,
    ToolResultEnd,
)
from gateway.contract.errors import (
    AuthFailedError,
    ContentFilterError,
    DeltaParseError,
    FetchError,
    ProviderUnavailableError,
    RateLimitError,
    ServerFailedError,
    StreamAbortedError,
    StreamTimeoutError,
    fallback_notice,
)
from gateway.contract.provider import (
    Ask,
    KnowsModels,
    OAuth,
    OneTool,
    ReloadsCredentials,
    SignsIn,
    ToolChoice,
    ToolDefinition,
    TriesKey,
)
from gateway.contract.services import ProviderService
from gateway.fetching import Reach, connect_public, fetch
from gateway.http_client import HttpClient, HttpError, open_client
from gateway.provider_http.adapter import AnswerWriter, assemble, log_unsupported
from gateway.provider_http.authorizer import (
    RENEWAL_MARGIN_SECONDS,
    Authorizer,
    BearerAuthorizer,
    Token,
    TokenCache,
    client_credentials,
    fetch_body,
)
from gateway.provider_http.exchange import RequestSpec
from gateway.provider_http.fragments import FragmentCache, RecentEncodings
from gateway.provider_http.http_provider import HttpProvider, create_provider
from gateway.provider_http.rate_limits import server_time
from gateway.provider_http.schemas import normalize_tool_schema
from gateway.provider_http.transcript import (
    ASSISTANT_TURN,
    IMAGE_TYPES,
    PLACEHOLDER_TOOL,
    USER_TURN,
    Returned,
    Step,
    image_attachments,
    is_supported_image,
    join_turns,
    output_text,
    part_as_text,
    split_steps,
    wire_id,
    without_large_images,
)
from gateway.provider_http.transport import LINE_LIMIT, StreamEvent, Transport
from gateway.provider_http.upstream_errors import (
    UNDECODABLE,
    decode_ignoring_usage,
    parse_retry_after,
    raise_stream_error,
)

__all__ = [
    "ASSISTANT_TURN",
    "IMAGE_TYPES",
    "LINE_LIMIT",
    "PLACEHOLDER_TOOL",
    "RENEWAL_MARGIN_SECONDS",
    "UNDECODABLE",
    "USER_TURN",
    "AnswerWriter",
    "Ask",
    "AuthFailedError",
    "Authorizer",
    "BearerAuthorizer",
    "Confinement",
    "ContentFilterError",
    "DeltaParseError",
    "DeltaWriter",
    "FetchError",
    "FragmentCache",
    "HttpClient",
    "HttpError",
    "HttpProvider",
    "KnowsModels",
    "MetadataDelta",
    "OAuth",
    "OneTool",
    "ProviderService",
    "ProviderUnavailableError",
    "RateLimitError",
    "Reach",
    "RecentEncodings",
    "ReloadsCredentials",
    "RequestSpec",
    "Returned",
    "RunScript",
    "ServerFailedError",
    "SignsIn",
    "Step",
    "StopReason",
    "StreamAbortedError",
    "StreamEvent",
    "StreamTimeoutError",
    "Token",
    "TokenCache",
    "ToolCallStart",
    "ToolChoice",
    "ToolDefinition",
    "ToolResultDelta",
    "ToolResultEnd",
    "Transport",
    "TriesKey",
    "assemble",
    "client_credentials",
    "connect_public",
    "create_provider",
    "decode_ignoring_usage",
    "fallback_notice",
    "fetch",
    "fetch_body",
    "image_attachments",
    "is_supported_image",
    "join_turns",
    "log_unsupported",
    "normalize_tool_schema",
    "open_client",
    "output_text",
    "parse_retry_after",
    "part_as_text",
    "raise_stream_error",
    "run_confined",
    "server_time",
    "split_steps",
    "wire_id",
    "without_large_images",
]
