"""Sends the attention of diffusers' transformers to Ithaca.

    import ithaca.diffusers
    pipeline.transformer.set_attention_backend(
        ithaca.diffusers.backend("localhost:50051")
    )

`backend` adds one to diffusers' own list of attention backends, so everything
diffusers does with a backend's name works with it, `diffusers.attention_backend`
too. What the service cannot do is never passed over in silence: see `backend`.

The seam: diffusers keeps its backends in a registry of functions
(`_AttentionBackendRegistry.register`) under the names of an enum
(`AttentionBackendName`) that is closed. This module adds a member to that enum.
Both are internals of diffusers 0.42, for which this is tested; where they are
missing, the import fails and says so.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from ithaca import _masks
from ithaca._client import Client
from ithaca._reports import ExecutionReport

try:
    from diffusers.models.attention_dispatch import (
        AttentionBackendName,
        _AttentionBackendRegistry,
    )

    _NATIVE = AttentionBackendName.NATIVE
    _register = _AttentionBackendRegistry.register
except (ImportError, AttributeError) as error:
    raise ImportError(
        f"ithaca.diffusers needs diffusers 0.42's attention dispatcher: {error}"
    ) from error

_logger = logging.getLogger(__name__)

_FALLBACKS = ("cross_attention", "local", "never")
_PADDED_QUERIES = ("local", "zero")


class UnservableError(ValueError):
    """The model asked for attention that the service does not do.

    kind: "cross_attention", "mask", "causal", "dropout", "head_dim" or
    "parallelism".
    """

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


@dataclasses.dataclass(frozen=True)
class ServedCall:
    """One call to the service, as given to on_call."""

    query_shape: tuple[int, ...]
    layout: _masks.TokenLayout | None  # None: all tokens alike
    seconds: float  # as the pipeline saw it
    report: ExecutionReport


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Calls so far; local_calls by the kind of UnservableError."""

    served_calls: int
    local_calls: dict[str, int]


class Backend(str):
    """A name that diffusers knows as an attention backend, and what is behind it.

    Being a str, it can be handed to set_attention_backend and to
    diffusers.attention_backend. Thread-safe. Made by `backend`.

    client: what its calls go through.
    """

    client: Client

    def __new__(
        cls,
        name: str,
        client: Client | str,
        fallback: str,
        padded_queries: str,
        on_call: Callable[[ServedCall], None] | None,
        call_options: dict[str, Any],
    ) -> Backend:
        self = super().__new__(cls, name)
        self._owns_client = isinstance(client, str)
        self.client = Client(client) if isinstance(client, str) else client
        self._fallback = fallback
        self._padded_queries = padded_queries
        self._on_call = on_call
        self._call_options = call_options
        self._lock = threading.Lock()
        self._served_calls = 0
        self._local_calls = collections.Counter()
        self._closed = False
        return self

    def statistics(self) -> Statistics:
        """How many calls were served, and how many were not."""
        with self._lock:
            return Statistics(self._served_calls, dict(self._local_calls))

    def close(self) -> None:
        """Ends it: models that still use it fail, and say so.

        Makes diffusers' own backend the default again if this was, and closes
        the client if `backend` made it. Models go back to local attention by
        reset_attention_backend().
        """
        self._closed = True
        if _AttentionBackendRegistry._active_backend == str(self):
            _AttentionBackendRegistry.set_active_backend(_NATIVE)
        if self._owns_client:
            self.client.close()

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        **arguments: Any,
    ) -> torch.Tensor:
        if self._closed:
            raise RuntimeError(f"the attention backend {str(self)!r} was closed")
        try:
            return self._serve(query, key, value, **arguments)
        except UnservableError as error:
            if self._fallback not in ("local", error.kind):
                raise
            with self._lock:
                self._local_calls[error.kind] += 1
                first = self._local_calls[error.kind] == 1
            if first:
                _logger.warning("attention runs locally, not served: %s", error)
            return _local_attention(query, key, value, **arguments)

    def _serve(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        attn_mask: torch.Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float | None,
        enable_gqa: bool,
        _parallel_config: Any,
    ) -> torch.Tensor:
        if _parallel_config is not None:
            raise UnservableError(
                "parallelism", "diffusers' own context parallelism is on"
            )
        if is_causal:
            raise UnservableError("causal", "causal attention is not served")
        if dropout_p:
            raise UnservableError("dropout", f"dropout_p is {dropout_p}: expected 0")
        if value.shape[-1] != query.shape[-1]:
            raise UnservableError(
                "head_dim",
                f"value has head_dim {value.shape[-1]}, query {query.shape[-1]}: "
                "expected the same",
            )
        if query.shape[2] != key.shape[2] and not enable_gqa:
            raise ValueError(
                f"query has {query.shape[2]} heads, key {key.shape[2]}: expected the "
                "same without enable_gqa"
            )
        batch, query_tokens = query.shape[:2]
        key_tokens = key.shape[1]
        if query_tokens != key_tokens:
            if attn_mask is not None or query_tokens > key_tokens:
                raise UnservableError(
                    "cross_attention",
                    f"cross attention of {query_tokens} tokens to {key_tokens} others",
                )
            # Order is nothing to attention: take as many keys as there are
            # queries for image tokens, and the rest for text.
            return self._call(
                query,
                key,
                value,
                scale,
                text_tokens=key_tokens - query_tokens,
                image_queries_only=True,
            )
        if attn_mask is None:
            return self._call(query, key, value, scale)
        try:
            padding = _masks.key_padding(attn_mask, batch, query_tokens, key_tokens)
        except _masks.UnsupportedMaskError as error:
            raise UnservableError("mask", str(error)) from error
        out = self._serve_padded(query, key, value, scale, padding)
        if self._padded_queries == "local" and not padding.empty_rows:
            _attend_hidden_rows(out, query, key, value, scale, enable_gqa, padding)
        return out

    def _serve_padded(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        padding: _masks.KeyPadding,
    ) -> torch.Tensor:
        """Rows of hidden tokens come back as zeros."""
        layout = _masks.text_layout(padding.keep)
        if layout is not None:
            return self._call(
                query,
                key,
                value,
                scale,
                layout=layout,
                text_tokens=layout.text_tokens,
                order=layout.order,
                valid_text_tokens=layout.valid_text_tokens or None,
            )
        # Padding no layout describes: each batch element's kept tokens alone.
        out = torch.zeros_like(query, memory_format=torch.contiguous_format)
        for b, keep in enumerate(padding.keep):
            kept = torch.from_numpy(keep.nonzero()[0]).to(query.device)
            if len(kept):
                rows = (x[b : b + 1, kept] for x in (query, key, value))
                out[b, kept] = self._call(*rows, scale)[0]
        return out

    def _call(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scale: float | None,
        *,
        layout: _masks.TokenLayout | None = None,
        **arguments: Any,
    ) -> torch.Tensor:
        start = time.perf_counter()
        out, report = self.client.attention(
            query,
            key,
            value,
            softmax_scale=scale,
            return_report=True,
            **arguments,
            **self._call_options,
        )
        seconds = time.perf_counter() - start
        with self._lock:
            self._served_calls += 1
        if self._on_call is not None:
            self._on_call(ServedCall(tuple(query.shape), layout, seconds, report))
        return out


