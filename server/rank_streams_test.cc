#include "server/rank_streams.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/sequence_parallel_plan.h"
#include "server/fake_group.h"
#include "server/memory_region.h"
#include "server/rank_message.h"

namespace ithaca::server {
namespace {

constexpr int kWorldSize = 2;
constexpr int64_t kRowBytes = 4;  // one head of one float

void AwaitTrue(const std::function<bool()>& condition) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!condition()) {
    ASSERT_LT(absl::Now(), deadline);
    absl::SleepFor(absl::Milliseconds(1));
  }
}

class Listener : public RankStreams::Observer {
 public:
  void OnSent() override {}
  void OnOutput(int rank, uint64_t offset, const TensorBytes& bytes) override {
    const absl::MutexLock lock(&mutex_);
    outputs_.resize(kWorldSize);
    EXPECT_EQ(offset, outputs_[static_cast<size_t>(rank)].size());
    outputs_[static_cast<size_t>(rank)] += bytes.Flatten();
    ++reads_;
  }
  void OnBroken(int rank, const grpc::Status& status) override {
    const absl::MutexLock lock(&mutex_);
    broken_.emplace_back(rank, status);
  }
  std::vector<std::pair<int, grpc::Status>> broken() {
    const absl::MutexLock lock(&mutex_);
    return broken_;
  }
  int reads() {
    const absl::MutexLock lock(&mutex_);
    return reads_;
  }
  std::string output(int rank) {
    const absl::MutexLock lock(&mutex_);
    return outputs_[static_cast<size_t>(rank)];
  }

 private:
  absl::Mutex mutex_;
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> outputs_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<int, grpc::Status>> broken_ ABSL_GUARDED_BY(mutex_);
};

// One call of zero queries: the output is the mean of the values, all 1.
class RankStreamsTest : public ::testing::Test {
 protected:
  void Start(int64_t image_tokens = 4) {
    AttentionShape shape;
    shape.image_tokens = image_tokens;
    shape.valid_text_tokens = {0};
    plan_ = *MakeSequenceParallelPlan(shape, {}, kWorldSize);
    std::vector<int64_t> output_bytes;
    std::vector<internal::v1::AttentionCall> opens;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      output_bytes.push_back(Share(rank) * kRowBytes);
      opens.push_back(DescribeCall(plan_, CallRegions(), "id", 1, 0));
    }
    streams_ = std::make_shared<RankStreams>(
        std::make_shared<RankChannels>(group_.Describe("g", 1).members),
        output_bytes, listener_);
    streams_->Start(opens);
  }

  int64_t Share(int rank) const {
    return plan_.ranks[static_cast<size_t>(rank)].image_tokens.size;
  }

  void SendAll() {
    for (int rank = 0; rank < kWorldSize; ++rank) {
      const int64_t bytes = Share(rank) * kRowBytes;
      streams_->Send(rank, 0, Bytes(std::string(2 * bytes, '\0')));
      std::string ones;
      for (int64_t row = 0; row < Share(rank); ++row) {
        ones.append("\0\0\x80\x3f", 4);
      }
      streams_->Send(rank, 2 * bytes, Bytes(ones));
    }
  }

  static TensorBytes Bytes(const std::string& bytes) {
    TensorBytes tensor;
    tensor.Append(grpc::Slice(bytes));
    return tensor;
  }

  void Run() {
    streams_->Run(1, {[this](int rank, const grpc::Status& status) {
                        const absl::MutexLock lock(&mutex_);
                        failures_.emplace_back(rank, status);
                      },
                      [this] { done_.Notify(); }});
  }

  std::vector<std::pair<int, grpc::Status>> failures() {
    const absl::MutexLock lock(&mutex_);
    return failures_;
  }

  FakeGroup group_{kWorldSize};
  std::shared_ptr<Listener> listener_ = std::make_shared<Listener>();
  SequenceParallelPlan plan_;
  std::shared_ptr<RankStreams> streams_;
  absl::Mutex mutex_;
  std::vector<std::pair<int, grpc::Status>> failures_ ABSL_GUARDED_BY(mutex_);
  absl::Notification done_;
};

TEST_F(RankStreamsTest, InputsGoInTheCallRunsAndOutputsComeAsAskedFor) {
  Start();
  SendAll();
  AwaitTrue([this] { return group_.streamed_bytes() == 3 * 4 * kRowBytes; });
  AwaitTrue([this] { return streams_->unsent_bytes() == 0; });
  EXPECT_TRUE(group_.call_numbers().empty());
  ASSERT_TRUE(streams_->Claim());
  Run();
  done_.WaitForNotification();
  EXPECT_TRUE(failures().empty());
  EXPECT_EQ(listener_->reads(), 0);
  for (int rank = 0; rank < kWorldSize; ++rank) {
    EXPECT_TRUE(streams_->status(rank).ok());
    EXPECT_EQ(streams_->execution(rank).communication_bytes(),
              100u + static_cast<uint64_t>(rank));
    streams_->ReadOutput(rank);
    AwaitTrue([this, rank] { return listener_->reads() == rank + 1; });
    EXPECT_EQ(listener_->output(rank),
              std::string("\0\0\x80\x3f\0\0\x80\x3f", 8));
  }
  AwaitTrue([this] { return group_.open_streams() == 0; });
  EXPECT_TRUE(listener_->broken().empty());
}

