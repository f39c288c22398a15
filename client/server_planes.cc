#include "client/server_planes.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "client/call_context.h"

namespace ithaca::client {
namespace {

constexpr absl::Duration kAnswerTime = absl::Seconds(10);

struct InfoRpc {
  grpc::ClientContext context;
  v1::GetServerInfoRequest request;
  v1::GetServerInfoResponse response;
};

}  // namespace

ServerPlanes::ServerPlanes(const std::shared_ptr<grpc::Channel>& channel,
                           std::string token, uint64_t own_limit)
    : stub_(v1::AttentionService::NewStub(channel)),
      token_(std::move(token)),
      own_limit_(own_limit) {}

void ServerPlanes::Get(absl::Time deadline,
                       std::function<void(const PlaneLimits&)> then) {
  std::optional<PlaneLimits> known;
  {
    const absl::MutexLock lock(&mutex_);
    known = known_;
  }
  if (known.has_value()) {
    then(*known);
    return;
  }
  auto rpc = std::make_shared<InfoRpc>();
  PrepareContext(token_, std::min(deadline, absl::Now() + kAnswerTime),
                 &rpc->context);
  stub_->async()->GetServerInfo(
      &rpc->context, &rpc->request, &rpc->response,
      [self = shared_from_this(), rpc,
       then = std::move(then)](const grpc::Status& status) {
        PlaneLimits limits{.max_message_bytes = self->own_limit_};
        if (status.ok()) {
          const auto& info = rpc->response;
          limits.shared_memory = info.shared_memory();
          if (info.max_message_bytes() > 0) {
            limits.max_message_bytes =
                std::min(self->own_limit_, info.max_message_bytes());
          }
          const absl::MutexLock lock(&self->mutex_);
          self->known_ = limits;
        }
        then(limits);
      });
}

void ServerPlanes::Forget() {
  const absl::MutexLock lock(&mutex_);
  known_.reset();
}

}  // namespace ithaca::client
