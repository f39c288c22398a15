#include "worker/group_session.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "worker/call_refusal.h"
#include "worker/fake_rank_device.h"

namespace ithaca {
namespace {

using Result = absl::StatusOr<RankResult>;

// What came of one call.
struct Pending {
  absl::Notification done;
  Result result = absl::UnknownError("not done");

  const Result& Await() {
    if (!done.WaitForNotificationWithTimeout(absl::Seconds(60))) {
      ADD_FAILURE() << "a call was never answered";
    }
    return result;
  }
};

AttentionShape Shape() {
  AttentionShape shape;
  shape.image_tokens = 6;
  shape.valid_text_tokens = {0};
  shape.num_heads = 2;
  shape.num_kv_heads = 2;
  shape.head_dim = 4;
  return shape;
}

// All tensors 1: so is the output.
RankCall Call(uint64_t number, int world_size, int rank) {
  RankCall call;
  call.number = number;
  call.shape = Shape();
  const SequenceParallelPlan plan =
      *MakeSequenceParallelPlan(call.shape, call.options, world_size);
  call.plan_fingerprint = plan.Fingerprint();
  auto values = std::make_shared<std::vector<float>>(
      3 * plan.ranks[static_cast<size_t>(rank)].image_tokens.size * 2 * 4,
      1.0f);
  // In two pieces, cut inside an element.
  const char* bytes = reinterpret_cast<const char*>(values->data());
  const size_t size = values->size() * sizeof(float);
  call.tensors = {{bytes, 5}, {}, {bytes + 5, size - 5}};
  call.tensors_owner = std::move(values);
  return call;
}

class GroupSessionTest : public ::testing::Test {
 protected:
  // One session a rank.
  void Start(int world_size) {
    group_ = std::make_shared<InProcessGroup>(world_size);
    formed_.resize(static_cast<size_t>(world_size));
    lost_.resize(static_cast<size_t>(world_size));
    for (int rank = 0; rank < world_size; ++rank) {
      Open(OpenFakeRankDevice(group_), rank, world_size);
    }
  }

  void Open(std::function<absl::StatusOr<std::unique_ptr<RankDevice>>()> open,
            int rank, int world_size) {
    formed_.resize(static_cast<size_t>(world_size));
    lost_.resize(static_cast<size_t>(world_size));
    auto& formed = formed_[static_cast<size_t>(rank)];
    auto& lost = lost_[static_cast<size_t>(rank)];
    formed = std::make_unique<Told>();
    lost = std::make_unique<Told>();
    GroupSessionOptions options;
    options.open_device = std::move(open);
    options.buffers = &buffers_;
    GroupMembership membership;
    membership.rank = rank;
    membership.world_size = world_size;
    GroupSessionEvents events;
    events.on_formed = [told = formed.get()](const absl::Status& status) {
      told->Tell(status);
    };
    events.on_lost = [told = lost.get()](const absl::Status& status) {
      told->Tell(status);
    };
    sessions_.push_back(std::make_unique<GroupSession>(
        options, membership, std::make_shared<NoRendezvousStore>(),
        std::move(events)));
  }

  std::unique_ptr<Pending> Submit(int rank, RankCall call) {
    auto pending = std::make_unique<Pending>();
    const absl::Status status = sessions_[static_cast<size_t>(rank)]->Submit(
        std::move(call), [pending = pending.get()](Result result) {
          pending->result = std::move(result);
          pending->done.Notify();
        });
    EXPECT_TRUE(status.ok()) << status;
    return pending;
  }

  struct Told {
    absl::Notification told;
    absl::Status status;
    void Tell(const absl::Status& what) {
      status = what;
      told.Notify();
    }
    absl::Status Await() {
      if (!told.WaitForNotificationWithTimeout(absl::Seconds(60))) {
        ADD_FAILURE() << "never told";
      }
      return status;
    }
  };