TEST_F(RankStreamsTest, WhatRanksDoNotReadStaysUnsent) {
  group_.SetStreamReads(1, false);
  constexpr int64_t kTokens = 16 << 20;
  Start(kTokens);
  for (int64_t chunk = 0; chunk < 32; ++chunk) {
    streams_->Send(1, chunk << 20, Bytes(std::string(1 << 20, 'x')));
  }
  // What fits into the connection is gone, and no more.
  EXPECT_GT(streams_->unsent_bytes(), 0);
  group_.SetStreamReads(1, true);
  AwaitTrue([this] { return streams_->unsent_bytes() == 0; });
  streams_->Abandon();
  AwaitTrue([this] { return group_.open_streams() == 0; });
}

TEST_F(RankStreamsTest, AbandonedBeforeItsTurnACallReachesNoRanksQueue) {
  Start();
  SendAll();
  AwaitTrue([this] { return group_.open_streams() == 2; });
  streams_->Abandon();
  EXPECT_FALSE(streams_->Claim());
  AwaitTrue([this] { return group_.open_streams() == 0; });
  EXPECT_TRUE(group_.call_numbers().empty());
  EXPECT_TRUE(listener_->broken().empty());
  EXPECT_EQ(streams_->unsent_bytes(), 0);
}

TEST_F(RankStreamsTest, AbandonedAfterItsTurnACallRunsToItsEnd) {
  group_.Hold();
  Start();
  SendAll();
  ASSERT_TRUE(streams_->Claim());
  streams_->Abandon();
  Run();
  group_.AwaitHeld(1);
  EXPECT_FALSE(done_.HasBeenNotified());
  group_.Release();
  done_.WaitForNotification();
  EXPECT_TRUE(failures().empty());
  // Its output is nobody's.
  AwaitTrue([this] { return group_.open_streams() == 0; });
  EXPECT_EQ(listener_->reads(), 0);
}

TEST_F(RankStreamsTest, ARankThatEndsDuringTheUploadIsToldToTheClientsSide) {
  Start();
  AwaitTrue([this] { return group_.open_streams() == 2; });
  group_.BreakStreams(1, {grpc::StatusCode::INTERNAL, "out of place"});
  AwaitTrue([this] { return !listener_->broken().empty(); });
  EXPECT_EQ(listener_->broken()[0].first, 1);
  EXPECT_EQ(listener_->broken()[0].second.error_message(), "out of place");
  EXPECT_FALSE(streams_->Claim());
  streams_->Abandon();
  AwaitTrue([this] { return group_.open_streams() == 0; });
}

TEST_F(RankStreamsTest, ARankThatEndsDuringTheRunIsToldToTheScheduler) {
  group_.Hold();
  Start();
  SendAll();
  ASSERT_TRUE(streams_->Claim());
  Run();
  group_.AwaitHeld(1);
  group_.BreakStreams(0, {grpc::StatusCode::UNAVAILABLE, "exchange broken"});
  AwaitTrue([this] { return !failures().empty(); });
  EXPECT_EQ(failures()[0].first, 0);
  EXPECT_FALSE(done_.HasBeenNotified());
  streams_->Cancel();
  done_.WaitForNotification();
  EXPECT_EQ(streams_->status(0).error_message(), "exchange broken");
  EXPECT_EQ(streams_->status(1).error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(listener_->broken().empty());
  group_.Release();
}

TEST_F(RankStreamsTest, ARankThatEndsBetweenItsTurnAndTheNumberIsAFailure) {
  Start();
  SendAll();
  ASSERT_TRUE(streams_->Claim());
  AwaitTrue([this] { return group_.open_streams() == 2; });
  group_.BreakStreams(0, {grpc::StatusCode::UNAVAILABLE, "gone"});
  AwaitTrue([this] { return group_.open_streams() == 1; });
  Run();
  AwaitTrue([this] { return !failures().empty(); });
  streams_->Cancel();
  done_.WaitForNotification();
  EXPECT_EQ(streams_->status(0).error_message(), "gone");
}

TEST_F(RankStreamsTest, ARankThatEndsBeforeItsOutputIsReadIsBroken) {
  group_.SetStreamWrites(1, false);
  Start();
  SendAll();
  ASSERT_TRUE(streams_->Claim());
  Run();
  done_.WaitForNotification();
  streams_->ReadOutput(0);
  streams_->ReadOutput(1);
  AwaitTrue([this] { return listener_->reads() == 1; });
  group_.BreakStreams(1, grpc::Status::OK);
  AwaitTrue([this] { return !listener_->broken().empty(); });
  EXPECT_EQ(listener_->broken()[0].first, 1);
  EXPECT_EQ(listener_->broken()[0].second.error_code(),
            grpc::StatusCode::INTERNAL);
}

}  // namespace
}  // namespace ithaca::server
