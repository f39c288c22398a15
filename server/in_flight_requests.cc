#include "server/in_flight_requests.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"

namespace ithaca::server {

namespace {

std::string FreshId() {
  // Unguessable is not asked for, only unlike any other, on any server.
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  return absl::StrFormat("%016x%016x", random(), random());
}

}  // namespace

InFlightRequests::Registration& InFlightRequests::Registration::operator=(
    Registration&& other) noexcept {
  if (this != &other) {
    Release();
    owner_ = std::exchange(other.owner_, nullptr);
    id_ = std::move(other.id_);
  }
  return *this;
}

void InFlightRequests::Registration::Release() {
  if (owner_ == nullptr) return;
  const absl::MutexLock lock(&owner_->mutex_);
  owner_->ids_.erase(id_);
  owner_ = nullptr;
}

absl::StatusOr<InFlightRequests::Registration> InFlightRequests::Register(
    const std::string& id) {
  Registration registration;
  registration.id_ = id.empty() ? FreshId() : id;
  const absl::MutexLock lock(&mutex_);
  if (!ids_.insert(registration.id_).second) {
    return absl::AlreadyExistsError(absl::StrCat(
        "request_id: a request with the id \"",
        absl::Utf8SafeCEscape(registration.id_), "\" is in flight"));
  }
  registration.owner_ = this;
  return registration;
}

}  // namespace ithaca::server
