#ifndef ITHACA_WORKER_REGION_TABLE_H_
#define ITHACA_WORKER_REGION_TABLE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "worker/region.h"

namespace ithaca {

// The regions that this process has open, by id. What takes long, pinning and
// letting go of much memory, runs on a thread of the table's own, so that
// nobody's heartbeats wait for it.
//
// Thread-safe.
class RegionTable {
 public:
  // Outlives this.
  explicit RegionTable(RegionOpener* opener);
  // Does what was asked for. REQUIRES: no region is in use.
  ~RegionTable();
  RegionTable(const RegionTable&) = delete;
  RegionTable& operator=(const RegionTable&) = delete;

  // Makes the region ready for calls, soon; `done` is called once.
  void Attach(Region region, std::function<void(const absl::Status&)> done);

  // Forgets the region, if it is known; `done` is called once nobody uses it
  // and it is closed. Its id is not opened again: a call that was on its way
  // when its client unregistered would hold the memory for ever.
  void Detach(uint64_t id, std::function<void()> done);

  // Forgets every region: their ids mean nothing any more. Those in use are
  // closed when their users let go.
  void DropAll();

  // The region, in use for as long as the caller holds it; opened if it is not
  // known, or known as another one. Errors: kNotFound (detached), and see
  // RegionOpener.
  absl::StatusOr<std::shared_ptr<AttachedRegion>> Acquire(const Region& region);

 private:
  struct Entry;

  void Post(std::function<void()> task);
  void RunTasks();
  bool HasTaskOrEnds() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || !tasks_.empty();
  }

  RegionOpener* const opener_;
  absl::Mutex mutex_;
  std::map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  // The ids that were detached last, oldest first.
  std::deque<uint64_t> detached_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace ithaca

#endif  // ITHACA_WORKER_REGION_TABLE_H_