def _local_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **arguments: Any
) -> torch.Tensor:
    native = _AttentionBackendRegistry._backends[_NATIVE]
    return native(query, key, value, **arguments)


def _attend_hidden_rows(
    out: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
    enable_gqa: bool,
    padding: _masks.KeyPadding,
) -> None:
    """Fills the rows of hidden tokens in, which the service left zero."""
    for b, keep in enumerate(padding.keep):
        kept, hidden = (
            torch.from_numpy(rows.nonzero()[0]).to(query.device)
            for rows in (keep, ~keep)
        )
        if len(kept) and len(hidden):
            out[b, hidden] = _local_attention(
                query[b : b + 1, hidden],
                key[b : b + 1, kept],
                value[b : b + 1, kept],
                scale=scale,
                enable_gqa=enable_gqa,
            )[0]


_our_members: set[AttentionBackendName] = set()


def _enum_member(name: str) -> AttentionBackendName:
    """The member of diffusers' closed enum with this value, made if need be."""
    known = AttentionBackendName._value2member_map_.get(name)
    if known is not None:
        if known not in _our_members:
            raise ValueError(f"{name!r} is one of diffusers' own attention backends")
        return known
    member = str.__new__(AttentionBackendName, name)
    member._name_ = name.upper()
    member._value_ = name
    setattr(AttentionBackendName, member._name_, member)
    AttentionBackendName._member_names_.append(member._name_)
    AttentionBackendName._member_map_[member._name_] = member
    AttentionBackendName._value2member_map_[name] = member
    _our_members.add(member)
    return member


def backend(
    client: Client | str,
    *,
    name: str = "ithaca",
    fallback: str = "cross_attention",
    padded_queries: str = "local",
    on_call: Callable[[ServedCall], None] | None = None,
    **call_options: Any,
) -> Backend:
    """Makes Ithaca one of diffusers' attention backends, and returns its name.

    client: a Client, or the address of a coordinator, to which one is opened.
    name: lower case, for set_attention_backend; a second backend under the same
    name takes the first one's place, so use two for two services.
    on_call: told of each call that was served, in the calling thread.
    call_options: for Client.attention: precision, schedule, kernel, timeout.

    Joint and self attention are served, whatever padding a mask hides, bool or
    additive, for each batch element on its own. A mask that tells heads or query
    rows apart, a bias, causal attention and dropout are not. Nor is attention to
    fewer keys than there are queries, as in Wan's cross attention to the text.

    fallback: which of these run locally, counted in statistics() and logged once
    for each kind: "cross_attention" (the default), "local" (all of them) or
    "never" (none). The others raise UnservableError.
    padded_queries: what becomes of the query rows of tokens that the mask hides.
    The service gives zeros for them, and models throw them away; "local" fills
    them in locally, so that the output is scaled_dot_product_attention's in every
    row; "zero" leaves them, which saves that work.

    Failures of the service raise ithaca.Error; nothing falls back because of one.
    """
    if name != name.lower() or not name.isidentifier():
        raise ValueError(f"name is {name!r}: expected a lower-case identifier")
    for argument, given, known in (
        ("fallback", fallback, _FALLBACKS),
        ("padded_queries", padded_queries, _PADDED_QUERIES),
    ):
        if given not in known:
            expected = ", ".join(map(repr, known))
            raise ValueError(f"{argument} is {given!r}: expected one of {expected}")
    made = Backend(name, client, fallback, padded_queries, on_call, call_options)

    # The dispatcher passes the arguments that it finds in the signature.
    @torch.compiler.disable
    def ithaca_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        _parallel_config: Any = None,
    ) -> torch.Tensor:
        if return_lse:
            raise ValueError("the log-sum-exp is not served: return_lse is True")
        return made._attend(
            query,
            key,
            value,
            attn_mask=attn_mask,
            dropout_p=dropout_p,
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
            _parallel_config=_parallel_config,
        )

    _register(_enum_member(name))(ithaca_attention)
    return made
