#include "server/group_manager_impl.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/group_lifecycle.h"
#include "server/logging.h"
#include "server/membership_service.h"
#include "server/rendezvous_service.h"
#include "server/worker_registry.h"

namespace ithaca::server {
namespace {

using internal::v1::WorkerCommand;

// What Stop grants workers to see their stream end before it is cut.
constexpr absl::Duration kGracefulClose = absl::Seconds(1);

// A clock that never goes back, for deadlines only.
absl::Time MonotonicNow() {
  return absl::UnixEpoch() +
         absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

GroupManagerOptions Completed(GroupManagerOptions options) {
  if (options.first_generation == 0) {
    options.first_generation =
        static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()));
  }
  return options;
}

}  // namespace

// One lock around the state machine. Its effects on streams and the store are
// started under the lock, which keeps their order; its news for the observer
// wait in a queue that a thread without the lock empties.
class GroupManagerImpl::Core : public MembershipListener, private GroupEffects {
 public:
  explicit Core(GroupManagerOptions options)
      : options_(Completed(std::move(options))),
        service_(this, &store_, options_.token),
        lifecycle_(options_, this, MonotonicNow()),
        ticker_([this] { TickLoop(); }),
        notifier_([this] { NotifyLoop(); }) {}

  ~Core() override { Stop(); }

  grpc::Service* service() { return &service_; }

  void SetObserver(GroupObserver* observer) {
    absl::MutexLock lock(&mutex_);
    observer_ = observer;
  }

  template <typename Function>
  auto With(const Function& function) {
    absl::MutexLock lock(&mutex_);
    // Whatever happens may bring the next deadline nearer.
    absl::Cleanup wake = [this] { deadline_moved_.Signal(); };
    return function(lifecycle_);
  }

  void Stop() {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      stopping_ = true;
      lifecycle_.Drain();
      lifecycle_.DismissLocalWorkers("the coordinator is shutting down");
      for (auto& [id, stream] : streams_) {
        stream->Close(
            absl::UnavailableError("the coordinator is shutting down"));
      }
      deadline_moved_.Signal();
      news_arrived_.Signal();
    }
    ticker_.join();
    notifier_.join();
    store_.CloseAll();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(this, &Core::NoStreams),
                            kGracefulClose);
    for (auto& [id, stream] : streams_) {
      stream->Cancel(
          absl::UnavailableError("the coordinator is shutting down"));
    }
    mutex_.Await(absl::Condition(this, &Core::NoStreams));
  }

  // MembershipListener.
  absl::StatusOr<WorkerId> OnJoin(std::shared_ptr<MembershipStream> stream,
                                  const internal::v1::Join& join,
                                  std::string_view peer_host) override {
    absl::StatusOr<WorkerId> id = Admit(std::move(stream), join, peer_host);
    if (id.ok()) {
      Log(spdlog::level::info, "worker joined",
          {{"worker", join.worker()},
           {"address", ResolveAddress(join.address(), peer_host)},
           {"device", join.device()}});
    } else {
      Log(spdlog::level::warn, "worker refused",
          {{"worker", join.worker()},
           {"error", std::string(id.status().message())}});
    }
    return id;
  }

  void OnEvent(WorkerId worker,
               const internal::v1::WorkerEvent& event) override {
    With([&](GroupLifecycle& lifecycle) {
      lifecycle.OnEvent(worker, event, MonotonicNow());
    });
  }

  void OnStreamEnd(WorkerId worker) override {
    With([&](GroupLifecycle& lifecycle) {
      lifecycle.OnStreamEnd(worker, MonotonicNow());
    });
  }

  void OnStreamDone(WorkerId worker) override {
    absl::MutexLock lock(&mutex_);
    streams_.erase(worker);
  }

 private:
  absl::StatusOr<WorkerId> Admit(std::shared_ptr<MembershipStream> stream,
                                 const internal::v1::Join& join,
                                 std::string_view peer_host) {
    return With([&](GroupLifecycle& lifecycle) -> absl::StatusOr<WorkerId> {
      mutex_.AssertHeld();
      if (stopping_) {
        return absl::UnavailableError("the coordinator is shutting down");
      }
      const absl::Time now = MonotonicNow();
      absl::StatusOr<WorkerId> id = lifecycle.Join(join, peer_host, now);
      if (!id.ok()) return id;
      streams_.emplace(*id, std::move(stream));
      lifecycle.Welcome(*id, now);
      return id;
    });
  }

  bool NoStreams() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return streams_.empty();
  }

  void TickLoop() {
    absl::MutexLock lock(&mutex_);
    while (!stopping_) {
      lifecycle_.Tick(MonotonicNow());
      const absl::Duration pause = lifecycle_.NextDeadline() - MonotonicNow();
      if (pause > absl::ZeroDuration()) {
        deadline_moved_.WaitWithTimeout(&mutex_, pause);
      }
    }
  }

  void NotifyLoop() {
    absl::MutexLock lock(&mutex_);
    while (true) {
      while (news_.empty() && !stopping_) news_arrived_.Wait(&mutex_);
      if (stopping_) return;
      std::function<void(GroupObserver*)> tell = std::move(news_.front());
      news_.pop_front();
      GroupObserver* const observer = observer_;
      mutex_.Unlock();
      tell(observer);
      mutex_.Lock();
    }
  }

  void Tell(std::function<void(GroupObserver*)> news)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    news_.push_back(std::move(news));
    news_arrived_.Signal();
  }

  // GroupEffects, all under the lock.
  void Send(WorkerId worker, WorkerCommand command) override {
    mutex_.AssertHeld();
    auto it = streams_.find(worker);
    if (it != streams_.end()) it->second->Send(std::move(command));
  }

  void Disconnect(WorkerId worker, absl::Status why) override {
    mutex_.AssertHeld();
    auto it = streams_.find(worker);
    if (it != streams_.end()) it->second->Cancel(why);
  }

  void KillLocalSlot(int slot) override {
    if (options_.kill_local_slot) options_.kill_local_slot(slot);
  }

  void WorkerLost(std::string_view worker, std::string_view why) override {
    mutex_.AssertHeld();
    if (stopping_) return;
    Log(spdlog::level::warn, "worker lost",
        {{"worker", worker}, {"reason", why}});
  }

  void WorkerLeft(std::string_view worker) override {
    Log(spdlog::level::info, "worker left", {{"worker", worker}});
  }

  void OpenRendezvous(std::string_view id) override { store_.Open(id); }
  void CloseRendezvous(std::string_view id) override { store_.Close(id); }

  void GroupFormed(Group group) override {
    mutex_.AssertHeld();
    Tell([group = std::move(group)](GroupObserver* observer) {
      if (observer != nullptr) observer->OnGroupFormed(group);
    });
  }

  void GroupDraining(std::string name, uint64_t generation) override {
    mutex_.AssertHeld();
    Tell([=](GroupObserver* observer) {
      if (observer != nullptr) observer->OnGroupDraining(name, generation);
    });
  }

  void GroupLost(std::string name, uint64_t generation,
                 GroupFailureReason reason, std::string message) override {
    mutex_.AssertHeld();
    Tell([=](GroupObserver* observer) {
      if (observer != nullptr) {
        observer->OnGroupLost(name, generation, reason, message);
      }
    });
  }

  void FormationFailed(std::string name, uint64_t generation,
                       std::string message) override {
    mutex_.AssertHeld();
    if (!options_.on_formation_failed) return;
    Tell([=, this](GroupObserver*) {
      options_.on_formation_failed(name, generation, message);
    });
  }

  const GroupManagerOptions options_;
  RendezvousService store_;
  MembershipService service_;

  absl::Mutex mutex_;
  GroupLifecycle lifecycle_ ABSL_GUARDED_BY(mutex_);
  std::map<WorkerId, std::shared_ptr<MembershipStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  GroupObserver* observer_ ABSL_GUARDED_BY(mutex_) = nullptr;
  std::deque<std::function<void(GroupObserver*)>> news_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar deadline_moved_;
  absl::CondVar news_arrived_;

  // Last: they use all of the above.
  std::thread ticker_;
  std::thread notifier_;
};

