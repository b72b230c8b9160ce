"""Trunkline's public contract: all that a channel or a plugin may import.

A name's module is loaded when the name is first asked for, so that importing one costs only that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gateway.assembler import (
        Assembler,
    )
    from gateway.auth import (
        bearer_token,
    )
    from gateway.backends import (
        ProviderRegistry,
    )
    from gateway.bus import (
        ActivityBus,
        MessageBus,
    )
    from gateway.channel import (
        Address,
        ApprovalRequest,
        AsksApproval,
        Audio,
        Channel,
        Cursor,
        Deletes,
        Drafts,
        Edits,
        FollowsSession,
        Health,
        InboundKind,
        InboundMessage,
        OutboundMessage,
        Paginates,
        Placed,
        PlacementDeferred,
        PlacementRefused,
        PlacementUncertain,
        Receipt,
        Receive,
        Reconciles,
        Rejected,
        ReportsHealth,
        Responder,
        ResponseMode,
        Sender,
        SenderRole,
        SendsAck,
        SendsError,
        SendsVoice,
        ServesHttp,
        SessionKey,
        ShowsDecision,
        ShowsTyping,
        Streaming,
        Streams,
        Watermarks,
    )
    from gateway.client_message import (
        ClientMessage,
        ClientMsgId,
        ClientParts,
    )
    from gateway.deltas import (
        Complete,
        Delta,
        DeltaWriter,
        MetadataDelta,
        PartDelta,
        RateLimit,
        StopReason,
        TextDelta,
        ToolCallDelta,
        ToolCallStart,
        ToolResultDelta,
        ToolResultEnd,
        ToolResultStart,
        decode_delta,
        encode_delta,
    )
    from gateway.errors import (
        AddressRefusedError,
        AlreadyRegisteredError,
        AuthFailedError,
        BackpressureError,
        BadRequestError,
        BudgetExceededError,
        CapabilityError,
        ContentFilterError,
        ContextLengthError,
        DeltaParseError,
        EmptyAnswerError,
        FallbackExhaustedError,
        FetchError,
        InvalidPartTypeError,
        InvalidRequestError,
        InvalidStateError,
        ModelNotFoundError,
        NotFoundError,
        OverloadedError,
        PartValidationError,
        PluginError,
        ProviderError,
        ProviderResolutionError,
        ProviderUnavailableError,
        RateLimitError,
        ServerFailedError,
        SettingsError,
        StoreError,
        StoreLockedError,
        StreamAbortedError,
        StreamTimeoutError,
        ToolError,
        TooManyRequestsError,
        TrunklineError,
        UnauthorizedError,
        WeakDurabilityError,
    )
    from gateway.events import (
        Activity,
        AgentEvent,
        ContentEvent,
        MessagesEvent,
        ReasoningEvent,
        SubAgentEvent,
        TurnEndEvent,
        UsageEvent,
    )
    from gateway.feed import (
        Feed,
    )
    from gateway.fetching import (
        Fetched,
        Reach,
        fetch,
    )
    from gateway.frames import (
        ApprovalAsked,
        ApprovalResolved,
        Event,
        Frame,
        MessageFrame,
        Replayed,
        SessionFrame,
        TurnStart,
    )
    from gateway.host import (
        Host,
        HostLimits,
    )
    from gateway.markdown.links import (
        bare_addresses,
        host_of,
        names_another_host,
    )
    from gateway.markdown.parse import (
        parse_markdown,
    )
    from gateway.markdown.split import (
        split_markdown,
    )
    from gateway.markdown.tree import (
        Align,
        Block,
        Break,
        Cell,
        Code,
        CodeBlock,
        Emphasis,
        Heading,
        Image,
        Inline,
        Item,
        ItemList,
        Link,
        Paragraph,
        Quote,
        Rule,
        Strike,
        Strong,
        Table,
        Text,
        Tree,
        inline_text,
        label_of,
        plain_text,
    )
    from gateway.messages import (
        PART_TYPES,
        Attachment,
        Display,
        ErrorMetadata,
        ErrorPart,
        FilePart,
        ImagePart,
        Message,
        Metadata,
        Part,
        ResultMetadata,
        Role,
        TextKind,
        TextPart,
        ToolCallPart,
        ToolResultPart,
        decode_part,
        encode_part,
        new_id,
        now_ms,
        part_from,
    )
    from gateway.pacing import (
        Clock,
        Limit,
        Pacer,
    )
    from gateway.plugin import (
        AgentEndReason,
        AgentLoop,
        CommandContext,
        Intercept,
        LoopRun,
        MentionCompletion,
        Pass,
        Plugin,
        PluginContext,
        SlashCommand,
        StatusSegment,
        ToolBlock,
        ToolCall,
        Transform,
        TurnContext,
        TurnResult,
        UserInput,
    )
    from gateway.provider import (
        Adopts,
        ApiKey,
        Ask,
        AuthMethod,
        Capabilities,
        Capability,
        ChatOptions,
        Credential,
        KnowsModels,
        ModelInfo,
        OAuth,
        Provider,
        ProviderConfig,
        SignsIn,
        ToolDefinition,
        TriesKey,
    )
    from gateway.recording import (
        Recording,
        recording_of,
    )
    from gateway.registry import (
        ChannelRegistry,
        PluginRegistry,
    )
    from gateway.routing.facts import (
        ModelFacts,
        Rates,
    )
    from gateway.routing.models import (
        Models,
        Route,
    )
    from gateway.tokens import Tokens
    from gateway.tool import (
        DisplayHints,
        RunNested,
        Tool,
        ToolContext,
        ToolOutput,
        tool_from,
    )
    from gateway.ui import (
        UIService,
    )
    from gateway.wire.adapter import (
        AnswerWriter,
        ChatParser,
        ListsForAll,
        ProviderAdapter,
        assembled,
    )
    from gateway.wire.authorizer import (
        EARLY_SECONDS,
        Authorizer,
        BearerAuthorizer,
        Fetch,
        Token,
        TokenKeeper,
        client_credentials,
        fetched,
    )
    from gateway.wire.exchange import (
        RequestSpec,
    )
    from gateway.wire.fragments import (
        FragmentCache,
        RecentEncodings,
    )
    from gateway.wire.http_provider import (
        HttpProvider,
        create_provider,
    )
    from gateway.wire.schemas import (
        mended,
    )
    from gateway.wire.transcript import (
        NO_TOOL,
        PICTURES,
        Step,
        is_shown,
        output_text,
        pictures,
        steps_of,
        told,
        wire_id,
    )
    from gateway.wire.transport import (
        LINE_LIMIT,
        EventReader,
        StreamEvent,
        Transport,
        TransportKind,
    )
    from gateway.wire.upstream import (
        GARBLED,
        raise_said,
        uncounted,
        unreadable,
    )

_EXPORTS: Mapping[str, str] = {
    "gateway.auth": "bearer_token",
    "gateway.backends": "ProviderRegistry",
    "gateway.bus": "ActivityBus MessageBus",
    "gateway.channel": (
        "Address ApprovalRequest AsksApproval Audio Channel Cursor Deletes Drafts Edits FollowsSession "
        "Health InboundKind InboundMessage OutboundMessage Paginates Placed PlacementDeferred "
        "PlacementRefused PlacementUncertain Receipt Receive Reconciles Rejected ReportsHealth Responder "
        "ResponseMode Sender SendsAck SendsError SendsVoice ServesHttp SessionKey ShowsDecision ShowsTyping "
        "SenderRole Streaming Streams Watermarks"
    ),
    "gateway.client_message": "ClientMessage ClientMsgId ClientParts",
    "gateway.assembler": "Assembler",
    "gateway.deltas": (
        "Complete Delta DeltaWriter MetadataDelta PartDelta RateLimit StopReason TextDelta "
        "ToolCallDelta ToolCallStart ToolResultDelta ToolResultEnd ToolResultStart decode_delta "
        "encode_delta"
    ),
    "gateway.errors": (
        "AddressRefusedError AlreadyRegisteredError AuthFailedError BackpressureError BadRequestError "
        "BudgetExceededError CapabilityError ContentFilterError ContextLengthError DeltaParseError "
        "EmptyAnswerError FallbackExhaustedError FetchError InvalidPartTypeError InvalidRequestError "
        "InvalidStateError ModelNotFoundError NotFoundError OverloadedError PartValidationError PluginError "
        "ProviderError ProviderResolutionError ProviderUnavailableError RateLimitError "
        "ServerFailedError SettingsError StoreError StoreLockedError StreamAbortedError "
        "StreamTimeoutError TooManyRequestsError ToolError TrunklineError UnauthorizedError "
        "WeakDurabilityError"
    ),
    "gateway.events": (
        "Activity AgentEvent ContentEvent MessagesEvent ReasoningEvent SubAgentEvent TurnEndEvent UsageEvent"
    ),
    "gateway.feed": "Feed",
    "gateway.fetching": "Fetched Reach fetch",
    "gateway.frames": (
        "ApprovalAsked ApprovalResolved Event Frame MessageFrame Replayed SessionFrame TurnStart"
    ),
    "gateway.host": "Host HostLimits",
    "gateway.markdown.links": "bare_addresses host_of names_another_host",
    "gateway.markdown.parse": "parse_markdown",
    "gateway.markdown.split": "split_markdown",
    "gateway.markdown.tree": (
        "Align Block Break Cell Code CodeBlock Emphasis Heading Image Inline Item ItemList Link Paragraph "
        "Quote Rule Strike Strong Table Text Tree inline_text label_of plain_text"
    ),
    "gateway.messages": (
        "Attachment Display ErrorMetadata ErrorPart FilePart ImagePart Message Metadata PART_TYPES Part "
        "ResultMetadata Role TextKind TextPart ToolCallPart ToolResultPart decode_part encode_part "
        "new_id now_ms part_from"
    ),
    "gateway.pacing": "Clock Limit Pacer",
    "gateway.plugin": (
        "AgentEndReason AgentLoop CommandContext Intercept LoopRun MentionCompletion Pass Plugin "
        "PluginContext SlashCommand StatusSegment ToolBlock ToolCall Transform TurnContext TurnResult "
        "UserInput"
    ),
    "gateway.provider": (
        "Adopts ApiKey Ask AuthMethod Capabilities Capability ChatOptions Credential KnowsModels ModelInfo "
        "OAuth Provider ProviderConfig SignsIn ToolDefinition TriesKey"
    ),
    "gateway.recording": "Recording recording_of",
    "gateway.registry": "ChannelRegistry PluginRegistry",
    "gateway.tokens": "Tokens",
    "gateway.routing.facts": "ModelFacts Rates",
    "gateway.routing.models": "Models Route",
    "gateway.tool": "DisplayHints RunNested Tool ToolContext ToolOutput tool_from",
    "gateway.ui": "UIService",
    "gateway.wire.adapter": "AnswerWriter ChatParser ListsForAll ProviderAdapter assembled",
    "gateway.wire.authorizer": (
        "Authorizer BearerAuthorizer EARLY_SECONDS Fetch Token TokenKeeper client_credentials fetched"
    ),
    "gateway.wire.exchange": "RequestSpec",
    "gateway.wire.fragments": "FragmentCache RecentEncodings",
    "gateway.wire.http_provider": "HttpProvider create_provider",
    "gateway.wire.schemas": "mended",
    "gateway.wire.transcript": "NO_TOOL PICTURES Step is_shown output_text pictures steps_of told wire_id",
    "gateway.wire.transport": "LINE_LIMIT EventReader StreamEvent Transport TransportKind",
    "gateway.wire.upstream": "GARBLED raise_said uncounted unreadable",
}
"""The same names once more, by module, for the running program."""

__all__ = [
    "EARLY_SECONDS",
    "GARBLED",
    "LINE_LIMIT",
    "NO_TOOL",
    "PART_TYPES",
    "PICTURES",
    "Activity",
    "ActivityBus",
    "Address",
    "AddressRefusedError",
    "Adopts",
    "AgentEndReason",
    "AgentEvent",
    "AgentLoop",
    "Align",
    "AlreadyRegisteredError",
    "AnswerWriter",
    "ApiKey",
    "ApprovalAsked",
    "ApprovalRequest",
    "ApprovalResolved",
    "Ask",
    "AsksApproval",
    "Assembler",
    "Attachment",
    "Audio",
    "AuthFailedError",
    "AuthMethod",
    "Authorizer",
    "BackpressureError",
    "BadRequestError",
    "BearerAuthorizer",
    "Block",
    "Break",
    "BudgetExceededError",
    "Capabilities",
    "Capability",
    "CapabilityError",
    "Cell",
    "Channel",
    "ChannelRegistry",
    "ChatOptions",
    "ChatParser",
    "ClientMessage",
    "ClientMsgId",
    "ClientParts",
    "Clock",
    "Code",
    "CodeBlock",
    "CommandContext",
    "Complete",
    "ContentEvent",
    "ContentFilterError",
    "ContextLengthError",
    "Credential",
    "Cursor",
    "Deletes",
    "Delta",
    "DeltaParseError",
    "DeltaWriter",
    "Display",
    "DisplayHints",
    "Drafts",
    "Edits",
    "Emphasis",
    "EmptyAnswerError",
    "ErrorMetadata",
    "ErrorPart",
    "Event",
    "EventReader",
    "FallbackExhaustedError",
    "Feed",
    "Fetch",
    "FetchError",
    "Fetched",
    "FilePart",
    "FollowsSession",
    "FragmentCache",
    "Frame",
    "Heading",
    "Health",
    "Host",
    "HostLimits",
    "HttpProvider",
    "Image",
    "ImagePart",
    "InboundKind",
    "InboundMessage",
    "Inline",
    "Intercept",
    "InvalidPartTypeError",
    "InvalidRequestError",
    "InvalidStateError",
    "Item",
    "ItemList",
    "KnowsModels",
    "Limit",
    "Link",
    "ListsForAll",
    "LoopRun",
    "MentionCompletion",
    "Message",
    "MessageBus",
    "MessageFrame",
    "MessagesEvent",
    "Metadata",
    "MetadataDelta",
    "ModelFacts",
    "ModelInfo",
    "ModelNotFoundError",
    "Models",
    "NotFoundError",
    "OAuth",
    "OutboundMessage",
    "OverloadedError",
    "Pacer",
    "Paginates",
    "Paragraph",
    "Part",
    "PartDelta",
    "PartValidationError",
    "Pass",
    "Placed",
    "PlacementDeferred",
    "PlacementRefused",
    "PlacementUncertain",
    "Plugin",
    "PluginContext",
    "PluginError",
    "PluginRegistry",
    "Provider",
    "ProviderAdapter",
    "ProviderConfig",
    "ProviderError",
    "ProviderRegistry",
    "ProviderResolutionError",
    "ProviderUnavailableError",
    "Quote",
    "RateLimit",
    "RateLimitError",
    "Rates",
    "Reach",
    "ReasoningEvent",
    "Receipt",
    "Receive",
    "RecentEncodings",
    "Reconciles",
    "Recording",
    "Rejected",
    "Replayed",
    "ReportsHealth",
    "RequestSpec",
    "Responder",
    "ResponseMode",
    "ResultMetadata",
    "Role",
    "Route",
    "Rule",
    "RunNested",
    "Sender",
    "SenderRole",
    "SendsAck",
    "SendsError",
    "SendsVoice",
    "ServerFailedError",
    "ServesHttp",
    "SessionFrame",
    "SessionKey",
    "SettingsError",
    "ShowsDecision",
    "ShowsTyping",
    "SignsIn",
    "SlashCommand",
    "StatusSegment",
    "Step",
    "StopReason",
    "StoreError",
    "StoreLockedError",
    "StreamAbortedError",
    "StreamEvent",
    "StreamTimeoutError",
    "Streaming",
    "Streams",
    "Strike",
    "Strong",
    "SubAgentEvent",
    "Table",
    "Text",
    "TextDelta",
    "TextKind",
    "TextPart",
    "Token",
    "TokenKeeper",
    "Tokens",
    "TooManyRequestsError",
    "Tool",
    "ToolBlock",
    "ToolCall",
    "ToolCallDelta",
    "ToolCallPart",
    "ToolCallStart",
    "ToolContext",
    "ToolDefinition",
    "ToolError",
    "ToolOutput",
    "ToolResultDelta",
    "ToolResultEnd",
    "ToolResultPart",
    "ToolResultStart",
    "Transform",
    "Transport",
    "TransportKind",
    "Tree",
    "TriesKey",
    "TrunklineError",
    "TurnContext",
    "TurnEndEvent",
    "TurnResult",
    "TurnStart",
    "UIService",
    "UnauthorizedError",
    "UsageEvent",
    "UserInput",
    "Watermarks",
    "WeakDurabilityError",
    "assembled",
    "bare_addresses",
    "bearer_token",
    "client_credentials",
    "create_provider",
    "decode_delta",
    "decode_part",
    "encode_delta",
    "encode_part",
    "fetch",
    "fetched",
    "host_of",
    "inline_text",
    "is_shown",
    "label_of",
    "mended",
    "names_another_host",
    "new_id",
    "now_ms",
    "output_text",
    "parse_markdown",
    "part_from",
    "pictures",
    "plain_text",
    "raise_said",
    "recording_of",
    "split_markdown",
    "steps_of",
    "told",
    "tool_from",
    "uncounted",
    "unreadable",
    "wire_id",
]


def __getattr__(name: str) -> Any:
    for module, names in _EXPORTS.items():
        if name in names.split():
            value = globals()[name] = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
