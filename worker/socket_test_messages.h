#ifndef ITHACA_WORKER_SOCKET_TEST_MESSAGES_H_
#define ITHACA_WORKER_SOCKET_TEST_MESSAGES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/attention_call.h"
#include "worker/ulysses_attention.h"
#include "worker/ulysses_test_rank.h"

// What a test's process and its ranks' say to each other through a socket:
// strings, each after its length. Both are the same program, so nothing else is
// agreed on.

namespace ithaca {

// A rank's part of a call.
struct RankTestCall {
  uint64_t call_number = 0;
  AttentionShape shape;
  AttentionOptions options;
  RankTensors tensors;
};

struct RankTestAnswer {
  absl::StatusOr<RankReport> report = absl::UnknownError("not run");
  std::string image_output, text_output;
};

// False when the other side is gone, or says nothing within the socket's
// time limit.
bool SendCall(int socket, const RankTestCall& call);
bool ReceiveCall(int socket, RankTestCall* call);
bool SendAnswer(int socket, const RankTestAnswer& answer);
bool ReceiveAnswer(int socket, RankTestAnswer* answer);

}  // namespace ithaca

#endif  // ITHACA_WORKER_SOCKET_TEST_MESSAGES_H_