GroupManagerImpl::GroupManagerImpl(GroupManagerOptions options)
    : core_(std::make_unique<Core>(std::move(options))) {}

GroupManagerImpl::~GroupManagerImpl() = default;

grpc::Service* GroupManagerImpl::membership_service() {
  return core_->service();
}

void GroupManagerImpl::AddTo(grpc::ServerBuilder* builder) {
  // Workers ping every few seconds; gRPC takes that for abuse by default.
  builder->AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder->RegisterService(core_->service());
}

void GroupManagerImpl::Drain() {
  core_->With([](GroupLifecycle& lifecycle) { lifecycle.Drain(); });
}

void GroupManagerImpl::Stop() { core_->Stop(); }

void GroupManagerImpl::SetObserver(GroupObserver* observer) {
  core_->SetObserver(observer);
}

void GroupManagerImpl::MarkReady(std::string_view name, uint64_t generation) {
  core_->With([&](GroupLifecycle& lifecycle) {
    lifecycle.MarkReady(name, generation);
  });
}

void GroupManagerImpl::ReportFailure(std::string_view name, uint64_t generation,
                                     GroupFailureReason reason,
                                     std::string_view message) {
  core_->With([&](GroupLifecycle& lifecycle) {
    lifecycle.ReportFailure(name, generation, reason, message, MonotonicNow());
  });
}

void GroupManagerImpl::Release(std::string_view name, uint64_t generation) {
  core_->With([&](GroupLifecycle& lifecycle) {
    lifecycle.Release(name, generation, MonotonicNow());
  });
}

std::vector<Group> GroupManagerImpl::Groups() const {
  return core_->With(
      [](GroupLifecycle& lifecycle) { return lifecycle.Groups(); });
}

std::vector<GroupMember> GroupManagerImpl::JoinedWorkers() const {
  return core_->With(
      [](GroupLifecycle& lifecycle) { return lifecycle.JoinedWorkers(); });
}

GroupManager::WorkerCounts GroupManagerImpl::Workers() const {
  return core_->With(
      [](GroupLifecycle& lifecycle) { return lifecycle.Workers(); });
}

}  // namespace ithaca::server