  HostBufferPool buffers_;
  std::shared_ptr<InProcessGroup> group_;
  std::vector<std::unique_ptr<Told>> formed_, lost_;
  std::vector<std::unique_ptr<GroupSession>> sessions_;  // end first
};

void ExpectOnes(const Result& result) {
  ASSERT_TRUE(result.ok()) << result.status();
  const auto* values = reinterpret_cast<const float*>(result->output->data());
  for (int64_t i = 0; i < result->output_bytes / 4; ++i) {
    EXPECT_FLOAT_EQ(values[i], 1.0f);
  }
}

TEST_F(GroupSessionTest, CallsRunInOrderOnEveryRank) {
  Start(2);
  for (const auto& formed : formed_) EXPECT_TRUE(formed->Await().ok());
  std::vector<std::unique_ptr<Pending>> calls;
  for (uint64_t number : {2, 1, 3}) {
    calls.push_back(Submit(0, Call(number, 2, 0)));
  }
  for (uint64_t number : {3, 2, 1}) {
    calls.push_back(Submit(1, Call(number, 2, 1)));
  }
  for (const auto& call : calls) {
    ExpectOnes(call->Await());
    EXPECT_EQ(call->result->output_bytes, 3 * 2 * 4 * 4);
  }
}

TEST_F(GroupSessionTest, ACallMayComeBeforeTheGroupIsFormed) {
  Start(1);
  ExpectOnes(Submit(0, Call(1, 1, 0))->Await());
}

TEST_F(GroupSessionTest, InputsAreLetGoBeforeTheCallEnds) {
  Start(1);
  RankCall call = Call(1, 1, 0);
  std::weak_ptr<const void> inputs = call.tensors_owner;
  auto pending = Submit(0, std::move(call));
  ExpectOnes(pending->Await());
  EXPECT_TRUE(inputs.expired());
}

TEST_F(GroupSessionTest, AGroupThatDoesNotFormSaysWhy) {
  Open(OpenFakeRankDevice(nullptr), 0, 2);
  EXPECT_EQ(formed_[0]->Await().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(sessions_[0]->Submit(Call(1, 2, 0), [](Result) {}).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(GroupSessionTest, ADeviceThatDoesNotOpenSaysWhy) {
  Open([] { return absl::InternalError("no device"); }, 0, 1);
  EXPECT_EQ(formed_[0]->Await().code(), absl::StatusCode::kInternal);
}

TEST_F(GroupSessionTest, AVoteAgainstACallLeavesTheGroupIntact) {
  Start(2);
  group_->FailNextVote(1, absl::StatusCode::kResourceExhausted);
  auto a = Submit(0, Call(1, 2, 0)), b = Submit(1, Call(1, 2, 1));
  EXPECT_EQ(a->Await().status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(b->Await().status().code(), absl::StatusCode::kResourceExhausted);
  auto c = Submit(0, Call(2, 2, 0)), d = Submit(1, Call(2, 2, 1));
  ExpectOnes(c->Await());
  ExpectOnes(d->Await());
}

TEST_F(GroupSessionTest, AWrongPlanOnOneRankLosesTheGroupOnBoth) {
  Start(2);
  RankCall wrong = Call(1, 2, 1);
  ++wrong.plan_fingerprint;
  auto a = Submit(0, Call(1, 2, 0)), b = Submit(1, std::move(wrong));
  EXPECT_FALSE(GroupSurvives(a->Await().status()));
  EXPECT_FALSE(GroupSurvives(b->Await().status()));
  EXPECT_FALSE(lost_[0]->Await().ok());
  EXPECT_FALSE(lost_[1]->Await().ok());
}

TEST_F(GroupSessionTest, WrongByteCountsAreRefusedNotRead) {
  for (const bool more : {false, true}) {
    sessions_.clear();
    Start(1);
    RankCall call = Call(1, 1, 0);
    call.tensors.back().remove_suffix(1);
    if (more) call.tensors = {call.tensors[0], call.tensors[0]};
    EXPECT_EQ(Submit(0, std::move(call))->Await().status().code(),
              absl::StatusCode::kInternal);
  }
}

TEST_F(GroupSessionTest, AbortFreesARankThatWaitsForAnother) {
  Start(2);
  auto running = Submit(0, Call(1, 2, 0));
  auto waiting = Submit(0, Call(2, 2, 0));
  const absl::Status why = absl::UnavailableError("dissolved");
  EXPECT_TRUE(formed_[0]->Await().ok());
  sessions_[0]->Abort(why);
  EXPECT_EQ(running->Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(waiting->Await().status(), why);
  EXPECT_EQ(sessions_[0]->Submit(Call(3, 2, 0), [](Result) {}), why);
}

TEST_F(GroupSessionTest, APeersDeathIsToldOnce) {
  Start(2);
  auto running = Submit(0, Call(1, 2, 0));
  EXPECT_TRUE(formed_[1]->Await().ok());
  group_->KillRank(1);
  EXPECT_EQ(running->Await().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lost_[0]->Await().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ithaca
