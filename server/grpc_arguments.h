#ifndef ITHACA_SERVER_GRPC_ARGUMENTS_H_
#define ITHACA_SERVER_GRPC_ARGUMENTS_H_

#include <grpcpp/server_builder.h>
#include <grpcpp/support/channel_arguments.h>

#include <cstdint>

// gRPC's settings at both of the coordinator's ends, in one place, so that
// limits, frame sizes and keepalive fit together.

namespace ithaca::server {

// Towards a worker: messages of any size, large frames, a subchannel of its
// own.
grpc::ChannelArguments RankChannelArguments();

// Towards clients: messages up to `max_message_bytes` in both directions,
// large frames. Requests a little larger still reach the service, which is to
// refuse them; larger ones end with RESOURCE_EXHAUSTED by gRPC's own hand. A
// client may ping every 10 s, also without calls. The server pings a silent
// connection after 2 s and drops it 7 s later: what a client left behind that
// is cut off is gone within 10 s, and one that only polls every 5 s, as gRPC's
// do between calls, is not taken for such.
// A call whose messages are compressed ends with UNIMPLEMENTED.
void SetServerArguments(int64_t max_message_bytes,
                        grpc::ServerBuilder* builder);

// gRPC holds a message whole before anyone has judged it, whoever sent it and
// however large it says it is. This bounds what all connections hold together
// at what admitted calls may have in flight, one more message, and a margin;
// beyond it gRPC ends calls with RESOURCE_EXHAUSTED.
void BoundMessageMemory(int64_t max_inflight_bytes, int64_t max_message_bytes,
                        grpc::ServerBuilder* builder);

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_GRPC_ARGUMENTS_H_
