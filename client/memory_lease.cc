#include "client/memory_lease.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/call_context.h"
#include "client/rpc_status.h"

namespace ithaca::client {
namespace {

// A server that is there answers at once.
constexpr absl::Duration kAnswerTime = absl::Seconds(10);

absl::Time Soon(absl::Time deadline) {
  return std::min(deadline, absl::Now() + kAnswerTime);
}

// Unique on the server. Each registration has a name of its own, since the
// last one's may not have gone yet.
std::string NewRegionName(const char* kind) {
  std::random_device random;
  return absl::StrFormat("%s-%08x%08x", kind, random(), random());
}

template <typename Request>
struct MemoryRpc {
  grpc::ClientContext context;
  Request request;
  v1::RegisterMemoryResponse response;
};

struct UnregisterRpc {
  grpc::ClientContext context;
  v1::UnregisterMemoryRequest request;
  v1::UnregisterMemoryResponse response;
};

}  // namespace

MemoryRegion::MemoryRegion(std::shared_ptr<MemoryLease> lease,
                           SharedMemoryObject object)
    : lease_(std::move(lease)), object_(std::move(object)) {}

MemoryRegion::MemoryRegion(std::shared_ptr<MemoryLease> lease,
                           CudaMemory memory)
    : lease_(std::move(lease)), cuda_(std::move(memory)) {}

MemoryRegion::~MemoryRegion() {
  const Registration last = registration();
  if (!last.name.empty()) lease_->Unregister(last);
}

Plane MemoryRegion::plane() const {
  return object_.has_value() ? Plane::kSharedMemory : Plane::kCudaMemory;
}

uint64_t MemoryRegion::byte_size() const {
  return object_.has_value() ? object_->bytes().size() : cuda_.byte_size;
}

std::span<std::byte> MemoryRegion::bytes() const {
  return object_.has_value() ? object_->bytes() : std::span<std::byte>();
}

MemoryRegion::Registration MemoryRegion::registration() const {
  const absl::MutexLock lock(&mutex_);
  return registration_;
}

MemoryLease::MemoryLease(const std::shared_ptr<grpc::Channel>& channel,
                         std::string token)
    : stub_(v1::MemoryService::NewStub(channel)), token_(std::move(token)) {}

MemoryLease::~MemoryLease() {
  const absl::MutexLock lock(&mutex_);
  if (stream_ != nullptr) stream_->Close();
}

void MemoryLease::Register(std::shared_ptr<MemoryRegion> region,
                           absl::Time deadline, Registered registered) {
  if (Covers(*region)) {
    registered(absl::OkStatus());
    return;
  }
  Get(Soon(deadline), [self = shared_from_this(), region = std::move(region),
                       deadline, registered = std::move(registered)](
                          absl::StatusOr<std::string> lease) mutable {
    if (!lease.ok()) {
      registered(lease.status());
      return;
    }
    self->Send(region, *lease, deadline, /*may_retry=*/true,
               std::move(registered));
  });
}

void MemoryLease::Forget(const std::string& lease) {
  std::shared_ptr<LeaseStream> stream;
  {
    const absl::MutexLock lock(&mutex_);
    if (lease.empty() || lease != lease_) return;
    lease_.clear();
    stream = std::exchange(stream_, nullptr);
  }
  stream->Close();
}

bool MemoryLease::Covers(const MemoryRegion& region) const {
  const absl::MutexLock lock(&mutex_);
  return !lease_.empty() && !stream_->ended() &&
         region.registration().lease == lease_;
}

void MemoryLease::Get(absl::Time deadline, const WithLease& then) {
  std::string lease;
  std::shared_ptr<LeaseStream> opening;
  {
    const absl::MutexLock lock(&mutex_);
    if (!lease_.empty() && !stream_->ended()) {
      lease = lease_;
    } else {
      waiting_.push_back(then);
      // Whoever waits already has opened a stream, and all will be told.
      if (waiting_.size() > 1) return;
      lease_.clear();
      stream_ = LeaseStream::Create(
          stub_,
          [weak = weak_from_this()](const absl::StatusOr<std::string>& opened) {
            if (const auto self = weak.lock()) self->OnOpened(opened);
          });
      opening = stream_;
    }
  }
  if (opening != nullptr) {
    opening->Start(token_, deadline);
  } else {
    then(lease);
  }
}

void MemoryLease::OnOpened(const absl::StatusOr<std::string>& lease) {
  std::vector<WithLease> waiting;
  {
    const absl::MutexLock lock(&mutex_);
    if (lease.ok()) lease_ = *lease;
    waiting = std::exchange(waiting_, {});
  }
  for (const WithLease& then : waiting) then(lease);
}

void MemoryLease::Send(const std::shared_ptr<MemoryRegion>& region,
                       const std::string& lease, absl::Time deadline,
                       bool may_retry, Registered registered) {
  const bool shared = region->plane() == Plane::kSharedMemory;
  const std::string name = NewRegionName(shared ? "shared" : "cuda");
  auto answered = [self = shared_from_this(), region, lease, name, deadline,
                   may_retry, registered = std::move(registered)](
                      const grpc::Status& status,
                      const grpc::ClientContext& context) {
    if (status.ok()) {
      bool adopted = false;
      {
        const absl::MutexLock lock(&region->mutex_);
        adopted = region->registration_.lease != lease;
        if (adopted) region->registration_ = {lease, name};
      }
      // Another call of the same region was faster.
      if (!adopted) self->Unregister({lease, name});
      registered(absl::OkStatus());
      return;
    }
    if (may_retry && status.error_code() == grpc::StatusCode::NOT_FOUND) {
      self->Forget(lease);
      self->Get(Soon(deadline), [self, region, deadline,
                                 registered](absl::StatusOr<std::string> next) {
        if (!next.ok()) {
          registered(next.status());
          return;
        }
        self->Send(region, *next, deadline, /*may_retry=*/false, registered);
      });
      return;
    }
    registered(ToAbslStatus(status, context));
  };
  if (shared) {
    auto rpc = std::make_shared<MemoryRpc<v1::RegisterSharedMemoryRequest>>();
    PrepareContext(token_, Soon(deadline), &rpc->context);
    rpc->request.set_lease(lease);
    rpc->request.set_region(name);
    rpc->request.set_object_name(region->object_->name());
    rpc->request.set_byte_size(region->byte_size());
    stub_->async()->RegisterSharedMemory(
        &rpc->context, &rpc->request, &rpc->response,
        [rpc, answered](const grpc::Status& status) {
          answered(status, rpc->context);
        });
    return;
  }
  auto rpc = std::make_shared<MemoryRpc<v1::RegisterCudaMemoryRequest>>();
  PrepareContext(token_, Soon(deadline), &rpc->context);
  rpc->request.set_lease(lease);
  rpc->request.set_region(name);
  rpc->request.set_ipc_handle(region->cuda_.ipc_handle);
  rpc->request.set_device_uuid(region->cuda_.device_uuid);
  rpc->request.set_offset(region->cuda_.offset);
  rpc->request.set_byte_size(region->cuda_.byte_size);
  stub_->async()->RegisterCudaMemory(
      &rpc->context, &rpc->request, &rpc->response,
      [rpc, answered](const grpc::Status& status) {
        answered(status, rpc->context);
      });
}

void MemoryLease::Unregister(const MemoryRegion::Registration& registration) {
  {
    const absl::MutexLock lock(&mutex_);
    if (registration.lease != lease_ || stream_->ended()) return;
  }
  auto rpc = std::make_shared<UnregisterRpc>();
  PrepareContext(token_, absl::InfiniteFuture(), &rpc->context);
  rpc->request.set_lease(registration.lease);
  rpc->request.set_region(registration.name);
  stub_->async()->UnregisterMemory(&rpc->context, &rpc->request, &rpc->response,
                                   [rpc, stub = stub_](const grpc::Status&) {});
}

}  // namespace ithaca::client
