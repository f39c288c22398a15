#include "server/fan_out.h"

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "server/group_manager.h"
#include "server/rank_channel.h"
#include "server/rank_refusal.h"

namespace ithaca::server {

namespace {

constexpr char kRunAttention[] = "/ithaca.internal.v1.RankService/RunAttention";

}  // namespace

RankChannels::RankChannels(const std::vector<GroupMember>& members) {
  stubs_.reserve(members.size());
  for (const GroupMember& member : members) {
    stubs_.push_back(
        std::make_unique<grpc::GenericStub>(MakeRankChannel(member)));
  }
}

FanOut::FanOut(std::shared_ptr<RankChannels> channels,
               std::vector<grpc::ByteBuffer> requests, absl::Time deadline,
               Callbacks callbacks)
    : channels_(std::move(channels)),
      legs_(requests.size()),
      missing_(static_cast<int>(requests.size())),
      callbacks_(std::move(callbacks)) {
  for (size_t rank = 0; rank < requests.size(); ++rank) {
    legs_[rank].request.Swap(&requests[rank]);
    legs_[rank].context.set_deadline(absl::ToChronoTime(deadline));
  }
}

void FanOut::Start() {
  static const std::string* const method = new std::string(kRunAttention);
  for (int rank = 0; rank < channels_->world_size(); ++rank) {
    Leg& leg = legs_[static_cast<size_t>(rank)];
    channels_->stub(rank).UnaryCall(
        &leg.context, *method, grpc::StubOptions(), &leg.request, &leg.response,
        [self = shared_from_this(), rank](grpc::Status status) {
          self->OnAnswer(rank, std::move(status));
        });
  }
}

void FanOut::OnAnswer(int rank, grpc::Status status) {
  Leg& leg = legs_[static_cast<size_t>(rank)];
  leg.status = std::move(status);
  if (!LeavesGroupIntact(leg.status)) callbacks_.on_failure(rank, leg.status);
  if (missing_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
    // What the callbacks hold may hold this.
    const Callbacks callbacks = std::move(callbacks_);
    callbacks.on_done();
  }
}

void FanOut::Cancel() {
  for (Leg& leg : legs_) leg.context.TryCancel();
}

}  // namespace ithaca::server
