#include "server/region_table.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/lease_token.h"

namespace ithaca::server {

namespace {

// Connections that a lease's regions are open to. A client has one or a few;
// one that reconnects for ever names its lease instead.
constexpr size_t kMaxPeersPerLease = 16;

absl::Status UnknownRegion(const std::string& name) {
  return absl::NotFoundError(
      absl::StrCat("region: this client has none named \"",
                   absl::Utf8SafeCEscape(name), "\""));
}

}  // namespace

class RegionTable::Region {
 public:
  enum class State : uint8_t { kReserved, kRegistered, kLeaving };

  MemoryRegion facts;
  std::string lease;
  std::optional<SharedMemoryObject> object;

  // The rest under the table's lock.
  State state = State::kReserved;
  // Calls, and the registration while it runs.
  uint32_t uses = 1;
  bool unlink = false;
  std::vector<std::function<void()>> on_released;
};

struct RegionTable::Lease {
  std::set<std::string> peers;
  std::map<std::string, RegionPtr> regions;  // reserved and registered

  void AddPeer(const std::string& peer) {
    if (!peer.empty() && peers.size() < kMaxPeersPerLease) peers.insert(peer);
  }
};

RegionTable::RegionTable(Limits limits, DetachFunction detach)
    : limits_(limits),
      detach_(std::move(detach)),
      // Not from 1: a worker may still know regions of a coordinator before.
      next_id_(RandomNumber() >> 1) {}

// -------------------------------------------------------------------- leases

absl::StatusOr<std::string> RegionTable::OpenLease(const std::string& peer) {
  const std::string token = NewLeaseToken();
  auto lease = std::make_shared<Lease>();
  lease->AddPeer(peer);
  const absl::MutexLock lock(&mutex_);
  if (leases_.size() >= limits_.leases) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this server has ", limits_.leases, " leases open, its limit"));
  }
  leases_[token] = std::move(lease);
  return token;
}

size_t RegionTable::CloseLease(const std::string& lease, LeaseEnd end) {
  std::vector<RegionPtr> unused;
  size_t count = 0;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = leases_.find(lease);
    if (found == leases_.end()) return 0;
    count = found->second->regions.size();
    for (const auto& [name, region] : found->second->regions) {
      region->state = Region::State::kLeaving;
      region->unlink = end == LeaseEnd::kClientLeft;
      if (region->uses == 0) unused.push_back(region);
    }
    leases_.erase(found);
  }
  for (const RegionPtr& region : unused) Release(region);
  return count;
}

absl::Status RegionTable::UnknownLease() const {
  return absl::NotFoundError("lease: no such lease is open");
}

absl::Status RegionTable::CheckLease(const std::string& lease) const {
  const absl::MutexLock lock(&mutex_);
  return leases_.contains(lease) ? absl::OkStatus() : UnknownLease();
}

// -------------------------------------------------------------- registration

absl::StatusOr<RegionTable::RegionPtr> RegionTable::Reserve(
    const RegionAccess& access, const std::string& name,
    internal::v1::Region memory, std::optional<SharedMemoryObject> object) {
  auto region = std::make_shared<Region>();
  region->facts.name = name;
  region->facts.memory = std::move(memory);
  region->lease = access.lease;
  region->object = std::move(object);
  const absl::MutexLock lock(&mutex_);
  const auto lease = leases_.find(access.lease);
  if (lease == leases_.end()) return UnknownLease();
  if (regions_.contains(name)) {
    return absl::AlreadyExistsError(absl::StrCat(
        "region: the name \"", absl::Utf8SafeCEscape(name), "\" is taken"));
  }
  if (lease->second->regions.size() >= limits_.regions_per_lease) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the lease has ", limits_.regions_per_lease, " regions, its limit"));
  }
  if (regions_.size() >= limits_.regions) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this server has ", limits_.regions, " regions, its limit"));
  }
  region->facts.memory.set_id(next_id_++);
  lease->second->AddPeer(access.peer);
  lease->second->regions[name] = region;
  regions_[name] = region;
  return region;
}

const internal::v1::Region& RegionTable::MemoryOf(const RegionPtr& region) {
  return region->facts.memory;
}

void RegionTable::FinishRegistration(
    const RegionPtr& region, absl::Status attached,
    const std::function<void(absl::Status)>& done) {
  {
    const absl::MutexLock lock(&mutex_);
    if (region->state == Region::State::kLeaving && attached.ok()) {
      attached = UnknownLease();
    }
    if (attached.ok()) {
      region->state = Region::State::kRegistered;
    } else {
      if (region->state == Region::State::kReserved) {
        region->state = Region::State::kLeaving;
        leases_[region->lease]->regions.erase(region->facts.name);
      }
      region->on_released.push_back([attached, done] { done(attached); });
    }
  }
  LetGo(region);
  if (attached.ok()) done(attached);
}

