#ifndef ITHACA_SERVER_CLIENT_CALL_H_
#define ITHACA_SERVER_CLIENT_CALL_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/status.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "core/bearer_token.h"
#include "ithaca/v1/attention.pb.h"
#include "server/byte_budget.h"
#include "server/group_scheduler.h"
#include "server/in_flight_requests.h"
#include "server/memory_region.h"
#include "server/metrics.h"
#include "server/pending_call.h"
#include "server/region_table.h"
#include "server/request_validation.h"
#include "server/tensor_bytes.h"

namespace ithaca::server {

// What all calls share. Everything pointed to outlives them.
struct CallServices {
  GroupScheduler* scheduler = nullptr;
  ByteBudget* budget = nullptr;
  Metrics* metrics = nullptr;
  InFlightRequests* in_flight = nullptr;
  BearerToken token;
  int64_t max_message_bytes = 0;
  int64_t max_request_bytes = 0;
  RegionTable* regions = nullptr;  // nullptr: no memory plane is enabled
};

// The trailing metadata key that tells how a call's tensors travelled:
// "unary", "stream", "shared_memory" or "cuda_memory".
inline constexpr char kPlaneKey[] = "ithaca-plane";

// One attention call as its client sees it, whichever RPC it came by: what is
// checked and taken at its start, and what is said of it at its end. How its
// tensors travel is the RPC's own affair.
//
// Not thread-safe; Cancelled may be called at any time.
class ClientCall {
 public:
  // In flight from here on. transport: the RPC's. context outlives this.
  ClientCall(CallServices* services, TensorTransport transport,
             grpc::CallbackServerContext* context);

  // Errors: kUnauthenticated.
  absl::Status CheckToken() const;

  // Judges a whole AttentionRequest message and takes what the call needs: its
  // id, its bytes of the budget. The call is not submitted yet.
  // Errors: every one of ParseAttentionRequest, ValidateRequest, Register and
  // Reserve; nothing is kept of the message then but its id, for the log.
  absl::StatusOr<std::shared_ptr<PendingCall>> Admit(
      const TensorBytes& message, PendingCall::EndFunction on_end);

  // What a client that stopped waiting is recorded as.
  absl::Status Cancelled() const;

  // The ranks have answered: counts what they did, the inputs that came and an
  // output that is in a region, and completes the report. REQUIRES: Admit was
  // OK.
  void RecordAnswer(CallOutcome* outcome);
  // Bytes of the output that the client is given through the call.
  void RecordOutput(int64_t bytes);

  // Log line, metrics, trailing metadata; the id may be used again. All of it
  // before the client can hear of the end, by what this returns: its next call
  // may have the same id, and a scrape after it must count this one. Once.
  grpc::Status End(const absl::Status& status);

  // REQUIRES for these: Admit was OK.
  const std::string& request_id() const { return request_id_; }
  DataType dtype() const { return dtype_; }
  const std::vector<int64_t>& output_shape() const { return output_shape_; }
  // Where the output goes; nullopt: back through the call.
  const std::optional<ithaca::v1::MemorySlice>& output_slice() const {
    return output_slice_;
  }

 private:
  void TakeRegions(const CallRegions& regions);
  void LogEnd(const grpc::Status& status) const;

  CallServices* const services_;
  const TensorTransport transport_;
  grpc::CallbackServerContext* const context_;
  const absl::Time arrival_;
  const Plane inline_plane_;
  Plane plane_;  // that of regions, if the call has any
  CallRecord record_;
  std::string request_id_;
  InFlightRequests::Registration registration_;
  std::vector<int64_t> output_shape_;
  std::optional<ithaca::v1::MemorySlice> output_slice_;
  std::array<int64_t, kNumPlanes> input_bytes_ = {};
  DataType dtype_ = DataType::kFloat32;
  // What neither the slowest rank nor the queue had; negative: no answer.
  double coordinator_seconds_ = -1;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_CLIENT_CALL_H_
