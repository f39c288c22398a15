#ifndef ITHACA_SERVER_REGION_TABLE_H_
#define ITHACA_SERVER_REGION_TABLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ithaca/internal/v1/worker.pb.h"
#include "server/memory_region.h"
#include "server/shared_memory_object.h"

namespace ithaca::server {

// All leases, the regions they hold, and the calls that use those.
//
// A region's life: reserved (it has its name and its lease; nobody finds it)
// -> registered (calls may pin it) -> leaving (unregistered, or its lease has
// ended; nobody finds it, the calls that have it go on) -> released, once no
// call has it: detached at the workers, its object closed, its name free.
//
// Thread-safe. Callbacks come with no lock held, from whichever thread is the
// last to let a region go.
class RegionTable {
 public:
  struct Limits {
    size_t leases = 256;
    size_t regions_per_lease = 256;
    size_t regions = 4096;  // of all leases; each shared one is a descriptor
  };

  // Has all workers forget a region that no call uses, then calls `done` once,
  // from any thread.
  using DetachFunction = std::function<void(const internal::v1::Region& memory,
                                            std::function<void()> done)>;

  // A region from Reserve to its release.
  class Region;
  using RegionPtr = std::shared_ptr<Region>;

  enum class LeaseEnd : uint8_t {
    kClientLeft,  // what it still had registered loses its name in /dev/shm
    kServerEnds,  // the client lives and keeps its objects
  };

  // Outlives every pin; see AwaitEmpty.
  RegionTable(Limits limits, DetachFunction detach);
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // peer: of the connection that opens it, as in RegionAccess.
  // Errors: kResourceExhausted.
  absl::StatusOr<std::string> OpenLease(const std::string& peer);
  // Removes the lease and all its regions. Returns how many it still had.
  size_t CloseLease(const std::string& lease, LeaseEnd end);
  // Errors: kNotFound.
  absl::Status CheckLease(const std::string& lease) const;

  // Takes the name for a region of this memory, whose id it sets. Calls over
  // `access.peer` may use the lease's regions from now on. `object`: what
  // shared memory is in. Each region returned must get FinishRegistration.
  // Errors: kNotFound (the lease), kAlreadyExists, kResourceExhausted.
  absl::StatusOr<RegionPtr> Reserve(const RegionAccess& access,
                                    const std::string& name,
                                    internal::v1::Region memory,
                                    std::optional<SharedMemoryObject> object);
  static const internal::v1::Region& MemoryOf(const RegionPtr& region);
  // Ends a registration, well if the workers' answer is OK. If it is not, or
  // the lease has ended (kNotFound), the region is released first. `done` gets
  // the outcome.
  void FinishRegistration(const RegionPtr& region, absl::Status attached,
                          const std::function<void(absl::Status)>& done);

  // From here on no call finds the region. on_released: once none uses it and
  // the name is free. Errors: kNotFound (the lease, or no such region of it).
  absl::Status Unregister(const std::string& lease, const std::string& name,
                          std::function<void()> on_released);

  struct Listed {
    std::string name;
    MemoryKind kind;
    uint64_t byte_size;
    uint32_t calls_in_use;
  };
  // A lease's registered regions, by name. Errors: kNotFound (the lease).
  absl::StatusOr<std::vector<Listed>> List(const std::string& lease) const;

  // As RegionLookup; the same kNotFound whether it is not there or not theirs.
  absl::StatusOr<RegionPin> Pin(const std::string& name,
                                const RegionAccess& access);

  struct Totals {
    size_t leases = 0;
    size_t regions[2] = {};  // by MemoryKind
    double bytes[2] = {};
  };
  Totals totals() const;

  // Waits until every region is released and no callback is running.
  bool AwaitEmpty(absl::Time deadline);

 private:
  struct Lease;

  absl::Status UnknownLease() const;
  bool MayUse(const RegionAccess& access, const Region& region) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool OthersHave(const SharedMemoryObject& object, const Region& region) const
      ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void LetGo(const RegionPtr& region);
  void Release(const RegionPtr& region);
  void OnDetached(const RegionPtr& region);

  const Limits limits_;
  const DetachFunction detach_;

  mutable absl::Mutex mutex_;
  uint64_t next_id_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Lease>> leases_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, RegionPtr> regions_ ABSL_GUARDED_BY(mutex_);
  int running_callbacks_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace ithaca::server

#endif  // ITHACA_SERVER_REGION_TABLE_H_
