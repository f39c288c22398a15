#include "server/memory_service.h"

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <spdlog/common.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/v1/memory.grpc.pb.h"
#include "server/logging.h"
#include "server/memory_request.h"
#include "server/region_access.h"
#include "server/status_mapping.h"

namespace ithaca::server {

namespace {

// About what a server needs to come back.
constexpr absl::Duration kRetryAfterEnd = absl::Seconds(1);

absl::Status Ending() {
  return WithRetryHint(absl::UnavailableError("the server is ending"),
                       kRetryAfterEnd);
}

}  // namespace

// One KeepLease call: the lease is open for as long as it is. It ends once, in
// End.
class MemoryService::LeaseStream
    : public grpc::ServerWriteReactor<v1::KeepLeaseResponse> {
 public:
  // It keeps itself until gRPC is done with it.
  static std::shared_ptr<LeaseStream> Start(
      MemoryService* service, const grpc::CallbackServerContext& context) {
    auto stream = std::make_shared<LeaseStream>(service);
    stream->self_ = stream;
    absl::Status status = service->CheckToken(context);
    if (status.ok()) status = service->CheckAnyPlane();
    if (status.ok()) status = stream->Open(ConnectionOf(context.peer()));
    if (status.ok()) {
      stream->StartWrite(&stream->response_);
    } else {
      stream->End(status, RegionTable::LeaseEnd::kServerEnds);
    }
    return stream;
  }

  explicit LeaseStream(MemoryService* service)
      : service_(service), arrival_(absl::Now()) {}

  // status: OK if it is the client that left.
  void End(const absl::Status& status, RegionTable::LeaseEnd end) {
    {
      const absl::MutexLock lock(&mutex_);
      if (std::exchange(ended_, true)) return;
    }
    if (!response_.lease().empty()) CloseLease(end);
    const grpc::Status grpc_status = ToGrpc(status);
    service_->metrics_->CountRequest(
        Method::kKeepLease, grpc_status.error_code(),
        absl::ToDoubleSeconds(absl::Now() - arrival_));
    Finish(grpc_status);
  }

 private:
  absl::Status Open(const std::string& peer) {
    const absl::MutexLock lock(&service_->mutex_);
    if (service_->ending_) return Ending();
    auto lease = service_->table_->OpenLease(peer);
    if (!lease.ok()) return lease.status();
    response_.set_lease(*std::move(lease));
    service_->streams_.insert(self_);
    return absl::OkStatus();
  }

  void CloseLease(RegionTable::LeaseEnd end) {
    const size_t regions = service_->table_->CloseLease(response_.lease(), end);
    const bool client_left = end == RegionTable::LeaseEnd::kClientLeft;
    // A client that goes in good order unregisters first.
    if (client_left && regions > 0) service_->metrics_->CountLeaseExpired();
    Log(spdlog::level::info, "lease ended",
        {{"by", client_left ? "client" : "server"},
         {"regions", static_cast<int64_t>(regions)}});
  }

  void OnWriteDone(bool ok) override {
    if (!ok) Leave();
  }
  void OnCancel() override { Leave(); }
  void Leave() { End(absl::OkStatus(), RegionTable::LeaseEnd::kClientLeft); }

  void OnDone() override {
    const auto self = std::move(self_);
    const absl::MutexLock lock(&service_->mutex_);
    service_->streams_.erase(self);
  }

  MemoryService* const service_;
  const absl::Time arrival_;
  std::shared_ptr<LeaseStream> self_;
  v1::KeepLeaseResponse response_;  // its lease is empty if none was opened
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

MemoryService::MemoryService(RegionTable* table, RegionAttacher* attacher,
                             Metrics* metrics, Options options)
    : table_(table),
      attacher_(attacher),
      metrics_(metrics),
      options_(std::move(options)) {}

absl::Status MemoryService::CheckToken(
    const grpc::CallbackServerContext& context) const {
  return options_.token.Check(context.client_metadata());
}

absl::Status MemoryService::CheckAnyPlane() const {
  if (options_.shared_memory || options_.cuda_memory) return absl::OkStatus();
  return absl::UnimplementedError(
      "this server has no memory plane enabled; --allow-shared-memory and "
      "--allow-cuda-memory enable them");
}

// -------------------------------------------------------------------- leases

grpc::ServerWriteReactor<v1::KeepLeaseResponse>* MemoryService::KeepLease(
    grpc::CallbackServerContext* context, const v1::KeepLeaseRequest*) {
  return LeaseStream::Start(this, *context).get();
}

void MemoryService::EndLeases() {
  absl::flat_hash_set<std::shared_ptr<LeaseStream>> streams;
  {
    const absl::MutexLock lock(&mutex_);
    ending_ = true;
    streams = streams_;
  }
  for (const auto& stream : streams) {
    stream->End(Ending(), RegionTable::LeaseEnd::kServerEnds);
  }
}

// -------------------------------------------------------------- registration

grpc::ServerUnaryReactor* MemoryService::RegisterSharedMemory(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Run(&MemoryService::BeginRegisterShared, context, *request, response,
             Method::kRegisterSharedMemory);
}

grpc::ServerUnaryReactor* MemoryService::RegisterCudaMemory(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Run(&MemoryService::BeginRegisterCuda, context, *request, response,
             Method::kRegisterCudaMemory);
}

grpc::ServerUnaryReactor* MemoryService::UnregisterMemory(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Run(&MemoryService::BeginUnregister, context, *request, response,
             Method::kUnregisterMemory);
}

grpc::ServerUnaryReactor* MemoryService::ListMemory(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Run(&MemoryService::List, context, *request, response,
             Method::kListMemory);
}

grpc::ServerUnaryReactor* MemoryService::Run(
    Begin begin, grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& request, grpc::ByteBuffer* response,
    Method method) {
  const auto call = MemoryCall::Start(context, response, metrics_, method);
  absl::Status status = CheckToken(*context);
  if (status.ok()) status = CheckAnyPlane();
  if (status.ok()) {
    status = (this->*begin)(call, ConnectionOf(context->peer()), request);
  }
  if (!status.ok()) call->Refuse(status);
  return call.get();
}

absl::Status MemoryService::BeginRegisterShared(const CallPtr& call,
                                                const std::string& peer,
                                                const grpc::ByteBuffer& bytes) {
  if (!options_.shared_memory) {
    return absl::UnimplementedError(
        "this server's shared memory plane is not enabled; "
        "--allow-shared-memory enables it");
  }
  v1::RegisterSharedMemoryRequest request;
  if (auto status = ParseMemoryRequest(bytes, &request); !status.ok()) {
    return status;
  }
  if (auto status = CheckRequest(request); !status.ok()) return status;
  // First: who has no lease learns nothing of this host's objects.
  if (auto status = table_->CheckLease(request.lease()); !status.ok()) {
    return status;
  }
  auto object = SharedMemoryObject::Open(request.object_name());
  if (!object.ok()) return object.status();
  if (auto status = CheckObject(request, *object); !status.ok()) return status;
  internal::v1::Region memory = DescribeRegion(request, *object);
  return Register(call, {request.lease(), peer}, request.region(),
                  std::move(memory), *std::move(object));
}

absl::Status MemoryService::BeginRegisterCuda(const CallPtr& call,
                                              const std::string& peer,
                                              const grpc::ByteBuffer& bytes) {
  if (!options_.cuda_memory) {
    return absl::UnimplementedError(
        "this server's CUDA memory plane is not enabled; --allow-cuda-memory "
        "with --device=cuda enables it");
  }
  v1::RegisterCudaMemoryRequest request;
  if (auto status = ParseMemoryRequest(bytes, &request); !status.ok()) {
    return status;
  }
  if (auto status = CheckRequest(request); !status.ok()) return status;
  return Register(call, {request.lease(), peer}, request.region(),
                  DescribeRegion(request), std::nullopt);
}

absl::Status MemoryService::Register(const CallPtr& call,
                                     const RegionAccess& access,
                                     const std::string& name,
                                     internal::v1::Region memory,
                                     std::optional<SharedMemoryObject> object) {
  auto region =
      table_->Reserve(access, name, std::move(memory), std::move(object));
  if (!region.ok()) return region.status();
  const auto finish = [this, call, region = *region](absl::Status attached) {
    // Who has gone meanwhile would never know that it has the region.
    if (attached.ok() && call->ended()) {
      attached = absl::CancelledError("the client left");
    }
    table_->FinishRegistration(region, std::move(attached),
                               [call](const absl::Status& status) {
                                 if (status.ok()) {
                                   call->Answer(v1::RegisterMemoryResponse());
                                 } else {
                                   call->Refuse(status);
                                 }
                               });
  };
  attacher_->Attach(RegionTable::MemoryOf(*region), finish);
  return absl::OkStatus();
}

absl::Status MemoryService::BeginUnregister(const CallPtr& call,
                                            const std::string& /*peer*/,
                                            const grpc::ByteBuffer& bytes) {
  v1::UnregisterMemoryRequest request;
  if (auto status = ParseMemoryRequest(bytes, &request); !status.ok()) {
    return status;
  }
  return table_->Unregister(request.lease(), request.region(), [call] {
    call->Answer(v1::UnregisterMemoryResponse());
  });
}

absl::Status MemoryService::List(const CallPtr& call,
                                 const std::string& /*peer*/,
                                 const grpc::ByteBuffer& bytes) {
  v1::ListMemoryRequest request;
  if (auto status = ParseMemoryRequest(bytes, &request); !status.ok()) {
    return status;
  }
  const auto listed = table_->List(request.lease());
  if (!listed.ok()) return listed.status();
  v1::ListMemoryResponse response;
  for (const RegionTable::Listed& one : *listed) {
    v1::MemoryRegion* const region = response.add_regions();
    region->set_region(one.name);
    region->set_kind(std::string(Name(one.kind)));
    region->set_byte_size(one.byte_size);
    region->set_calls_in_use(one.calls_in_use);
  }
  call->Answer(response);
  return absl::OkStatus();
}

}  // namespace ithaca::server
