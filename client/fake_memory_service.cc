#include "client/fake_memory_service.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace ithaca::client {
namespace {

grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                 const grpc::Status& status) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(status);
  return reactor;
}

grpc::Status NotFound(const std::string& what) {
  return {grpc::StatusCode::NOT_FOUND, what};
}

}  // namespace

class FakeMemoryService::Lease
    : public grpc::ServerWriteReactor<v1::KeepLeaseResponse> {
 public:
  Lease(FakeMemoryService* service, std::string name)
      : service_(service), name_(std::move(name)) {
    message_.set_lease(name_);
    StartWrite(&message_);
  }

  const std::string& name() const { return name_; }

  void Close() {
    {
      const absl::MutexLock lock(&mutex_);
      if (std::exchange(closed_, true)) return;
    }
    Finish(grpc::Status::OK);
  }

  void OnWriteDone(bool) override {}
  void OnCancel() override { Close(); }
  void OnDone() override {
    service_->End(this);
    delete this;
  }

 private:
  FakeMemoryService* const service_;
  const std::string name_;
  v1::KeepLeaseResponse message_;
  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerWriteReactor<v1::KeepLeaseResponse>* FakeMemoryService::KeepLease(
    grpc::CallbackServerContext*, const v1::KeepLeaseRequest*) {
  const absl::MutexLock lock(&mutex_);
  auto* lease = new Lease(this, absl::StrCat("lease-", next_lease_++));
  leases_[lease->name()] = lease;
  streams_.insert(lease);
  return lease;
}

grpc::ServerUnaryReactor* FakeMemoryService::RegisterSharedMemory(
    grpc::CallbackServerContext* context,
    const v1::RegisterSharedMemoryRequest* request,
    v1::RegisterMemoryResponse*) {
  const int fd = shm_open(request->object_name().c_str(), O_RDWR, 0);
  if (fd < 0) return Answer(context, NotFound(request->object_name()));
  struct stat status = {};
  fstat(fd, &status);
  close(fd);
  if (static_cast<uint64_t>(status.st_size) < request->byte_size()) {
    return Answer(context, {grpc::StatusCode::INVALID_ARGUMENT, "byte_size"});
  }
  return Answer(context, Add(request->lease(), request->region(),
                             {request->lease(), request->object_name(),
                              request->byte_size()}));
}

grpc::ServerUnaryReactor* FakeMemoryService::RegisterCudaMemory(
    grpc::CallbackServerContext* context,
    const v1::RegisterCudaMemoryRequest* request, v1::RegisterMemoryResponse*) {
  return Answer(context, Add(request->lease(), request->region(),
                             {request->lease(), "", request->byte_size()}));
}

grpc::ServerUnaryReactor* FakeMemoryService::UnregisterMemory(
    grpc::CallbackServerContext* context,
    const v1::UnregisterMemoryRequest* request, v1::UnregisterMemoryResponse*) {
  const absl::MutexLock lock(&mutex_);
  const bool known = regions_.erase(request->region()) == 1;
  return Answer(context,
                known ? grpc::Status::OK : NotFound(request->region()));
}

grpc::Status FakeMemoryService::Add(const std::string& lease,
                                    const std::string& name, Region region) {
  const absl::MutexLock lock(&mutex_);
  if (!refusal_.ok()) return refusal_;
  if (leases_.count(lease) == 0) return NotFound(lease);
  if (!regions_.emplace(name, std::move(region)).second) {
    return {grpc::StatusCode::ALREADY_EXISTS, name};
  }
  ++registrations_;
  return grpc::Status::OK;
}

void FakeMemoryService::RefuseWith(grpc::Status status) {
  const absl::MutexLock lock(&mutex_);
  refusal_ = std::move(status);
}

void FakeMemoryService::EndLeases() {
  std::set<Lease*> streams;
  {
    const absl::MutexLock lock(&mutex_);
    streams = streams_;
  }
  for (Lease* lease : streams) lease->Close();
}

void FakeMemoryService::LoseLeases() {
  const absl::MutexLock lock(&mutex_);
  leases_.clear();
  regions_.clear();
}

void FakeMemoryService::End(Lease* lease) {
  const absl::MutexLock lock(&mutex_);
  streams_.erase(lease);
  leases_.erase(lease->name());
  for (auto it = regions_.begin(); it != regions_.end();) {
    const auto here = it++;
    if (here->second.lease == lease->name()) regions_.erase(here);
  }
}

int FakeMemoryService::leases() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int>(leases_.size());
}

int FakeMemoryService::regions() const {
  const absl::MutexLock lock(&mutex_);
  return static_cast<int>(regions_.size());
}

int FakeMemoryService::registrations() const {
  const absl::MutexLock lock(&mutex_);
  return registrations_;
}

grpc::Status FakeMemoryService::Find(const grpc::CallbackServerContext& context,
                                     const v1::MemorySlice& slice,
                                     Region* region) const {
  const auto& metadata = context.client_metadata();
  const auto lease = metadata.find("ithaca-lease");
  if (lease == metadata.end()) return NotFound("no ithaca-lease");
  const absl::MutexLock lock(&mutex_);
  const auto found = regions_.find(slice.region());
  if (found == regions_.end() ||
      found->second.lease !=
          std::string(lease->second.data(), lease->second.size())) {
    return NotFound(slice.region());
  }
  *region = found->second;
  if (slice.offset() > region->byte_size ||
      slice.byte_size() > region->byte_size - slice.offset()) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "memory"};
  }
  return grpc::Status::OK;
}

grpc::Status FakeMemoryService::Read(const grpc::CallbackServerContext& context,
                                     const v1::MemorySlice& slice,
                                     std::string* bytes) const {
  Region region;
  grpc::Status status = Find(context, slice, &region);
  if (!status.ok() || region.object_name.empty()) return status;
  const int fd = shm_open(region.object_name.c_str(), O_RDONLY, 0);
  if (fd < 0) return NotFound(region.object_name);
  bytes->resize(slice.byte_size());
  const ssize_t size = pread(fd, bytes->data(), bytes->size(),
                             static_cast<off_t>(slice.offset()));
  close(fd);
  if (size != static_cast<ssize_t>(bytes->size())) return NotFound("bytes");
  return status;
}

grpc::Status FakeMemoryService::Write(
    const grpc::CallbackServerContext& context, const v1::MemorySlice& slice,
    const std::string& bytes) const {
  Region region;
  grpc::Status status = Find(context, slice, &region);
  if (!status.ok() || region.object_name.empty()) return status;
  const int fd = shm_open(region.object_name.c_str(), O_RDWR, 0);
  if (fd < 0) return NotFound(region.object_name);
  const ssize_t size = pwrite(fd, bytes.data(), bytes.size(),
                              static_cast<off_t>(slice.offset()));
  close(fd);
  if (size != static_cast<ssize_t>(bytes.size())) return NotFound("bytes");
  return status;
}

}  // namespace ithaca::client
