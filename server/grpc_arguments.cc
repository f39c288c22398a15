#include "server/grpc_arguments.h"

#include <grpc/grpc.h>
#include <grpcpp/resource_quota.h>
#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace ithaca::server {

namespace {

// HTTP/2's largest: with the default of 16 KiB a tensor is mostly headers.
constexpr int kMaxFrameBytes = 16777215;

// gRPC refuses a message that is too large before our code can count or log
// the call. What is over the limit by less than 1/16 is let through to it.
constexpr int64_t kReceiveMargin = 16;

// Buffers that are not full, and connections' own memory.
constexpr int64_t kQuotaMargin = 4;
constexpr int64_t kQuotaBase = int64_t{128} << 20;

}  // namespace

grpc::ChannelArguments RankChannelArguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  // Workers come back at an address they had: a shared subchannel would still
  // be waiting out the dead one's back-off.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  return arguments;
}

void SetServerArguments(int64_t max_message_bytes,
                        grpc::ServerBuilder* builder) {
  const int64_t received =
      std::min<int64_t>(max_message_bytes + max_message_bytes / kReceiveMargin,
                        std::numeric_limits<int>::max());
  builder->SetMaxReceiveMessageSize(static_cast<int>(received));
  builder->SetMaxSendMessageSize(static_cast<int>(max_message_bytes));
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, kMaxFrameBytes);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 7000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  // A lease's stream is silent for as long as it is open.
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  // gRPC inflates a compressed message before anyone sees its size: a few bytes
  // could fill the memory. Tensors gain nothing by it. The first two refuse a
  // call that announces it; the last inflates none that comes all the same.
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_DEFLATE, false);
  builder->SetCompressionAlgorithmSupportStatus(GRPC_COMPRESS_GZIP, false);
  builder->AddChannelArgument(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  // Two servers on one port would share it silently.
  builder->AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
}

void BoundMessageMemory(int64_t max_inflight_bytes, int64_t max_message_bytes,
                        grpc::ServerBuilder* builder) {
  // Neither limit is near the largest number: both are memory.
  const int64_t held = max_inflight_bytes + max_message_bytes;
  grpc::ResourceQuota quota("ithaca-coordinator");
  quota.Resize(static_cast<size_t>(held + held / kQuotaMargin + kQuotaBase));
  builder->SetResourceQuota(quota);
}

}  // namespace ithaca::server
