#include "client/cli/load_generator.h"

#include <algorithm>
#include <utility>

#include "absl/synchronization/mutex.h"

namespace ithaca::client {
namespace {

constexpr absl::Duration kProgressInterval = absl::Milliseconds(100);

class Load {
 public:
  Load(Client* client, const AttentionArguments& call,
       const LoadOptions& options)
      : client_(client), call_(call), options_(options) {
    if (options_.allocated) {
      for (TensorView* view : {&call_.query, &call_.key, &call_.value}) {
        Tensor copy = Allocate(*view);
        std::copy(view->bytes.begin(), view->bytes.end(), copy.bytes().begin());
        *view = copy.view();
      }
    }
    for (int slot = 0; slot < options_.concurrency; ++slot) {
      outputs_.push_back(options_.allocated
                             ? Allocate(call_.query)
                             : Tensor(call_.query.dtype, call_.query.shape));
    }
    begin_ = absl::Now();
  }

  LoadResult Run(const std::function<void(const LoadProgress&)>& on_progress) {
    for (int slot = 0; slot < options_.concurrency; ++slot) StartNext(slot);
    absl::MutexLock lock(&mutex_);
    while (!mutex_.AwaitWithTimeout(absl::Condition(this, &Load::AllEnded),
                                    kProgressInterval)) {
      const LoadProgress progress = Progress();
      mutex_.Unlock();
      on_progress(progress);
      mutex_.Lock();
    }
    result_.seconds = absl::ToDoubleSeconds(end_ - begin_);
    return std::move(result_);
  }

 private:
  // REQUIRES: such a tensor can be: `like` is one.
  Tensor Allocate(const TensorView& like) const {
    return *client_->AllocateTensor(like.dtype, like.shape,
                                    absl::Now() + options_.call_timeout);
  }

  bool AllEnded() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return in_flight_ == 0;
  }

  bool MayStart() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return (!options_.calls || started_ < *options_.calls) &&
           (!options_.duration || absl::Now() - begin_ < *options_.duration) &&
           result_.NumFailures() < options_.max_failures;
  }

  LoadProgress Progress() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    LoadProgress progress;
    progress.failures = result_.NumFailures();
    progress.calls = std::ssize(result_.samples) + progress.failures;
    if (options_.calls) {
      progress.fraction = static_cast<double>(progress.calls) /
                          static_cast<double>(*options_.calls);
    }
    if (options_.duration) {
      progress.fraction = std::max(
          progress.fraction,
          absl::FDivDuration(absl::Now() - begin_, *options_.duration));
    }
    return progress;
  }

  void StartNext(int slot) {
    {
      const absl::MutexLock lock(&mutex_);
      if (!MayStart()) return;
      ++started_;
      ++in_flight_;
    }
    AttentionArguments arguments = call_;
    const absl::Time start = absl::Now();
    arguments.deadline = start + options_.call_timeout;
    Tensor& output = outputs_[slot];
    if (output.region().region != nullptr) {
      arguments.output_region = output.region();
    } else {
      arguments.output = output.bytes();
    }
    client_->AttentionAsync(
        arguments, [this, slot, start](absl::StatusOr<AttentionResult> result) {
          const absl::Time end = absl::Now();
          Record(end - start, std::move(result));
          StartNext(slot);
          // Last, so that Run does not return under a slot's feet.
          const absl::MutexLock lock(&mutex_);
          end_ = std::max(end_, end);
          --in_flight_;
        });
  }

  void Record(absl::Duration latency, absl::StatusOr<AttentionResult> result) {
    const absl::MutexLock lock(&mutex_);
    if (result.ok()) {
      result_.samples.push_back(
          {.client_seconds = absl::ToDoubleSeconds(latency),
           .report = std::move(result->report),
           .plane = result->plane});
      return;
    }
    if (result_.failures.empty()) result_.first_failure = result.status();
    ++result_.failures[result.status().code()];
  }

  Client* const client_;
  AttentionArguments call_;
  const LoadOptions& options_;
  std::vector<Tensor> outputs_;  // one for each slot
  absl::Time begin_;

  absl::Mutex mutex_;
  int64_t started_ ABSL_GUARDED_BY(mutex_) = 0;
  int in_flight_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time end_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  LoadResult result_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

int64_t LoadResult::NumFailures() const {
  int64_t sum = 0;
  for (const auto& [code, count] : failures) sum += count;
  return sum;
}

LoadResult RunLoad(
    Client* client, const AttentionArguments& call, const LoadOptions& options,
    const std::function<void(const LoadProgress&)>& on_progress) {
  return Load(client, call, options).Run(on_progress);
}

}  // namespace ithaca::client
