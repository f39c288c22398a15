#ifndef ITHACA_CLIENT_ATTENTION_RPC_H_
#define ITHACA_CLIENT_ATTENTION_RPC_H_

#include <grpcpp/generic/generic_stub.h>

#include <memory>
#include <string>

#include "client/attention_call.h"
#include "client/attention_client.h"

// One RPC from its start to its callback, over one connection. It holds itself
// alive, and ends when the RPC has ended and the transport reads no tensor that
// is only borrowed. Tensors in a region are referred to by their registration
// of now.

namespace ithaca::client {

// Attention: the tensors inside the messages.
std::shared_ptr<PendingCall> StartUnaryRpc(grpc::GenericStub* stub,
                                           const std::string& token,
                                           const AttentionArguments& arguments,
                                           AttentionCallback done);

// StreamAttention: the tensors in chunks.
std::shared_ptr<PendingCall> StartStreamRpc(grpc::GenericStub* stub,
                                            const std::string& token,
                                            const AttentionArguments& arguments,
                                            AttentionCallback done);

}  // namespace ithaca::client

#endif  // ITHACA_CLIENT_ATTENTION_RPC_H_
