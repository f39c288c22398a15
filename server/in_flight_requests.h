#ifndef ITHACA_SERVER_IN_FLIGHT_REQUESTS_H_
#define ITHACA_SERVER_IN_FLIGHT_REQUESTS_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace ithaca::server {

// The ids of the requests that run: no two are the same at one time.
// Thread-safe.
class InFlightRequests {
 public:
  // Holds an id until Release or its end. Movable.
  class Registration {
   public:
    Registration() = default;
    Registration(Registration&& other) noexcept { *this = std::move(other); }
    Registration& operator=(Registration&& other) noexcept;
    ~Registration() { Release(); }

    // The id may be used again from here on. Idempotent.
    void Release();
    // Stays readable after Release.
    const std::string& id() const { return id_; }

   private:
    friend class InFlightRequests;
    InFlightRequests* owner_ = nullptr;  // nullptr: holds nothing
    std::string id_;
  };

  // Outlives its registrations.
  InFlightRequests() = default;
  InFlightRequests(const InFlightRequests&) = delete;
  InFlightRequests& operator=(const InFlightRequests&) = delete;

  // An empty id gets a fresh one: 32 random hexadecimal digits.
  // Errors: kAlreadyExists, naming the id.
  absl::StatusOr<Registration> Register(const std::string& id);

 private:
  absl::Mutex mutex_;
  absl::flat_hash_set<std::string> ids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_IN_FLIGHT_REQUESTS_H_