absl::Status RegionTable::Unregister(const std::string& lease,
                                     const std::string& name,
                                     std::function<void()> on_released) {
  RegionPtr unused;
  {
    const absl::MutexLock lock(&mutex_);
    const auto holder = leases_.find(lease);
    if (holder == leases_.end()) return UnknownLease();
    const auto found = holder->second->regions.find(name);
    if (found == holder->second->regions.end() ||
        found->second->state != Region::State::kRegistered) {
      return UnknownRegion(name);
    }
    const RegionPtr region = found->second;
    holder->second->regions.erase(found);
    region->state = Region::State::kLeaving;
    region->on_released.push_back(std::move(on_released));
    if (region->uses == 0) unused = region;
  }
  if (unused != nullptr) Release(unused);
  return absl::OkStatus();
}

// ---------------------------------------------------------------- use by calls

absl::StatusOr<std::vector<RegionTable::Listed>> RegionTable::List(
    const std::string& lease) const {
  const absl::MutexLock lock(&mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return UnknownLease();
  std::vector<Listed> listed;
  for (const auto& [name, region] : found->second->regions) {
    if (region->state != Region::State::kRegistered) continue;
    listed.push_back(
        {name, region->facts.kind(), region->facts.byte_size(), region->uses});
  }
  return listed;
}

bool RegionTable::MayUse(const RegionAccess& access,
                         const Region& region) const {
  if (!access.lease.empty()) return access.lease == region.lease;
  const auto lease = leases_.find(region.lease);
  return lease != leases_.end() && lease->second->peers.contains(access.peer);
}

absl::StatusOr<RegionPin> RegionTable::Pin(const std::string& name,
                                           const RegionAccess& access) {
  RegionPtr region;
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = regions_.find(name);
    if (found == regions_.end() ||
        found->second->state != Region::State::kRegistered ||
        !MayUse(access, *found->second)) {
      return UnknownRegion(name);
    }
    region = found->second;
    ++region->uses;
  }
  const RegionPin pin = {
      {region, &region->facts},
      {region.get(), [this, region](const void*) { LetGo(region); }}};
  if (region->object.has_value()) {
    const uint64_t expected =
        pin.region->memory.shared().offset() + pin.region->byte_size();
    if (const uint64_t size = region->object->Size(); size < expected) {
      return absl::FailedPreconditionError(absl::StrCat(
          "region \"", absl::Utf8SafeCEscape(name),
          "\": its shared memory object has shrunk: expected at least ",
          expected, " bytes, got ", size));
    }
  }
  return pin;
}

// ------------------------------------------------------------------- release

void RegionTable::LetGo(const RegionPtr& region) {
  {
    const absl::MutexLock lock(&mutex_);
    if (--region->uses > 0 || region->state != Region::State::kLeaving) return;
  }
  Release(region);
}

void RegionTable::Release(const RegionPtr& region) {
  detach_(region->facts.memory, [this, region] { OnDetached(region); });
}

// Another lease may have a region in the same object: that client is alive.
bool RegionTable::OthersHave(const SharedMemoryObject& object,
                             const Region& region) const {
  return std::any_of(regions_.begin(), regions_.end(), [&](const auto& entry) {
    const Region& other = *entry.second;
    return &other != &region && other.state != Region::State::kLeaving &&
           other.object.has_value() &&
           other.object->device_number() == object.device_number() &&
           other.object->inode() == object.inode();
  });
}

void RegionTable::OnDetached(const RegionPtr& region) {
  std::optional<SharedMemoryObject> object;
  std::vector<std::function<void()>> on_released;
  {
    const absl::MutexLock lock(&mutex_);
    object = std::move(region->object);
    region->object.reset();
    if (object.has_value() && region->unlink && !OthersHave(*object, *region)) {
      object->Unlink();
    }
    object.reset();
    regions_.erase(region->facts.name);
    on_released.swap(region->on_released);
    ++running_callbacks_;
  }
  for (const auto& function : on_released) function();
  const absl::MutexLock lock(&mutex_);
  --running_callbacks_;
}

bool RegionTable::AwaitEmpty(absl::Time deadline) {
  const absl::MutexLock lock(&mutex_);
  const auto empty = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return regions_.empty() && running_callbacks_ == 0;
  };
  return mutex_.AwaitWithDeadline(absl::Condition(&empty), deadline);
}

RegionTable::Totals RegionTable::totals() const {
  Totals totals;
  const absl::MutexLock lock(&mutex_);
  totals.leases = leases_.size();
  for (const auto& [name, region] : regions_) {
    const auto kind = static_cast<size_t>(region->facts.kind());
    ++totals.regions[kind];
    totals.bytes[kind] += static_cast<double>(region->facts.byte_size());
  }
  return totals;
}

}  // namespace ithaca::server
