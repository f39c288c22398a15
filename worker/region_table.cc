#include "worker/region_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"

namespace ithaca {
namespace {

// More than calls can be on their way.
constexpr size_t kDetachedRemembered = 1024;

// An open region and what is to happen once it is closed.
struct Holder {
  std::unique_ptr<AttachedRegion> region;
  std::function<void()> on_closed;

  ~Holder() {
    region.reset();
    if (on_closed) on_closed();
  }
};

}  // namespace

struct RegionTable::Entry {
  explicit Entry(Region what) : region(std::move(what)) {}

  const Region region;
  // The rest is written once, by whoever made the entry, before this.
  absl::Notification opened;
  absl::Status status;
  std::shared_ptr<Holder> holder;
};

RegionTable::RegionTable(RegionOpener* opener)
    : opener_(opener), thread_([this] { RunTasks(); }) {}

RegionTable::~RegionTable() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  thread_.join();
}

void RegionTable::Post(std::function<void()> task) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
}

void RegionTable::RunTasks() {
  while (true) {
    std::function<void()> task;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &RegionTable::HasTaskOrEnds));
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void RegionTable::Attach(Region region,
                         std::function<void(const absl::Status&)> done) {
  Post([this, region = std::move(region), done = std::move(done)] {
    done(Acquire(region).status());
  });
}

void RegionTable::Detach(uint64_t id, std::function<void()> done) {
  {
    absl::MutexLock lock(&mutex_);
    detached_.push_back(id);
    if (detached_.size() > kDetachedRemembered) detached_.pop_front();
  }
  Post([this, id, done = std::move(done)] {
    std::shared_ptr<Entry> entry;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = entries_.find(id);
      if (found != entries_.end()) {
        entry = std::move(found->second);
        entries_.erase(found);
      }
    }
    if (entry != nullptr) entry->opened.WaitForNotification();
    if (entry == nullptr || entry->holder == nullptr) return done();
    // Whoever lets go of it last closes it, here if nobody uses it.
    entry->holder->on_closed = done;
  });
}

void RegionTable::DropAll() {
  std::map<uint64_t, std::shared_ptr<Entry>> dropped;
  absl::MutexLock lock(&mutex_);
  dropped.swap(entries_);
  detached_.clear();
  if (dropped.empty()) return;
  tasks_.push_back(
      [dropped = std::move(dropped)]() mutable { dropped.clear(); });
}

absl::StatusOr<std::shared_ptr<AttachedRegion>> RegionTable::Acquire(
    const Region& region) {
  std::shared_ptr<Entry> entry, replaced;
  bool is_new = false;
  {
    absl::MutexLock lock(&mutex_);
    if (std::find(detached_.begin(), detached_.end(), region.id) !=
        detached_.end()) {
      return absl::NotFoundError(
          absl::StrCat("region ", region.id, " was unregistered"));
    }
    std::shared_ptr<Entry>& place = entries_[region.id];
    if (place == nullptr || !(place->region == region)) {
      // Another coordinator than the one that gave this id to the old one.
      replaced = std::exchange(place, std::make_shared<Entry>(region));
      is_new = true;
    }
    entry = place;
  }
  if (is_new) {
    auto opened = opener_->Open(region);
    entry->status = opened.status();
    if (opened.ok()) {
      entry->holder = std::make_shared<Holder>();
      entry->holder->region = *std::move(opened);
    } else {
      absl::MutexLock lock(&mutex_);
      const auto found = entries_.find(region.id);
      if (found != entries_.end() && found->second == entry) {
        entries_.erase(found);
      }
    }
    entry->opened.Notify();
  } else {
    entry->opened.WaitForNotification();
  }
  if (!entry->status.ok()) return entry->status;
  return std::shared_ptr<AttachedRegion>(entry->holder,
                                         entry->holder->region.get());
}

}  // namespace ithaca
